"""Whether threads that jobs left behind use CPU while there is none: pure."""

from __future__ import annotations

from pgworkers.worker.heartbeat import JUDGED_IDLE_BEATS, MAX_IDLE_CPU_SHARE, IdleCpuMonitor

SECOND = 1_000_000_000


def looks(
    marks: list[int], share: float, step: int = SECOND, leftover: IdleCpuMonitor | None = None
) -> list[bool]:
    """Judge a process once per `step` that uses this `share` of a core all the time."""
    leftover = leftover or IdleCpuMonitor(1.0)
    return [leftover.is_over_limit(mark, n * step, int(n * step * share)) for n, mark in enumerate(marks)]


def test_a_worker_that_burns_without_a_job_is_noticed_after_some_beats() -> None:
    assert looks([7] * (JUDGED_IDLE_BEATS + 1), 0.9) == [False] * JUDGED_IDLE_BEATS + [True]


def test_rests_count_for_as_many_beats_as_they_take() -> None:
    assert looks([7] * 4, 0.9, step=5 * SECOND) == [False, False, True, False]


def test_threads_that_sleep_cost_nothing() -> None:
    assert not any(looks([7] * 100, MAX_IDLE_CPU_SHARE / 10))


def test_what_a_job_uses_is_its_own() -> None:
    assert not any(looks([0] * 100, 4.0)), "it runs"
    assert not any(looks(list(range(1, 100)), 4.0)), "each look finds another one"


def test_before_its_first_job_nothing_is_left_by_one() -> None:
    assert not any(looks([0] * 100, 1.0))


def test_short_waits_between_jobs_are_added_up() -> None:
    marks = [number // 2 for number in range(2, 6 * JUDGED_IDLE_BEATS)]  # two looks at each wait
    assert any(looks(marks, 0.9))


def test_each_judgement_starts_from_scratch() -> None:
    leftover = IdleCpuMonitor(1.0)
    assert not any(looks([7] * 5, 0.9, leftover=leftover))
    used = int(4 * SECOND * 0.9)
    found = [leftover.is_over_limit(7, n * SECOND, used) for n in range(5, 60)]
    assert sum(found) <= 1, "what burned for a moment and stopped is noticed once at most"
