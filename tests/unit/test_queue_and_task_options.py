"""What queues and tasks say about cores and retries, and what becomes of it."""

from __future__ import annotations

import pytest

from pgworkers import App, UsageError
from pgworkers.linux.process_limits import allowed_cores, cores_of_worker


def test_cores_that_are_not_there_are_left_out() -> None:
    assert allowed_cores([], {0, 1}) == {0, 1}
    assert allowed_cores([1, 9], {0, 1}) == {1}
    assert allowed_cores([9], {0, 1}) == set()


def test_pinned_workers_take_the_cores_in_turn() -> None:
    assert [cores_of_worker(index, {2, 5, 7}, True) for index in range(4)] == [{2}, {5}, {7}, {2}]
    assert cores_of_worker(3, {2, 5}, False) == {2, 5}
    assert cores_of_worker(0, set(), True) == set()


def test_a_queue_declares_them() -> None:
    app = App()
    app.queue("q", cores=[0, 3], pin=True, address_space="2GB")
    spec = app.describe().queues[0]
    assert (spec.cores, spec.pin, spec.address_space) == ((0, 3), True, 2 << 30)
    with pytest.raises(UsageError, match="cores"):
        app.queue("r", cores=[-1])


def test_retry_verdicts_is_read_by_verdict() -> None:
    app = App()
    app.queue("default")

    @app.task(retry_verdicts={"timeout": False, "oom": "10m", "error": True})
    def render() -> None: ...

    assert app.describe().tasks[0].retry_verdicts == {"timeout": False, "oom": 600.0, "error": True}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"interrupted": False}, "the verdicts it can name are error, timeout"),
        ({"lease_lost": False}, "the verdicts it can name"),
        ({"oom": None}, "write True, False or a duration"),
        ({"oom": "soon"}, "oom"),
        (["oom"], "is not a mapping"),
    ],
)
def test_retry_verdicts_that_makes_no_sense_is_refused(value: object, said: str) -> None:
    app = App()
    with pytest.raises(UsageError, match=said):

        @app.task(retry_verdicts=value)  # type: ignore[call-overload]
        def render() -> None: ...
