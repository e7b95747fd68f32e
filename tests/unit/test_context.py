"""The context of a handler: progress, checkpoint, cancellation, and what the heartbeat thread takes from it."""

from __future__ import annotations

import json
import logging
import math
import threading
from typing import Any

import pytest

from pgworkers import App, Ctx, JobStopped, UsageError


def taken(text: bytes | None) -> Any:
    return None if text is None else json.loads(text)


def test_progress_is_taken_once_for_each_change() -> None:
    ctx = Ctx.for_test()
    assert ctx.take_progress() is None
    ctx.progress(1)
    ctx.progress(3, 10, "drawing")
    assert taken(ctx.take_progress()) == {"done": 3, "total": 10, "note": "drawing"}
    assert ctx.take_progress() is None
    ctx.progress(4)
    assert taken(ctx.take_progress()) == {"done": 4, "total": 10, "note": "drawing"}


def test_progress_that_cannot_be_encoded_does_not_fail_the_heartbeat() -> None:
    ctx = Ctx.for_test()
    ctx.progress(math.nan, 10)
    assert ctx.take_progress() is None
    ctx.progress(1, 10, "a\0b\ud800" + "x" * 1000)
    said = taken(ctx.take_progress())
    assert said["note"].startswith("a\ufffdb\ufffdx")
    assert len(said["note"]) == 200
    with pytest.raises(UsageError, match="done is str; give a number"):
        ctx.progress("half")  # type: ignore[arg-type]


def test_track_counts_and_knows_the_total_of_what_has_a_length() -> None:
    ctx = Ctx.for_test()
    seen = []
    for item in ctx.track(["a", "b"]):
        seen.append((item, taken(ctx.take_progress())))
    assert seen == [("a", {"done": 0, "total": 2}), ("b", {"done": 1, "total": 2})]
    assert taken(ctx.take_progress()) == {"done": 2, "total": 2}
    assert list(ctx.track(iter("xy"), total=5)) == ["x", "y"]


def test_track_is_a_cancellation_point() -> None:
    wishes = iter([False, False, True])
    ctx = Ctx.for_test(cancelled=lambda: next(wishes))
    seen: list[int] = []
    with pytest.raises(JobStopped):
        seen.extend(ctx.track(range(10)))
    assert seen == [0, 1]
    assert taken(ctx.take_progress())["done"] == 2


def test_the_feed_is_asked_each_time() -> None:
    left = [3.0]
    ctx = Ctx.for_test(remaining=lambda: left[0], cancelled=lambda: left[0] < 2)
    assert (ctx.deadline, ctx.cancelled) == (3.0, False)
    left[0] = 1.0
    assert (ctx.deadline, ctx.cancelled) == (1.0, True)
    assert Ctx.for_test().deadline is None


def test_checkpoint_is_a_dictionary_that_is_taken_when_it_changed() -> None:
    ctx = Ctx.for_test(checkpoint={"page": 3, "old": None})
    assert ctx.take_checkpoint() is None
    assert ctx.checkpoint.get("page", 0) == 3
    ctx.checkpoint["page"] = 4
    ctx.checkpoint.update(rows=[1, 2])
    del ctx.checkpoint["old"]
    assert taken(ctx.take_checkpoint()) == {"page": 4, "rows": [1, 2]}
    assert ctx.take_checkpoint() is None
    assert dict(ctx.checkpoint) == {"page": 4, "rows": [1, 2]}
    ctx.checkpoint.clear()
    assert taken(ctx.take_checkpoint()) == {}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (object(), "objects of type object"),
        (math.nan, "is nan"),
        ("a\0", "NUL"),
        ({"x": "\ud800"}, "x contains a lone surrogate"),
        (2**70, "beyond 64 bits"),
        ("x" * (2 << 20), "more than 1MB"),
    ],
)
def test_a_checkpoint_that_is_not_json_raises_where_it_is_assigned(value: Any, said: str) -> None:
    ctx = Ctx.for_test(checkpoint={"k": 1})
    with pytest.raises(UsageError) as caught:
        ctx.checkpoint["k"] = value
    assert said in str(caught.value)
    assert str(caught.value).startswith("checkpoint['k']")
    assert ctx.checkpoint["k"] == 1
    assert ctx.take_checkpoint() is None


def test_a_checkpoint_cannot_grow_without_bound() -> None:
    ctx = Ctx.for_test()
    ctx.checkpoint["a"] = "x" * 600_000
    with pytest.raises(UsageError, match="larger than 1MB"):
        ctx.checkpoint["b"] = "x" * 600_000
    with pytest.raises(UsageError, match="keys must be strings"):
        ctx.checkpoint[1] = 1  # type: ignore[index]
    assert list(ctx.checkpoint) == ["a"]


def test_the_heartbeat_thread_never_sees_a_half_written_checkpoint() -> None:
    ctx = Ctx.for_test()
    done = threading.Event()
    torn: list[Any] = []
    thread = threading.Thread(target=lambda: _beat(ctx, done, torn))
    thread.start()
    try:
        for n in range(3000):
            ctx.checkpoint["pair"] = {"n": n % 50, "list": [0] * (n % 50)}
    finally:
        done.set()
        thread.join()
    assert not torn


def _beat(ctx: Ctx, done: threading.Event, torn: list[Any]) -> None:
    while not done.is_set():
        text = ctx.take_checkpoint()
        if text is not None:
            pair = json.loads(text)["pair"]
            if pair["n"] != len(pair["list"]):
                torn.append(pair)


def test_log_lines_carry_the_job(caplog: pytest.LogCaptureFixture) -> None:
    ctx = Ctx(job=7, task="render", queue="q", attempt=2)
    with caplog.at_level(logging.INFO, logger="pgworkers.job"):
        ctx.log.info("page %d", 3)
    (record,) = caplog.records
    assert (record.getMessage(), record.name) == ("page 3", "pgworkers.job.render")
    assert (record.__dict__["job"], record.__dict__["attempt"]) == (7, 2)


def test_what_a_context_knows() -> None:
    ctx = Ctx(
        job=7, task="t", queue="q", attempt=3, crashes=1, lease=9, meta={"why": "x"}, errors=["e1", "e2"]
    )
    assert (ctx.job, ctx.task, ctx.queue, ctx.attempt, ctx.crashes, ctx.lease) == (7, "t", "q", 3, 1, 9)
    assert (ctx.meta, ctx.errors) == ({"why": "x"}, ["e1", "e2"])


def test_what_is_enqueued_with_the_end_is_checked_at_once_and_all_or_none() -> None:
    app = App()
    app.queue("q")

    @app.task
    def mail(to: int) -> None: ...

    ctx = Ctx.for_test()
    assert ctx.take_children() is None
    ctx.enqueue(mail.prepare(7), mail.using(delay="5m", priority=3, meta={"why": "x"}).prepare(8))
    first, second = taken(ctx.take_children())
    assert (first["task"], first["args"], first["queue"], "delay" in first) == ("mail", {"to": 7}, "q", False)
    assert (second["delay"], second["priority"], second["meta"]) == (300.0, 3, {"why": "x"})
    for wrong, why in (
        (mail, "PlainTask is not a prepared job"),
        (mail.using(unique="k").prepare(1), "with unique= cannot be enqueued with the end"),
        (mail.using(idempotency_key="k").prepare(1), "with idempotency_key= cannot be enqueued with the end"),
        (mail.using(after=[1]).prepare(1), "with after= cannot be enqueued with the end"),
    ):
        with pytest.raises(UsageError, match=why):
            ctx.enqueue(mail.prepare(9), wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="more than 1,000 jobs"):
        ctx.enqueue(*[mail.prepare(n) for n in range(999)])
    assert [new.args_json for new in ctx.enqueued] == ['{"to":7}', '{"to":8}']


def test_more_time_is_asked_of_the_worker_unless_the_attempt_is_being_stopped() -> None:
    assert Ctx.for_test().extend("5m") is None, "there is no limit"
    assert Ctx.for_test(remaining=lambda: 3.0).extend(1) == 3.0
    with pytest.raises(UsageError, match=r"ctx\.extend: 'soon' is not a duration"):
        Ctx.for_test().extend("soon")
    with pytest.raises(JobStopped):
        Ctx.for_test(cancelled=lambda: True).extend("5m")
