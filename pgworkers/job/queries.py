"""What people read: jobs, attempts, queues, hosts, workers; why a job does not run; the view of `pgworkers top`.

No query here changes a row. `overview` can send a notification, so that hosts refresh their view more often.

JSON columns travel as text, and each is decoded by itself. jsonb takes numbers of thousands of digits and thousands of
levels, which Python's reader or the printing of the value refuses; one such value must not hide all the others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from pgworkers.bounds import MAX_BIGINT
from pgworkers.job.model import HELD_STATES, TERMINAL_STATES, JobState
from pgworkers.postgres.statements import Query, Statement
from pgworkers.secret_arguments import hide_secrets

MAX_JSON_LEVELS = 200  #: levels that everything that prints a value can recurse through
_STRINGS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"')
_BRACKETS = re.compile(r"[\[\]{}]")
_SHOWN_CHARACTERS = 60


class UnreadableValue(str):
    """Stands for a value that is stored but cannot be read; its text says why."""

    __slots__ = ()


#: Stands for payload that the role of this session may not read.
HIDDEN_PAYLOAD = UnreadableValue("(hidden: this role sees no payload)")


def read_json(text: str | None) -> Any:
    """The Python value of a JSON column that was selected as text; `UnreadableValue` when there is none."""
    if text is None:
        return None
    if _too_deep(text):
        return _unreadable(text, f"nested deeper than {MAX_JSON_LEVELS} levels")
    try:
        return json.loads(text)
    except (
        ValueError
    ):  # the only thing that jsonb writes and this refuses: an integer of more than 4300 digits
        return _unreadable(text, "it holds a number with too many digits")


def _unreadable(text: str, why: str) -> UnreadableValue:
    begin = text[:_SHOWN_CHARACTERS] + "…" if len(text) > _SHOWN_CHARACTERS else text
    return UnreadableValue(f"(unreadable: {why}; {len(text):,} characters: {begin})")


def _too_deep(text: str) -> bool:
    if text.count("[") + text.count("{") <= MAX_JSON_LEVELS:
        return False
    depth = 0
    for bracket in _BRACKETS.findall(_STRINGS.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        if depth > MAX_JSON_LEVELS:
            return True
    return False


_QUERY_JOB = Statement.from_file(__file__, "query_job")
_QUERY_ATTEMPTS = Statement.from_file(__file__, "query_attempts")
_QUERY_JOBS = Statement.from_file(__file__, "query_jobs")
_QUERY_STATUSES = Statement.from_file(__file__, "query_statuses")
_QUERY_SEARCH = Statement.from_file(__file__, "query_search")
_QUERY_QUEUES = Statement.from_file(__file__, "query_queues")
_QUERY_HOSTS = Statement.from_file(__file__, "query_hosts")
_QUERY_WORKERS = Statement.from_file(__file__, "query_workers")

#: A question to the database: runs a query and returns its answer.
RunQuery = Callable[[Query[Any]], Any]
#: Jobs that one statement of a search looks at: few first, because the newest are what people look for.
FIRST_PAGE_ROWS = 1_000
LARGEST_PAGE_ROWS = 20_000
#: Jobs that a search looks at. One that found too few says where it ended, and can be continued there.
MAX_SEARCHED_ROWS = 1_000_000
#: Jobs that hosts hold, beyond which a search for them is not complete.
MAX_HELD_JOBS = 100_000
#: The largest count, of the jobs of a filter and of each column of a queue.
MAX_COUNTED_JOBS = 10_000
#: Post-mortems of a job that are shown: the last ones.
MAX_SHOWN_ATTEMPTS = 1_000


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as the view `pgworkers.jobs` shows it, live or finished.

    JSON columns are Python values, or Unreadable.

    Secret arguments are hidden. For a role that sees no payload, `args` and the `result` of a success are `HIDDEN_PAYLOAD`;
    `checkpoint` and `meta` are None.
    """

    id: int
    state: JobState
    queue: str
    task: str
    args: dict[str, Any] | UnreadableValue
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
class JobStatus:
    """What changes about a job while it is watched: its state and progress, without arguments and result."""

    id: int
    state: JobState
    attempt: int
    progress: Any
    verdict: str | None
    error: str | None


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
class JobFilter:
    """Which jobs are meant.

    No states, queues or tasks mean any; `before_id` is an id: only older ones.
    """

    states: Sequence[JobState] = ()
    queues: Sequence[str] = ()
    tasks: Sequence[str] = ()
    limit: int = 50
    before_id: int | None = None


@dataclass(frozen=True, slots=True)
class SearchPage:
    """One step of a search. `ids`: the newest first.

    `before_id`: where the next step begins; None: there is nothing older.

    `is_partial`: hosts hold more than `MAX_HELD_JOBS` jobs, and it did not look at all of them.
    """

    ids: list[int]
    before_id: int | None
    rows_read: int
    is_partial: bool = False


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search found.

    `before_id`: it looked at no job older than this, and there may be more; None: these are all.

    `is_partial`: hosts hold more than `MAX_HELD_JOBS` jobs, and it did not look at all of them.
    """

    jobs: list[JobView]
    before_id: int | None
    is_partial: bool = False


@dataclass(frozen=True, slots=True)
class JobCount:
    """How many jobs a filter means; `is_complete` is False when there may be more."""

    jobs: int
    is_complete: bool


@dataclass(frozen=True, slots=True)
class QueueView:
    """A queue and its counts.

    `oldest_ready`: seconds the longest waiting ready job has waited, among those counted.

    `capped` names the counts that stop at `MAX_COUNTED_JOBS`: there are more.
    """

    name: str
    paused: bool
    ready: int
    scheduled: int
    running: int
    dead: int
    oldest_ready: float | None
    workers: int | None  # per host, if an operator set it
    cluster_workers: int | None  # over all hosts, if an operator set it
    declared_cluster_workers: int | None  # over all hosts, as the app declares
    present: int  # that live hosts have reported
    hosts: int  # living ones that serve it
    throttled: float | None  # seconds it still cools down
    retention: float | None  # seconds that finished jobs are kept; None: as the setting says
    capped: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class HostView:
    """One life of a master. `is_stale`: it has not renewed for its lease, its jobs are lost."""

    id: UUID
    name: str
    pid: int
    label: str
    app: str
    version: str
    state: str
    is_leader: bool
    queues: list[str]
    started_at: datetime
    renewed_at: datetime
    lease: float
    is_stale: bool
    workers: int
    running: int
    metrics: str  # the address of /metrics; empty: off


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker process as of its host's last renewal; `lost` with its host.

    `since`: seconds in its state.
    """

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


def get_job(job_id: int) -> Query[JobView | None]:
    return Query(_QUERY_JOB, {"id": job_id}, lambda rows: _read_job(rows[0]) if rows else None)


def job_attempts(job_id: int) -> Query[list[AttemptView]]:
    """The attempts of a job that did not succeed, the first one first; of very many the last ones."""
    params = {"id": job_id, "max_rows": MAX_SHOWN_ATTEMPTS}
    return Query(_QUERY_ATTEMPTS, params, lambda rows: [_read_attempt(row) for row in rows])


def jobs_by_id(ids: Sequence[int], states: Sequence[JobState] = ()) -> Query[list[JobView]]:
    """The jobs with these ids that are in one of these states, the newest first."""
    params = {"ids": list(ids), "states": [str(state) for state in states] or None}
    return Query(_QUERY_JOBS, params, lambda rows: [_read_job(row) for row in rows])


def job_statuses(ids: Sequence[int]) -> Query[dict[int, JobStatus]]:
    """State and progress of these jobs, by id. A job that is both live and finished counts as live."""

    def read(rows: list[tuple[Any, ...]]) -> dict[int, JobStatus]:
        found: dict[int, JobStatus] = {}
        for job_id, state, attempt, progress, verdict, error in rows:
            status = JobStatus(
                id=job_id,
                state=JobState(state),
                attempt=attempt,
                progress=read_json(progress),
                verdict=verdict,
                error=error,
            )
            found.setdefault(job_id, status)
        return found

    return Query(_QUERY_STATUSES, {"ids": list(ids)}, read)


def search_page(where: JobFilter, max_rows: int) -> Query[SearchPage]:
    """One step: the first `limit` of the jobs that a filter means, among the next `max_rows` jobs."""

    def read(rows: list[tuple[Any, ...]]) -> SearchPage:
        ((ids, lowest, looked, is_partial),) = rows
        before = ids[-1] if len(ids) >= where.limit else lowest if looked >= max_rows else None
        return SearchPage(ids, before, looked, is_partial)

    return Query(_QUERY_SEARCH, {**_search_params(where), "max_rows": max_rows}, read)


def search_pages(ask: RunQuery, where: JobFilter, max_looked: int | None = None) -> Iterator[SearchPage]:
    """The steps of a search, each a bounded statement, up to the oldest job or until `max_looked` were looked at."""
    is_filtered = bool(where.states or where.queues or where.tasks)
    max_rows = FIRST_PAGE_ROWS if is_filtered else min(where.limit, LARGEST_PAGE_ROWS)
    looked = 0
    before = where.before_id
    while True:
        page = ask(search_page(replace(where, before_id=before), max_rows))
        yield page
        looked += page.rows_read
        before = page.before_id
        if before is None or (max_looked is not None and looked >= max_looked):
            return
        max_rows = min(4 * max_rows, LARGEST_PAGE_ROWS) if is_filtered else max_rows


def find_jobs(ask: RunQuery, where: JobFilter, max_looked: int = MAX_SEARCHED_ROWS) -> SearchResult:
    """The first `limit` jobs that a filter means, the newest first."""
    ids: list[int] = []
    before = None
    is_partial = False
    for page in search_pages(ask, where, max_looked):
        ids += page.ids
        before = page.before_id
        is_partial |= page.is_partial
        if len(ids) >= where.limit:
            ids = ids[: where.limit]
            before = ids[-1]
            break
    jobs = {
        job.id: job for at in range(0, len(ids), 500) for job in reversed(ask(jobs_by_id(ids[at : at + 500])))
    }
    return SearchResult([jobs[one] for one in ids if one in jobs], before, is_partial)


def count_jobs(ask: RunQuery, where: JobFilter, max_looked: int = MAX_SEARCHED_ROWS) -> JobCount:
    """How many jobs a filter means, up to `MAX_COUNTED_JOBS`."""
    jobs = 0
    for page in search_pages(ask, replace(where, limit=MAX_COUNTED_JOBS + 1), max_looked):
        jobs += len(page.ids)
        if jobs > MAX_COUNTED_JOBS:
            return JobCount(MAX_COUNTED_JOBS, is_complete=False)
        if page.before_id is None:
            return JobCount(jobs, is_complete=not page.is_partial)
    return JobCount(jobs, is_complete=False)


def list_queues() -> Query[list[QueueView]]:
    return Query(
        _QUERY_QUEUES, {"max_count": MAX_COUNTED_JOBS}, lambda rows: [QueueView(*row) for row in rows]
    )


def list_hosts() -> Query[list[HostView]]:
    return Query(_QUERY_HOSTS, {}, lambda rows: [HostView(*row) for row in rows])


def list_workers() -> Query[list[WorkerView]]:
    return Query(_QUERY_WORKERS, {}, lambda rows: [WorkerView(*row) for row in rows])


def _read_job(row: tuple[Any, ...]) -> JobView:
    read = _read_json_columns(row, _JOB_JSON)
    state = read[1] = JobState(read[1])
    read[_ARGS] = hide_secrets(read[_ARGS])
    if row[_ARGS] is None:  # this role may not see it
        read[_ARGS] = HIDDEN_PAYLOAD
        if state is JobState.SUCCEEDED:
            read[_RESULT] = HIDDEN_PAYLOAD
    return JobView(*read)


def _read_attempt(row: tuple[Any, ...]) -> AttemptView:
    return AttemptView(*_read_json_columns(row, _ATTEMPT_JSON))


def _read_json_columns(row: tuple[Any, ...], columns: frozenset[int]) -> list[Any]:
    return [read_json(value) if at in columns else value for at, value in enumerate(row)]


def _column_positions(view: type[Any], *names: str) -> frozenset[int]:
    return frozenset(at for at, column in enumerate(fields(view)) if column.name in names)


#: Where the JSON columns stand in a row.
_JOB_JSON = _column_positions(JobView, "args", "result", "progress", "checkpoint", "meta")
(_ARGS,), (_RESULT,) = _column_positions(JobView, "args"), _column_positions(JobView, "result")
_ATTEMPT_JSON = _column_positions(AttemptView, "progress", "rungs")


def _search_params(where: JobFilter) -> dict[str, Any]:
    wanted = set(where.states) or set(JobState)
    live = wanted - set(TERMINAL_STATES)
    only_held = bool(live) and live <= set(HELD_STATES)
    return {
        "states": [str(state) for state in where.states] or None,
        "queues": list(where.queues) or None,
        "tasks": list(where.tasks) or None,
        "before": MAX_BIGINT if where.before_id is None else where.before_id,
        "limit": where.limit,
        "live": bool(live) and not only_held,
        "only_held": only_held,
        "held": MAX_HELD_JOBS,
        "ended": JobState.SUCCEEDED in wanted,
        "failed": []
        if JobState.SUCCEEDED in wanted
        else sorted(map(str, wanted & {JobState.DEAD, JobState.CANCELLED})),
    }


_QUERY_JOB_SITUATION = Statement.from_file(__file__, "query_job_situation")


@dataclass(frozen=True, slots=True)
class JobSituation:
    """The surroundings of one job.

    `host`, `worker`, `pid`: the process that holds it, as its host last reported.
    """

    is_task_known: bool = True  # some deploy has declared its task
    is_queue_paused: bool = False
    throttled_seconds: float | None = None  # seconds until its queue is cool
    operator_workers: int | None = None  # what an operator set for the queue; 0: nothing runs
    living_hosts: int = 1  # that are alive
    serving_hosts: int = 1  # of these, the ones that serve its queue
    able_hosts: int = 1  # of these, the ones whose app has its task
    free_task_slots: int | None = None  # slots left under the limit of its task; None: no limit
    free_key_slots: int | None = None
    parent_count: int = 0  # jobs it waits for,
    first_parents: Sequence[str] = ()  # the first of them: "17 running render"
    batch_id: int | None = None  # that it comes after
    is_held: bool = False  # it has no time of its own
    host: str | None = None
    worker: str | None = None
    pid: int | None = None
    is_suspended: bool = False  # an operator has suspended its process
    failing_host: str | None = None  # a host on which workers of its queue cannot start,
    failing_error: str | None = None  # why,
    traceback: str | None = None  # and where in the app


def job_situation(job_id: int) -> Query[JobSituation]:
    return Query(
        _QUERY_JOB_SITUATION, {"id": job_id}, lambda rows: JobSituation(*rows[0]) if rows else JobSituation()
    )


_QUERY_OVERVIEW = Statement.from_file(__file__, "query_overview")


@dataclass(frozen=True, slots=True)
class HostOverview:
    """One life of a master.

    `age`: seconds since it wrote its view; `is_lost`: longer than its lease.
    """

    id: str
    name: str
    pid: int
    label: str
    app: str
    version: str
    state: str
    is_leader: bool
    queues: list[str]
    load: float | None
    cores: int | None
    age: float
    is_lost: bool
    problems: dict[str, tuple[str, str]] = field(default_factory=dict)  # by queue: error and traceback


@dataclass(frozen=True, slots=True)
class WorkerOverview:
    """A worker as its host wrote it `HostOverview.age` ago.

    Times in seconds, sizes in bytes, `cpu` in percent of a core.
    """

    host: str
    queue: str
    slot: int
    pid: int
    state: str
    job: int | None
    task: str | None
    since: float | None
    jobs: int | None
    attempt: int | None
    max_attempts: int | None
    running: float | None
    left: float | None
    cpu: float | None
    rss: int | None
    is_stalled: bool | None
    stop_reason: str | None
    version: str | None
    progress: Any


def overview(
    limit: int, *, should_notify_hosts: bool
) -> Query[tuple[list[HostOverview], list[WorkerOverview]]]:
    """All hosts and workers, at most `limit` workers: idle ones are cut first.

    `should_notify_hosts`: hosts refresh their view each second for a while.
    """
    return Query(_QUERY_OVERVIEW, {"limit": limit, "watch": should_notify_hosts}, _read_overview)


def _read_overview(rows: list[tuple[Any, ...]]) -> tuple[list[HostOverview], list[WorkerOverview]]:
    hosts: dict[str, HostOverview] = {}
    workers: list[WorkerOverview] = []
    for row in rows:
        if row[0] not in hosts:
            hosts[row[0]] = HostOverview(*(*row[:13], _read_problems(read_json(row[13]))))
        if row[14] is not None:
            workers.append(WorkerOverview(*(row[0], *row[14:31], read_json(row[31]))))
    return list(hosts.values()), workers


def _read_problems(value: Any) -> dict[str, tuple[str, str]]:
    """Whatever is in the column: only a host writes it, but a person may."""
    found = [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
    return {str(one.get("queue")): (str(one.get("error")), str(one.get("traceback"))) for one in found}
