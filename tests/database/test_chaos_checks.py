"""The soak's own checks, each seen red: rows as a broken product would leave them."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
from chaos import checks, quiet_phase
from chaos.environment import QUEUES, boottime, settings
from chaos.load import UNKNOWN, EnqueueAnswers
from chaos.phase_memory import SPARE, Memory
from support.database_host import DatabaseHost
from support.ledger import Entry

from pgworkers.job.model import JobState, Verdict


class Place:
    """The part of the soak environment that the checks read."""

    def __init__(self, host: DatabaseHost) -> None:
        self.host = host
        self.settings = settings()
        self.requeued: set[int] = set()
        self.hosts = [SimpleNamespace(name="h0", master=SimpleNamespace(pid=os.getpid()))]
        self.ledger: list[Entry] = []

    def rows(self, query: str, *params: Any) -> list[tuple[Any, ...]]:
        return self.host.conn.execute(query.encode(), params or None).fetchall()

    def recent(self) -> list[Entry]:
        return self.ledger

    def sql(self, statement: str, *params: Any) -> None:
        assert self.host.conn.execute(statement.encode(), params).rowcount, "nothing was broken"


@pytest.fixture
def place(host: DatabaseHost) -> Any:
    return Place(host)


def test_an_end_that_changes_is_seen_unless_an_operator_asked_for_it(place: Any, host: DatabaseHost) -> None:
    job = host.enqueue_and_claim()
    host.finish_job(job)
    memory = Memory()
    assert memory.ends(place) == memory.ends(place) == []
    place.sql("UPDATE pgworkers.history SET state = 'dead' WHERE id = %s", job.id)
    assert memory.ends(place) == [f"I4 job {job.id} was succeeded under lease 1 and is dead under lease 1"]
    place.sql("UPDATE pgworkers.history SET lease = 2 WHERE id = %s", job.id)
    assert memory.ends(place) == [f"I4 job {job.id} was dead under lease 1 and is dead under lease 2"]
    place.sql("DELETE FROM pgworkers.history")
    place.requeued.add(job.id)
    assert memory.ends(place) == []


def test_an_end_that_goes_is_seen(place: Any, host: DatabaseHost) -> None:
    job = host.enqueue_and_claim()
    host.finish_job(job)
    memory = Memory()
    assert memory.ends(place) == []
    place.sql("DELETE FROM pgworkers.history")
    assert memory.ends(place) == [f"I4 job {job.id} was succeeded under lease 1 and is gone"]


def test_a_master_that_leaks_descriptors_is_seen(place: Any) -> None:
    memory = Memory()
    assert memory.descriptors(place) == memory.descriptors(place) == []
    leaked = [os.open("/dev/null", os.O_RDONLY) for _ in range(SPARE + 1)]
    try:
        [said] = memory.descriptors(place)
        assert said.startswith("I14 the master of h0 had ")
    finally:
        for one in leaked:
            os.close(one)
    assert memory.compared == 2


@pytest.mark.parametrize(("late", "wrong"), [(0.1, 0), (60.0, len(QUEUES))])
def test_a_job_that_idle_workers_let_lie_is_seen(place: Any, late: float, wrong: int) -> None:
    ids = iter(range(1, 99))

    def probe(_queue: str) -> int:
        job = next(ids)
        place.ledger.append(Entry("START", job, 1, 1, 4711, boottime() + int(late * 1e9)))
        return job

    assert len(quiet_phase._picked_up(place, SimpleNamespace(probe=probe))) == wrong  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("args", "state", "crashes", "wrong"),
    [
        ('{"how": "kill"}', JobState.DEAD, 3, 0),
        ('{"how": "kill"}', JobState.DEAD, 2, 1),
        ('{"how": "kill"}', JobState.SUCCEEDED, 0, 1),
        ('{"how": "kill"}', JobState.CANCELLED, 3, 1),
        ('{"how": "kill", "times": 1}', JobState.SUCCEEDED, 1, 0),
        ('{"how": "kill", "times": 1}', JobState.DEAD, 2, 1),
        ('{"how": "kill", "times": 1}', JobState.CANCELLED, 1, 1),
    ],
)
def test_poison_that_is_not_dead_after_its_crashes_is_seen(
    place: Any, host: DatabaseHost, args: str, state: JobState, crashes: int, wrong: int
) -> None:
    host.enqueue("die", args)
    [job] = host.claim(tasks=("die",))
    host.finish_job(job, state)
    place.sql("UPDATE pgworkers.history SET crashes = %s", crashes)
    found = checks.Judgement()
    checks._poison(place, found)
    assert [text[:2] for text in found.wrong] == ["P6"] * wrong


@pytest.mark.parametrize(("seconds", "wrong"), [(2.1, []), (60.0, ["I19"])])
def test_a_stuck_job_that_outlives_its_graces_is_seen(
    place: Any, host: DatabaseHost, seconds: float, wrong: list[str]
) -> None:
    host.enqueue("stuck")
    [job] = host.claim(tasks=("stuck",))
    host.finish_job(job, JobState.DEAD, verdict=Verdict.TIMEOUT, error="past its deadline")
    place.sql("UPDATE pgworkers.attempt SET duration = %s", seconds)
    found = checks.Judgement()
    checks._deadlines(place, found)
    assert [text.split()[0] for text in found.wrong] == wrong


def test_a_soak_without_a_deadline_is_vacuous(place: Any) -> None:
    found = checks.Judgement()
    checks._deadlines(place, found)
    assert found.wrong == ["vacuous: no job met its deadline"]


@pytest.mark.parametrize(("key", "apart", "wrong"), [("x", False, 2), ("x", True, 0), (None, False, 1)])
def test_more_limited_jobs_at_once_than_slots_are_seen(
    place: Any, host: DatabaseHost, key: str | None, apart: bool, wrong: int
) -> None:
    entries: list[Entry] = []
    for nth in range(checks.TASK_SLOTS + 1):
        host.enqueue("limited", concurrency_key=key or f"key {nth}")
        [job] = host.claim(tasks=("limited",))
        host.finish_job(job)
        host.conn.execute("UPDATE pgworkers.history SET concurrency_key = coalesce(%s, id::text)", [key])
        began = nth * 100 if apart else nth
        entries += [Entry("START", job.id, 1, 1, nth, began), Entry("END", job.id, 1, 1, nth, began + 50)]
    ends = {(one.job, one.lease): one.at for one in entries if one.kind == "END"}
    place.executions = SimpleNamespace(ends=lambda entries: ends)
    found = checks.Judgement()
    checks._limits(place, entries, checks._Tables(place), found)
    assert [text.split()[0] for text in found.wrong] == ["I7"] * wrong


def test_a_job_of_an_unknown_task_that_ran_and_a_key_with_two_jobs_are_seen(
    place: Any, host: DatabaseHost
) -> None:
    unknown = host.enqueue(UNKNOWN)
    first, second = (
        host.enqueue("sturdy", meta_json='{"t": "t1"}'),
        host.enqueue("sturdy", meta_json='{"t": "t2"}'),
    )
    answers = EnqueueAnswers(acknowledged={"t1": first}, idempotent={"k": ["t1", "t2"]})
    found, tables = checks.Judgement(), checks._Tables(place)
    checks._unknown([], tables, found)
    assert found.wrong == []
    checks._unknown([Entry("START", unknown, 1, 1, 4711, 0)], tables, found)
    checks._idempotency_keys(SimpleNamespace(answers=answers), tables, found)  # type: ignore[arg-type]
    assert found.wrong == [
        f"job {unknown} of an unknown task ran",
        f"I8 the idempotency key k has the jobs [{first}, {second}]",
    ]
