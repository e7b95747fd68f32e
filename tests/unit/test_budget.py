from __future__ import annotations

from itertools import pairwise

from pgworkers.supervisor.restart_budget import MIN_RESTART_SECONDS, RestartBudget


def starts_of_a_broken_child(budget: RestartBudget, until: float) -> list[float]:
    """A child that dies the moment it is started."""
    now, starts = 0.0, []
    while now < until:
        starts.append(now)
        now += budget.record_death(now, was_ready=False)
    return starts


def test_five_starts_in_the_first_thirty_seconds_then_one_in_thirty() -> None:
    starts = starts_of_a_broken_child(RestartBudget(5, 30.0, 30.0), 300.0)
    assert len([at for at in starts if at < 30.0]) == 5
    late = [at for at in starts if at >= 60.0]
    assert all(b - a == 30.0 for a, b in pairwise(late))


def test_it_never_gives_up_and_never_overflows() -> None:
    budget = RestartBudget(5, 30.0, 30.0)
    starts = starts_of_a_broken_child(budget, 30.0 * 5000)
    assert len(starts) > 4000
    assert budget.failed_starts > 4000


def test_many_workers_failing_at_once_wait_for_the_period() -> None:
    budget = RestartBudget(5, 30.0, 30.0)
    pauses = [budget.record_death(0.0, was_ready=False) for _ in range(8)]
    assert pauses[-1] == 30.0


def test_a_child_that_was_ready_is_replaced_at_once_but_not_in_a_spin() -> None:
    budget = RestartBudget(5, 30.0, 30.0)
    assert budget.record_death(100.0, was_ready=True) == 0.0
    assert budget.record_death(100.0, was_ready=True) == MIN_RESTART_SECONDS
    assert budget.record_death(100.5, was_ready=True) == 0.0
    assert budget.failed_starts == 0


def test_ready_forgets_the_failures() -> None:
    budget = RestartBudget(5, 30.0, 30.0)
    for at in (0.0, 1.0, 3.0, 7.0):
        budget.record_death(at, was_ready=False)
    budget.record_ready()
    assert budget.failed_starts == 0
    assert budget.record_death(8.0, was_ready=False) == 1.0


def test_cap() -> None:
    assert max(RestartBudget(1, 30.0, 2.0).record_death(float(i), was_ready=False) for i in range(50)) == 2.0


def test_children_that_leave_unused_are_replaced_ever_more_slowly() -> None:
    budget, now = RestartBudget(5, 30.0, 30.0), 0.0
    pauses = []
    for _ in range(12):
        pauses.append(budget.record_unused(now))
        now += max(pauses[-1], MIN_RESTART_SECONDS)
    assert pauses[:5] == [0.0, 0.1, 0.2, 0.4, 0.8]
    assert pauses[-1] == 30.0
    assert budget.unused_rounds == 12


def test_many_that_leave_unused_at_once_are_one_round() -> None:
    budget = RestartBudget(5, 30.0, 30.0)
    assert [budget.record_unused(0.0) for _ in range(16)] == [0.0, *[MIN_RESTART_SECONDS] * 15]
    assert budget.record_unused(MIN_RESTART_SECONDS) == MIN_RESTART_SECONDS
    assert budget.unused_rounds == 2


def test_a_quiet_period_forgets_those_that_left_unused() -> None:
    budget = RestartBudget(5, 30.0, 30.0)
    for at in (0.0, 0.1, 0.3, 0.7):
        budget.record_unused(at)
    assert budget.record_unused(100.0) == 0.0
    assert budget.unused_rounds == 1
