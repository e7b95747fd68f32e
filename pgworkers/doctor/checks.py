"""The list of checks. Each runs by itself: if one fails or takes too long, that is a finding, and the next one runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import psycopg

from pgworkers.doctor import cluster, jobs, server, storage
from pgworkers.doctor.findings import (
    Finding,
    Thresholds,
    fail,
    psql_command,
    quote_identifier,
    skip,
    warn,
)
from pgworkers.errors import PermissionDenied
from pgworkers.events import QueueDepth
from pgworkers.job.gauges import count_depth, unknown_tasks
from pgworkers.job.hosts import lock_holders
from pgworkers.job.queries import MAX_COUNTED_JOBS, HostView
from pgworkers.job.queries import list_hosts as show_hosts
from pgworkers.postgres import migrate
from pgworkers.postgres.pooler import is_pooled
from pgworkers.postgres.statements import Query, run
from pgworkers.settings import Settings
from pgworkers.units import format_duration

T = TypeVar("T")


@dataclass
class DatabaseFacts:
    """The database that is checked. Facts that several checks need are queried once."""

    conn: psycopg.Connection[Any]
    schema: str
    settings: Settings
    open_second_session: server.OpenSession  # a second session, to the direct address if there is one
    thresholds: Thresholds = field(default_factory=Thresholds)
    psql: str = "psql"  # what reaches this database

    def query(self, query: Query[T]) -> T:
        """Run a query in a read-only transaction.

        Read-only is set for the transaction, not for the session: behind a pooler the next client gets the session.
        """
        self.conn.read_only = True
        with self.conn.transaction():
            return run(self.conn, self.schema, query)

    @cached_property
    def clocks(self) -> server.ClockOffset:
        return server.measure_clock(self.conn, self.schema)

    @cached_property
    def migration_states(self) -> list[migrate.MigrationStatus]:
        return migrate.status(self.conn, self.schema)

    @cached_property
    def hosts(self) -> list[HostView]:
        return self.query(show_hosts())

    @cached_property
    def depths(self) -> list[QueueDepth]:
        return self.query(count_depth(MAX_COUNTED_JOBS))

    @cached_property
    def tables(self) -> list[storage.TableStatistics]:
        return self.query(storage.table_statistics())

    @property
    def role(self) -> str:
        return self.conn.info.user

    def seconds_since(self, since: Callable[[HostView], float]) -> list[float]:
        """Seconds before the database's now."""
        return [self.now - since(host) for host in self.hosts]

    @cached_property
    def now(self) -> float:
        return self.query(server.database_time())

    @property
    def has_leader(self) -> bool:
        return self.leader_term is not None and self.leader_term.seconds_left > 0

    @cached_property
    def leader_term(self) -> cluster.LeaderTerm | None:
        return self.query(cluster.leader_term())


DatabaseCheck = Callable[[DatabaseFacts], list[Finding]]


def _check_pooler(database: DatabaseFacts) -> list[Finding]:
    direct = bool(database.settings.direct_dsn)
    if not direct:
        return server.check_pooler(is_pooled(database.conn), False, False)
    with database.open_second_session() as conn:
        return server.check_pooler(is_pooled(database.conn), True, is_pooled(conn))


def _check_encryption(database: DatabaseFacts) -> list[Finding]:
    links = [server.connection_security(database.conn)]
    if database.settings.direct_dsn:
        with database.open_second_session() as conn:
            links.append(server.connection_security(conn))
    return server.check_encryption(links)


def _check_hosts(database: DatabaseFacts) -> list[Finding]:
    ages = database.seconds_since(lambda host: host.renewed_at.timestamp())
    waiting = sum(one.ready for one in database.depths)
    return cluster.check_hosts(database.hosts, waiting, ages, database.thresholds)


def _check_stuck_jobs(database: DatabaseFacts) -> list[Finding]:
    s = database.settings
    return jobs.check_stuck_jobs(
        database.query(jobs.running_jobs()),
        s.ask_grace + s.raise_grace + 1.0 + s.renew_interval,
        database.thresholds,
    )


#: Of any database.
SERVER_CHECKS: dict[str, DatabaseCheck] = {
    "database": lambda p: server.check_version(p.conn.info.server_version, p.clocks, p.thresholds),
    "clock": lambda p: server.check_clock(p.clocks, p.thresholds),
    "tls": _check_encryption,
    "pooler": _check_pooler,
    "connections": lambda p: server.check_connections(p.query(server.connection_counts())),
    "notify": lambda p: server.check_notifications(
        p.conn, p.schema, p.open_second_session, p.settings.statement_timeout
    ),
    "transactions": lambda p: storage.check_transactions(
        p.query(storage.vacuum_blockers()), p.role, p.thresholds
    ),
    "wraparound": lambda p: server.check_transaction_ids(p.query(server.oldest_transaction_id())),
    "schema": lambda p: server.check_schema(p.schema, p.migration_states),
}
#: Only of one with our tables in it.
SCHEMA_CHECKS: dict[str, DatabaseCheck] = {
    "autovacuum": lambda p: storage.check_autovacuum(p.tables),
    "dead rows": lambda p: storage.check_dead_rows(
        p.tables, p.query(storage.recent_dead_rows(p.tables)), p.thresholds
    ),
    "indexes": lambda p: storage.check_indexes(p.query(storage.index_statistics()), p.thresholds),
    "hosts": _check_hosts,
    "leader": lambda p: cluster.check_leader(
        p.hosts,
        p.seconds_since(lambda host: host.started_at.timestamp()),
        p.leader_term,
        p.query(lock_holders()),
    ),
    "grants": lambda p: cluster.check_grants(p.query(cluster.grants_without_role())),
    "mutexes": lambda p: cluster.check_mutexes(p.query(cluster.missing_mutexes())),
    "starts": lambda p: cluster.check_starts(p.query(cluster.start_failures())),
    "queues": lambda p: cluster.check_unserved_queues(p.depths, p.hosts, p.thresholds),
    "paused": lambda p: cluster.check_paused_queues(p.query(cluster.paused_queues()), p.depths, p.thresholds),
    "tasks": lambda p: cluster.check_unknown_tasks(p.query(unknown_tasks([one.queue for one in p.depths]))),
    "schedules": lambda p: cluster.check_schedules(
        p.query(cluster.schedule_status()), p.has_leader, p.thresholds
    ),
    "stuck": _check_stuck_jobs,
    "backlog": lambda p: jobs.check_backlog(
        p.depths, p.query(jobs.worker_groups()), p.query(jobs.queue_rates()), p.thresholds
    ),
}


class DoctorConnectionLost(Exception):
    """The connection was lost during the checks."""


def run_checks(database: DatabaseFacts) -> Iterator[Finding]:
    """Run every check of the database. Raises DoctorConnectionLost if the connection is lost."""
    for name, check in SERVER_CHECKS.items():
        yield from _run_check(database, name, check)
    read = "migration_states" in database.__dict__
    fits = read and all(row.is_usable for row in database.migration_states)
    for name, check in SCHEMA_CHECKS.items():
        if fits:
            yield from _run_check(database, name, check)
        else:
            why = "is not the one this version speaks, or not there" if read else "could not be read"
            yield skip(name, f"the schema {why}")


def _run_check(database: DatabaseFacts, name: str, check: DatabaseCheck) -> Iterator[Finding]:
    try:
        found = check(database)
    except PermissionDenied as error:
        what = str(error).partition(";")[0]
        found = [
            fail(
                name,
                what,
                "with this login nothing can be enqueued, claimed or looked at",
                *_viewer_grants(database),
            )
        ]
    except psycopg.errors.InsufficientPrivilege as error:
        why = f"the role {database.role} may not look: {error.diag.message_primary or error}"
        found = [skip(name, why, *_viewer_grants(database))]
    except (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable):
        limit = format_duration(database.settings.statement_timeout)
        why = "the server is overloaded, or another session locks the tables; statements of hosts time out in the same way"
        fix = psql_command(
            "SELECT pid, usename, wait_event_type, wait_event, query FROM pg_stat_activity WHERE state = 'active'"
        )
        found = [warn(name, f"no answer within {limit}", why, fix)]
    except psycopg.OperationalError as error:
        if database.conn.closed or database.conn.broken:
            raise DoctorConnectionLost(str(error)) from error
        found = [fail(name, f"could not be looked at: {error}", "the database refused or lost a connection")]
    except psycopg.Error as error:
        found = [
            fail(
                name,
                f"could not be looked at: {error.diag.message_primary or error}",
                "the database refused the question",
            )
        ]
    schema = quote_identifier(database.schema).replace(
        "'", "'\"'\"'"
    )  # it comes to stand between single quotes
    for finding in found:
        fixes = tuple(
            fix.replace("{schema}", schema).replace("psql -c ", f"{database.psql} -c ", 1)
            for fix in finding.fix
        )
        yield replace(finding, fix=fixes)


def _viewer_grants(database: DatabaseFacts) -> tuple[str, str]:
    """The commands that let this login read: grant the viewer role, and create it if it is missing."""
    viewer = f"{database.schema}_viewer"
    return (
        psql_command(f"GRANT {quote_identifier(viewer)} TO {quote_identifier(database.role)}"),
        f"pgworkers migrate roles  # makes {viewer}",
    )
