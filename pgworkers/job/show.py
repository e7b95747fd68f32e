"""Show: jobs, attempts, queues, hosts and workers, for people and for `Job` handles. Nothing here changes a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from pgworkers.job.reading import HIDDEN, Unreadable, value_of
from pgworkers.job.state import HELD, TERMINAL, State
from pgworkers.postgres.statements import Query, Statement

_GET = Statement.beside(__file__, "show_get")
_ATTEMPTS = Statement.beside(__file__, "show_attempts")
_FIND = Statement.beside(__file__, "show_find")
_SEARCH = Statement.beside(__file__, "show_search")
_QUEUES = Statement.beside(__file__, "show_queues")
_HOSTS = Statement.beside(__file__, "show_hosts")
_WORKERS = Statement.beside(__file__, "show_workers")
_OTHERS = Statement.beside(__file__, "show_others")
_UNFINISHED = Statement.beside(__file__, "show_unfinished")
_LEFT = Statement.beside(__file__, "show_left")

#: Beyond so many jobs nobody counts what a burst leaves.
MOST_LEFT = 10_000

#: Jobs of each part that one statement of `unfinished` looks at.
UNFINISHED_LOOK = 10_000
#: Ended parents with many followers that one statement of `unfinished` looks at.
MAX_ENDED_PARENTS = 100

#: A question to the database: runs a query and returns its answer.
Ask = Callable[[Query[Any]], Any]
#: Jobs that one statement of a search looks at: few first, because the newest are what people look for.
FIRST_LOOK = 1_000
LARGEST_LOOK = 20_000
#: Jobs that a search looks at. One that found too few says where it ended, and can be continued there.
MAX_LOOKED = 1_000_000
#: Jobs that hosts hold, beyond which a search for them is not complete.
MAX_HELD = 100_000
#: The largest count, of the jobs of a filter and of each column of a queue.
MAX_COUNT = 10_000
#: Post-mortems of a job that are shown: the last ones.
MAX_ATTEMPTS = 1_000
LARGEST_ID = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as the view `pgworkers.jobs` shows it, live or finished. JSON columns are Python values, or Unreadable.

    For a role that sees no payload, `args` and the `result` of a success are `HIDDEN`; `checkpoint` and `meta` are None.
    """

    id: int
    state: State
    queue: str
    task: str
    args: dict[str, Any] | Unreadable
    priority: int
    attempt: int
    max_attempts: int
    crashes: int
    lease: int
    host: UUID | None
    created_at: datetime
    run_at: datetime | None  # None: it waits for other jobs, or for its batch
    started_at: datetime | None
    finished_at: datetime | None
    verdict: str | None
    result: Any
    error: str | None
    unique_key: str | None
    progress: Any
    checkpoint: Any
    meta: Any
    cancel_at: datetime | None
    duration: float | None
    cpu_seconds: float | None
    peak_rss: int | None
    batch_id: int | None
    worker: str | None  # that has it, as of its host's last renewal
    enqueued_by: str  # the login


@dataclass(frozen=True, slots=True)
class AttemptView:
    """The post-mortem of one attempt that did not succeed."""

    attempt: int
    lease: int
    host: UUID | None
    queue: str
    task: str
    verdict: str
    started_at: datetime | None
    finished_at: datetime
    duration: float | None
    cpu_seconds: float | None
    peak_rss: int | None
    error: str | None
    traceback: str | None
    stack: str | None
    exit_status: str | None
    output: str | None
    progress: Any
    rungs: Any
    worker: str | None
    version: str | None


@dataclass(frozen=True, slots=True)
class Filter:
    """Which jobs are meant. No states, queues or tasks mean any; `before` is an id: only older ones."""

    states: Sequence[State] = ()
    queues: Sequence[str] = ()
    tasks: Sequence[str] = ()
    limit: int = 50
    before: int | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """One step of a search. `ids`: the newest first. `before`: where the next step begins; None: there is nothing older.

    `is_partial`: hosts hold more than `MAX_HELD` jobs, and it did not look at all of them.
    """

    ids: list[int]
    before: int | None
    looked: int
    is_partial: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found. `before`: it looked at no job older than this, and there may be more; None: these are all.

    `is_partial`: hosts hold more than `MAX_HELD` jobs, and it did not look at all of them.
    """

    jobs: list[JobView]
    before: int | None
    is_partial: bool = False


@dataclass(frozen=True, slots=True)
class Count:
    """How many jobs a filter means; `complete` is False when there may be more."""

    jobs: int
    complete: bool


@dataclass(frozen=True, slots=True)
class QueueView:
    """A queue and its counts. `oldest_ready`: seconds the longest waiting ready job has waited, among those counted.

    `capped` names the counts that stop at `MAX_COUNT`: there are more.
    """

    name: str
    paused: bool
    ready: int
    scheduled: int
    running: int
    dead: int
    oldest_ready: float | None
    workers: int | None  # per host, when an operator said so
    cluster_workers: int | None  # over all hosts, when an operator said so
    declared_cluster: int | None  # over all hosts, as the app says
    present: int  # that living hosts have told of
    hosts: int  # living ones that serve it
    throttled: float | None  # seconds it still cools down
    retention: float | None  # seconds that finished jobs are kept; None: as the setting says
    capped: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What a burst waits for, as one statement found it. `next`: where the next statement begins; None: that was all.

    `crowded`: queues whose first ready jobs all belong to other tasks. `is_partial`: there may be more that this statement
    did not look at, and the hosts or the leader will soon have dealt with what it looked at.
    """

    jobs: int
    is_partial: bool
    crowded: Sequence[str]
    next: tuple[str, int] | None

    @property
    def is_nothing(self) -> bool:
        """True if nothing is left that the burst could run."""
        return not self.jobs and not self.is_partial and not self.crowded and self.next is None


@dataclass(frozen=True, slots=True)
class Left:
    """Jobs of one task that a burst leaves in one queue, for one reason."""

    queue: str
    task: str
    reason: str
    count: int
    due: float | None  # seconds until the first of them; None: that is not known


@dataclass(frozen=True, slots=True)
class HostView:
    """One life of a master. `stale`: it has not renewed for its lease, its jobs are lost."""

    id: UUID
    name: str
    pid: int
    label: str
    app: str
    version: str
    state: str
    leader: bool
    queues: list[str]
    started_at: datetime
    renewed_at: datetime
    lease: float
    stale: bool
    workers: int
    running: int
    metrics: str  # the address of /metrics; empty: off


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker process as of its host's last renewal; `lost` with its host. `since`: seconds in its state."""

    host: UUID
    host_name: str
    queue: str
    slot: int
    pid: int
    state: str
    job_id: int | None
    task: str | None
    since: float | None
    jobs: int | None
    label: str  # of its host
    host_pid: int  # of its master: two hosts of one machine have the same name


@dataclass(frozen=True, slots=True)
class Other:
    """A host that holds jobs. `silent`: seconds since it renewed; after `lease` they are lost."""

    id: UUID
    name: str
    pid: int
    jobs: int
    silent: float
    lease: float


def get(job_id: int) -> Query[JobView | None]:
    return Query(_GET, {"id": job_id}, lambda rows: _job(rows[0]) if rows else None)


def attempts(job_id: int) -> Query[list[AttemptView]]:
    """The attempts of a job that did not succeed, the first one first; of very many the last ones."""
    params = {"id": job_id, "most": MAX_ATTEMPTS}
    return Query(_ATTEMPTS, params, lambda rows: [_attempt(row) for row in rows])


def many(ids: Sequence[int], states: Sequence[State] = ()) -> Query[list[JobView]]:
    """The jobs with these ids that are in one of these states, the newest first."""
    params = {"ids": list(ids), "states": [str(state) for state in states] or None}
    return Query(_FIND, params, lambda rows: [_job(row) for row in rows])


def search(where: Filter, look: int) -> Query[Page]:
    """One step: the first `limit` of the jobs that a filter means, among the next `look` jobs."""

    def read(rows: list[tuple[Any, ...]]) -> Page:
        ((ids, lowest, looked, is_partial),) = rows
        before = ids[-1] if len(ids) >= where.limit else lowest if looked >= look else None
        return Page(ids, before, looked, is_partial)

    return Query(_SEARCH, {**_params(where), "look": look}, read)


def pages(ask: Ask, where: Filter, max_looked: int | None = None) -> Iterator[Page]:
    """The steps of a search, each a bounded statement, up to the oldest job or until `max_looked` were looked at."""
    is_filtered = bool(where.states or where.queues or where.tasks)
    look = FIRST_LOOK if is_filtered else min(where.limit, LARGEST_LOOK)
    looked = 0
    before = where.before
    while True:
        page = ask(search(replace(where, before=before), look))
        yield page
        looked += page.looked
        before = page.before
        if before is None or (max_looked is not None and looked >= max_looked):
            return
        look = min(4 * look, LARGEST_LOOK) if is_filtered else look


def find(ask: Ask, where: Filter, max_looked: int = MAX_LOOKED) -> Found:
    """The first `limit` jobs that a filter means, the newest first."""
    ids: list[int] = []
    before = None
    is_partial = False
    for page in pages(ask, where, max_looked):
        ids += page.ids
        before = page.before
        is_partial |= page.is_partial
        if len(ids) >= where.limit:
            ids = ids[: where.limit]
            before = ids[-1]
            break
    jobs = {job.id: job for at in range(0, len(ids), 500) for job in reversed(ask(many(ids[at : at + 500])))}
    return Found([jobs[one] for one in ids if one in jobs], before, is_partial)


def count(ask: Ask, where: Filter, max_looked: int = MAX_LOOKED) -> Count:
    """How many jobs a filter means, up to `MAX_COUNT`."""
    jobs = 0
    for page in pages(ask, replace(where, limit=MAX_COUNT + 1), max_looked):
        jobs += len(page.ids)
        if jobs > MAX_COUNT:
            return Count(MAX_COUNT, complete=False)
        if page.before is None:
            return Count(jobs, complete=not page.is_partial)
    return Count(jobs, complete=False)


def queues() -> Query[list[QueueView]]:
    return Query(_QUEUES, {"most": MAX_COUNT}, lambda rows: [QueueView(*row) for row in rows])


def hosts() -> Query[list[HostView]]:
    return Query(_HOSTS, {}, lambda rows: [HostView(*row) for row in rows])


def workers() -> Query[list[WorkerView]]:
    return Query(_WORKERS, {}, lambda rows: [WorkerView(*row) for row in rows])


def unfinished(
    names: Sequence[str], tasks: Sequence[str], after: tuple[str, int] | None = None
) -> Query[Unfinished]:
    """Jobs of these queues that run, are due, or wait for a retry, and need only a host that knows these tasks.

    While `next` is not None and no job was found, ask again with it as `after`.
    """
    after_time, after_id = after or ("-infinity", 0)
    params = {
        "queues": list(names),
        "tasks": list(tasks),
        "after_time": after_time,
        "after_id": after_id,
        "look": UNFINISHED_LOOK,
        "held": MAX_HELD,
        "parents": MAX_ENDED_PARENTS,
    }

    def read(rows: list[tuple[Any, ...]]) -> Unfinished:
        ((jobs, is_partial, crowded, time, job_id),) = rows
        return Unfinished(int(jobs), is_partial, crowded, None if time is None else (time, job_id))

    return Query(_UNFINISHED, params, read)


def others(host: str, names: Sequence[str]) -> Query[list[Other]]:
    """The hosts but this one that hold jobs of these queues."""
    params = {"host": host, "queues": list(names)}
    return Query(_OTHERS, params, lambda rows: [Other(*row) for row in rows])


def left(names: Sequence[str], tasks: Sequence[str]) -> Query[Sequence[Left]]:
    """Why jobs of these queues stay where they are, for a host that knows these tasks."""
    params = {"queues": list(names), "tasks": list(tasks), "most": MOST_LEFT}
    return Query(_LEFT, params, lambda rows: [Left(*row) for row in rows])


def _job(row: tuple[Any, ...]) -> JobView:
    read = _read(row, _JOB_JSON)
    state = read[1] = State(read[1])
    if row[_ARGS] is None:  # this role may not see it
        read[_ARGS] = HIDDEN
        if state is State.SUCCEEDED:
            read[_RESULT] = HIDDEN
    return JobView(*read)


def _attempt(row: tuple[Any, ...]) -> AttemptView:
    return AttemptView(*_read(row, _ATTEMPT_JSON))


def _read(row: tuple[Any, ...], columns: frozenset[int]) -> list[Any]:
    return [value_of(value) if at in columns else value for at, value in enumerate(row)]


def _places(view: type[Any], *names: str) -> frozenset[int]:
    return frozenset(at for at, column in enumerate(fields(view)) if column.name in names)


#: Where the JSON columns stand in a row.
_JOB_JSON = _places(JobView, "args", "result", "progress", "checkpoint", "meta")
(_ARGS,), (_RESULT,) = _places(JobView, "args"), _places(JobView, "result")
_ATTEMPT_JSON = _places(AttemptView, "progress", "rungs")


def _params(where: Filter) -> dict[str, Any]:
    wanted = set(where.states) or set(State)
    live = wanted - set(TERMINAL)
    only_held = bool(live) and live <= set(HELD)
    return {
        "states": [str(state) for state in where.states] or None,
        "queues": list(where.queues) or None,
        "tasks": list(where.tasks) or None,
        "before": LARGEST_ID if where.before is None else where.before,
        "most": where.limit,
        "live": bool(live) and not only_held,
        "only_held": only_held,
        "held": MAX_HELD,
        "ended": State.SUCCEEDED in wanted,
        "failed": []
        if State.SUCCEEDED in wanted
        else sorted(map(str, wanted & {State.DEAD, State.CANCELLED})),
    }
