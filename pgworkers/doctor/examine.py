"""The checks in their order, each alone: one that cannot look, or takes too long, says so and the next one goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import psycopg

from pgworkers.clock import show_seconds
from pgworkers.doctor import cluster, server, storage, work
from pgworkers.doctor.finding import MOST, Finding, Tolerance, fail, identifier, skip, sql, warn
from pgworkers.errors import PermissionDenied
from pgworkers.job.depth import depth
from pgworkers.job.lead import lock_holders
from pgworkers.job.show import HostView
from pgworkers.job.show import hosts as show_hosts
from pgworkers.job.strangers import strangers
from pgworkers.postgres import migrate
from pgworkers.postgres.connect import is_pooled
from pgworkers.postgres.statements import Query, run
from pgworkers.settings import Settings
from pgworkers.sightings import QueueDepth

T = TypeVar("T")


@dataclass
class Patient:
    """The database under examination. What several checks need is asked for once."""

    conn: psycopg.Connection[Any]
    schema: str
    settings: Settings
    listen: server.Connect  # a second session, to the direct address if there is one
    tolerance: Tolerance = field(default_factory=Tolerance)
    psql: str = "psql"  # what reaches this database

    def ask(self, query: Query[T]) -> T:
        """Whatever a check asks for: nothing is written. Said for each transaction, for behind a pooler a session that was
        made read-only would be the next one's who comes, and refuse its jobs."""
        self.conn.read_only = True
        with self.conn.transaction():
            return run(self.conn, self.schema, query)

    @cached_property
    def clocks(self) -> server.Clocks:
        return server.measure(self.conn, self.schema)

    @cached_property
    def states(self) -> list[migrate.MigrationStatus]:
        return migrate.status(self.conn, self.schema)

    @cached_property
    def hosts(self) -> list[HostView]:
        return self.ask(show_hosts())

    @cached_property
    def depths(self) -> list[QueueDepth]:
        return self.ask(depth(MOST))

    @cached_property
    def tables(self) -> list[storage.Table]:
        return self.ask(storage.tables())

    @property
    def role(self) -> str:
        return self.conn.info.user

    def ago(self, since: Callable[[HostView], float]) -> list[float]:
        """Seconds before the database's now."""
        return [self.now - since(host) for host in self.hosts]

    @cached_property
    def now(self) -> float:
        return self.ask(server.now())

    @property
    def leads(self) -> bool:
        return self.term is not None and self.term.left > 0

    @cached_property
    def term(self) -> cluster.Term | None:
        return self.ask(cluster.term())


Check = Callable[[Patient], list[Finding]]


def _pooler(patient: Patient) -> list[Finding]:
    direct = bool(patient.settings.direct_dsn)
    if not direct:
        return server.pooler(is_pooled(patient.conn), False, False)
    with patient.listen() as conn:
        return server.pooler(is_pooled(patient.conn), True, is_pooled(conn))


def _encryption(patient: Patient) -> list[Finding]:
    links = [server.link(patient.conn)]
    if patient.settings.direct_dsn:
        with patient.listen() as conn:
            links.append(server.link(conn))
    return server.encryption(links)


def _hosts(patient: Patient) -> list[Finding]:
    ages = patient.ago(lambda host: host.renewed_at.timestamp())
    waiting = sum(one.ready for one in patient.depths)
    return cluster.hosts(patient.hosts, waiting, ages, patient.tolerance)


def _stuck(patient: Patient) -> list[Finding]:
    s = patient.settings
    return work.stuck(
        patient.ask(work.running()), s.ask_grace + s.raise_grace + 1.0 + s.renew, patient.tolerance
    )


#: Of any database.
SERVER: dict[str, Check] = {
    "database": lambda p: server.version(p.conn.info.server_version, p.clocks, p.tolerance),
    "clock": lambda p: server.clock(p.clocks, p.tolerance),
    "tls": _encryption,
    "pooler": _pooler,
    "connections": lambda p: server.room(p.ask(server.connections())),
    "notify": lambda p: server.notifications(p.conn, p.schema, p.listen, p.settings.statement_timeout),
    "transactions": lambda p: storage.transactions(p.ask(storage.horizon()), p.role, p.tolerance),
    "wraparound": lambda p: server.ids(p.ask(server.oldest())),
    "schema": lambda p: server.schema(p.schema, p.states),
}
#: Only of one with our tables in it.
TABLES: dict[str, Check] = {
    "autovacuum": lambda p: storage.autovacuum(p.tables),
    "dead rows": lambda p: storage.dead_rows(p.tables, p.ask(storage.fresh(p.tables)), p.tolerance),
    "indexes": lambda p: storage.index_health(p.ask(storage.indexes()), p.tolerance),
    "hosts": _hosts,
    "leader": lambda p: cluster.leader(
        p.hosts, p.ago(lambda host: host.started_at.timestamp()), p.term, p.ask(lock_holders())
    ),
    "grants": lambda p: cluster.grants(p.ask(cluster.stray_grants())),
    "mutexes": lambda p: cluster.mutexes(p.ask(cluster.missing_mutexes())),
    "starts": lambda p: cluster.starts(p.ask(cluster.unstarted())),
    "queues": lambda p: cluster.unserved(p.depths, p.hosts, p.tolerance),
    "paused": lambda p: cluster.paused(p.ask(cluster.pauses()), p.depths, p.tolerance),
    "tasks": lambda p: cluster.unknown(p.ask(strangers([one.queue for one in p.depths]))),
    "schedules": lambda p: cluster.schedules(p.ask(cluster.ticking()), p.leads, p.tolerance),
    "stuck": _stuck,
    "backlog": lambda p: work.backlog(p.depths, p.ask(work.crews()), p.ask(work.paces()), p.tolerance),
}


class ConnectionLost(Exception):
    """The database went away in the middle."""


def examine(patient: Patient) -> Iterator[Finding]:
    """Every check of the database; ConnectionLost when it goes away."""
    for name, check in SERVER.items():
        yield from _alone(patient, name, check)
    read = "states" in patient.__dict__
    fits = read and all(row.is_usable for row in patient.states)
    for name, check in TABLES.items():
        if fits:
            yield from _alone(patient, name, check)
        else:
            why = "is not the one this version speaks, or not there" if read else "could not be read"
            yield skip(name, f"the schema {why}")


def _alone(patient: Patient, name: str, check: Check) -> Iterator[Finding]:
    try:
        found = check(patient)
    except PermissionDenied as error:
        what = str(error).partition(";")[0]
        found = [
            fail(
                name, what, "with this login nothing can be enqueued, claimed or looked at", *_grants(patient)
            )
        ]
    except psycopg.errors.InsufficientPrivilege as error:
        why = f"the role {patient.role} may not look: {error.diag.message_primary or error}"
        found = [skip(name, why, *_grants(patient))]
    except (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable):
        limit = show_seconds(patient.settings.statement_timeout)
        why = "the server is overloaded, or somebody locks the tables; the statements of hosts are cut off the same way"
        fix = sql(
            "SELECT pid, usename, wait_event_type, wait_event, query FROM pg_stat_activity WHERE state = 'active'"
        )
        found = [warn(name, f"no answer within {limit}", why, fix)]
    except psycopg.OperationalError as error:
        if patient.conn.closed or patient.conn.broken:
            raise ConnectionLost(str(error)) from error
        found = [fail(name, f"could not be looked at: {error}", "the database refused or lost a connection")]
    except psycopg.Error as error:
        found = [
            fail(
                name,
                f"could not be looked at: {error.diag.message_primary or error}",
                "the database refused the question",
            )
        ]
    schema = identifier(patient.schema).replace("'", "'\"'\"'")  # it comes to stand between single quotes
    for finding in found:
        fixes = tuple(
            fix.replace("{schema}", schema).replace("psql -c ", f"{patient.psql} -c ", 1)
            for fix in finding.fix
        )
        yield replace(finding, fix=fixes)


def _grants(patient: Patient) -> tuple[str, str]:
    """What lets this login look: the role of viewers, and how it is made where there is none."""
    viewer = f"{patient.schema}_viewer"
    return (
        sql(f"GRANT {identifier(viewer)} TO {identifier(patient.role)}"),
        f"pgworkers migrate roles  # makes {viewer}",
    )
