"""How many ends go into one statement, by what became of the last ones."""

from __future__ import annotations

from pgworkers.master.batch_size import BatchSize


def test_what_fails_is_halved_down_to_one_and_grows_again_when_it_is_fast() -> None:
    size = BatchSize(500, limit=5.0)
    seen = []
    for _ in range(10):
        size.record_failed(size.current, slow=False)
        seen.append(size.current)
    assert seen == [250, 125, 62, 31, 15, 7, 3, 1, 1, 1]
    seen.clear()
    while size.current < 500:
        size.record_written(size.current, 0.1)
        seen.append(size.current)
    assert seen == [2, 4, 8, 16, 32, 64, 128, 256, 500]


def test_it_grows_only_after_full_batches_that_would_be_fast_if_they_were_twice_as_large() -> None:
    size = BatchSize(500, limit=5.0)
    size.record_failed(500, slow=True)
    size.record_written(250, 1.3)
    size.record_written(249, 0.1)
    assert size.current == 250
    size.record_written(250, 1.2)
    assert size.current == 500


def test_slowness_is_news_once_until_full_batches_are_fast_again() -> None:
    size = BatchSize(4, limit=5.0)
    assert size.record_failed(4, slow=True)
    assert not size.record_failed(2, slow=True)
    size.record_written(1, 0.1)
    assert not size.record_failed(2, slow=True)
    for _ in range(3):
        size.record_written(4, 0.1)
    assert size.record_failed(4, slow=True)
    assert not BatchSize(4, limit=5.0).record_failed(4, slow=False), "refused data is no slowness"


def test_a_refused_row_stands_alone_after_few_batches() -> None:
    """Wherever it is in the queue, the others are written."""
    for bad in range(500):
        size = BatchSize(500, limit=5.0)
        waiting, sent = list(range(1000)), 0
        while bad in waiting:
            batch = waiting[: size.current]
            sent += 1
            if batch == [bad]:
                break
            if bad in batch:
                size.record_failed(len(batch), slow=False)
            else:
                del waiting[: len(batch)]
                size.record_written(len(batch), 0.0)
        assert sent < 40, bad
