"""Hosts, the owners of leases: register, renew, idle queues, and leadership.

The row of a host stands for one run of one master. Its id is never used by another process. One UPDATE of this row renews
all leases of the host (`renew_lease`). `jobs_of_host` reads what the host holds according to the tables; its own memory may
know less, if the answer to a claim was lost.

An idle host says of which queues it wants to be notified (`set_idle_queues`). One idle host is notified of each new job. A
host that is full passes a notification on. See docs/adr/21.

Leadership is a term in one row, which only workers can write. An advisory lock is the fast path that shows that a session
has ended; any login can hold it. Correctness depends on neither, because each duty is idempotent. The term keeps hosts from
doing the same work twice, and keeps a login that holds the lock from stopping it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from pgworkers.job import sanitize
from pgworkers.job.claim import fence_params
from pgworkers.job.maintenance import Portion
from pgworkers.job.model import Fence
from pgworkers.postgres.migrate import known_migrations
from pgworkers.postgres.statements import Query, Statement

_HOST_REGISTER = Statement.from_file(__file__, "host_register")
_HOST_REMOVE = Statement.from_file(__file__, "host_remove")
_HOST_PRUNE = Statement.from_file(__file__, "host_prune")
#: No host has this id.
NO_HOST_ID = "00000000-0000-0000-0000-000000000000"


def register_host(
    host: str,
    name: str,
    pid: int,
    label: str,
    app: str,
    version: str,
    queues: Sequence[str],
    tasks: Sequence[str],
    lease_seconds: float,
    metrics: str = "",
) -> Query[None]:
    """Make this host known; its lease begins now."""
    params = {
        "host": host,
        "name": sanitize.one_line(name),
        "pid": pid,
        "label": sanitize.one_line(label),
        "app": sanitize.one_line(app),
        "version": sanitize.one_line(version),
        "queues": list(queues),
        "tasks": list(tasks),
        "lease": lease_seconds,
        "metrics": metrics,
        "newest_migration": known_migrations()[-1].version,
    }
    return Query(_HOST_REGISTER, params, lambda rows: None)


def remove_host(host: str) -> Query[bool]:
    """Forget this host. Whatever it still runs is lost at once."""
    return Query(_HOST_REMOVE, {"host": host}, bool)


def prune_hosts(
    portion: int, after: str | None = None, *, host_clock: datetime | None = None
) -> Query[Portion[str]]:
    """Forget hosts that have been gone for ten leases and own nothing; one portion of a walk.

    `host_clock`: the database's time as the host estimates it; the earlier of the two counts.
    """
    params = {"portion": portion, "after": after or NO_HOST_ID, "clock": host_clock}
    return Query(_HOST_PRUNE, params, lambda rows: Portion(rows[0][0], rows[0][1]))


_HOST_RENEW = Statement.from_file(__file__, "host_renew")


@dataclass(frozen=True, slots=True)
class ChangedDeadline:
    """A deadline that this host does not know yet, as a time of the database and as seconds until then."""

    fence: Fence
    deadline_epoch: float | None
    seconds_to_deadline: float | None


@dataclass(frozen=True, slots=True)
class RenewalAnswer:
    """What a host learns by renewing.

    `is_known` is False when its row is gone: it must register again.

    `is_alone`: no other host lives. `sharing_hosts`: how many other living hosts serve a queue of this one.
    `database_time`: the database's time. `longest_lease_seconds`: of all hosts' leases, in seconds.
    """

    is_known: bool
    is_alone: bool
    sharing_hosts: int
    database_time: datetime
    longest_lease_seconds: float
    cancel_requests: list[Fence]
    lost_leases: list[Fence]
    changed_deadlines: list[ChangedDeadline] = field(default_factory=list)
    rescued_leases: frozenset[Fence] = frozenset()  #: those of `lost_leases` that a leader rescued


def renew_lease(
    host: str,
    held: Sequence[Fence],
    state: str,
    workers_json: str,
    load: float | None = None,
    cores: int | None = None,
    problems_json: str = "[]",
    *,
    deadlines: Sequence[float | None] = (),
) -> Query[RenewalAnswer]:
    """Renew the row of `host`, which holds the leases `held`.

    `deadlines`: of each, as it was last read; None: none.
    """
    params = fence_params(held) | {
        "host": host,
        "deadlines": list(deadlines),
        "state": sanitize.one_line(state),
        "workers": sanitize.clean_json(workers_json) or "[]",
        "load": load,
        "cores": cores,
        "problems": sanitize.clean_json(problems_json) or "[]",
    }
    return Query(_HOST_RENEW, params, lambda rows: _read_renewal(held, rows))


def _read_renewal(held: Sequence[Fence], rows: list[tuple[Any, ...]]) -> RenewalAnswer:
    ((known, alone, at, longest, sharing),) = [(*row[1:5], row[8]) for row in rows if row[0] is None]
    jobs = [(held[row[0] - 1], *row[1:]) for row in rows if row[0] is not None]
    cancels = [fence for fence, fact, *_ in jobs if fact]
    lost = [fence for fence, fact, *_ in jobs if fact is None]
    deadlines = [ChangedDeadline(row[0], row[5], row[6]) for row in jobs if row[1] is False]
    rescued = frozenset(row[0] for row in jobs if row[7])
    return RenewalAnswer(known, alone, sharing, at, longest or 0.0, cancels, lost, deadlines, rescued)


_HOST_JOBS = Statement.from_file(__file__, "host_jobs")


class HeldJobs(NamedTuple):
    """The jobs, and up to which time of the database all that was claimed is among them or has ended."""

    fences: list[Fence]
    complete_until: datetime


def jobs_of_host(
    host: str, age: float, since: datetime | None = None, *, host_clock: datetime | None = None
) -> Query[HeldJobs]:
    """Every job this host claimed at least `age` seconds ago and has not ended; with `since`, of those claimed after it.

    `host_clock`: the database's time as the host estimates it; the age is counted by the earlier of the two.
    """
    return Query(_HOST_JOBS, {"host": host, "age": age, "since": since, "clock": host_clock}, _read_held_jobs)


def _read_held_jobs(rows: list[tuple[Any, ...]]) -> HeldJobs:
    (until,) = (row[3] for row in rows if row[0] is None)
    return HeldJobs(sorted(Fence(*row[:3]) for row in rows if row[0] is not None), until)


_HOST_SET_IDLE = Statement.from_file(__file__, "host_set_idle")
_HOST_PASS_ON = Statement.from_file(__file__, "host_pass_on")
_HOST_NOTIFY_ALL = Statement.from_file(__file__, "host_notify_all")


def set_idle_queues(host: str, queues: Iterable[str]) -> Query[frozenset[str]]:
    """Let `host` be notified of new jobs of exactly these queues.

    Answers those for which no other host sleeps.
    """
    return Query(_HOST_SET_IDLE, {"host": host, "queues": sorted(queues)}, _read_queue_names)


def pass_on_notification(host: str, queues: Iterable[str], tasks: Iterable[str]) -> Query[None]:
    """Mark a full host as not idle, and notify another host that knows these tasks of each queue."""
    params = {"host": host, "queues": sorted(queues), "tasks": sorted(tasks)}
    return Query(_HOST_PASS_ON, params, lambda rows: None)


def notify_all_idle_hosts(host: str, queues: Iterable[str]) -> Query[None]:
    """For a while, let every sleeping host be notified of new jobs of these queues."""
    return Query(_HOST_NOTIFY_ALL, {"host": host, "queues": sorted(queues)}, lambda rows: None)


def _read_queue_names(rows: list[tuple[Any, ...]]) -> frozenset[str]:
    return frozenset(row[0] for row in rows)


_LEADER_TRY = Statement.from_file(__file__, "leader_try")
_LEADER_RENEW = Statement.from_file(__file__, "leader_renew")
_LEADER_RESIGN = Statement.from_file(__file__, "leader_resign")
_LEADER_DEPOSE = Statement.from_file(__file__, "leader_depose")
_LEADER_LOCK_HOLDERS = Statement.from_file(__file__, "leader_lock_holders")


@dataclass(frozen=True, slots=True)
class ServerSession:
    """A session of the server: its process, and when it began, because process numbers are used again."""

    pid: int
    start: datetime


@dataclass(frozen=True, slots=True)
class LeadershipAnswer:
    """The answer to a try for the term."""

    term: int | None  #: of this host now; None: another host leads
    has_lock: bool  #: this session holds the lock
    is_lock_held_by_former: bool  #: the session that led until now, or still leads, holds the lock
    former_session: ServerSession | None  #: that led until now, or still leads
    was_expired: bool  #: the former term was taken because it had run out


@dataclass(frozen=True, slots=True)
class LockHolder:
    """A session that holds the leader's lock and does not hold the term."""

    pid: int
    user: str
    application: str


def try_lead(
    host: str, seconds: float, *, may_depose: bool, host_clock: datetime | None = None
) -> Query[LeadershipAnswer]:
    """Take the term for `seconds` if it is free, without waiting.

    The host's row then says that it leads.

    `may_depose`: also from a leader that has not renewed its term in time. `host_clock`: the database's time as the host
    estimates it; the earlier of the two counts.
    """
    params = {"host": host, "seconds": seconds, "may_depose": may_depose, "clock": host_clock}
    return Query(_LEADER_TRY, params, _read_leadership)


def renew_term(host: str, term: int, seconds: float) -> Query[bool | None]:
    """Renew the term.

    Returns whether this session holds the lock, too; None: the term is another host's.
    """
    params = {"host": host, "term": term, "seconds": seconds}
    return Query(_LEADER_RENEW, params, lambda rows: bool(rows[0][0]) if rows else None)


def resign(host: str, term: int) -> Query[None]:
    """Give up the term, the lock, and the flag on the host's row."""
    return Query(_LEADER_RESIGN, {"host": host, "term": term}, lambda rows: None)


def depose(session: ServerSession) -> Query[bool]:
    """End the session of a leader whose term was taken.

    False: it is gone, or of a role that this one may not end.
    """
    return Query(_LEADER_DEPOSE, {"pid": session.pid, "session_start": session.start}, bool)


def lock_holders() -> Query[list[LockHolder]]:
    """The sessions that hold the lock without leading."""
    return Query(_LEADER_LOCK_HOLDERS, {}, lambda rows: [LockHolder(*row) for row in rows])


def _read_leadership(rows: list[tuple[Any, ...]]) -> LeadershipAnswer:
    ((term, is_locked, leader_is_locked, pid, session_start, ran_out, _),) = rows
    former = ServerSession(pid, session_start) if pid is not None else None
    return LeadershipAnswer(
        term, bool(is_locked), bool(leader_is_locked), former, term is not None and bool(ran_out)
    )
