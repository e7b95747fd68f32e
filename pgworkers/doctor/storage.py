"""Checks of tables and indexes, and of what keeps vacuum from cleaning them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from pgworkers.doctor.findings import (
    Finding,
    Thresholds,
    fail,
    ok,
    psql_command,
    quote_identifier,
    skip,
    warn,
)
from pgworkers.observe.escape import shell_command
from pgworkers.postgres.migrate import known_migrations
from pgworkers.postgres.statements import Query, Statement, query_records
from pgworkers.units import format_duration, format_size

_VACUUM_BLOCKERS = Statement.from_file(__file__, "storage_vacuum_blockers")
_TABLES = Statement.from_file(__file__, "storage_tables")
_RECENT_DEAD_ROWS = Statement.from_file(__file__, "storage_recent_dead_rows")
_INDEXES = Statement.from_file(__file__, "storage_indexes")

#: Bytes that an entry of our indexes takes at most, with its share of a page, and that a small index may take anyway.
_MAX_INDEX_ENTRY_BYTES, _SMALL_INDEX_BYTES = 80, 1 << 20
#: Jobs that are looked at for the age of dead rows.
_MAX_RECENT_JOBS = 250_000
_CREATED_INDEX = re.compile(r"CREATE (?:UNIQUE )?INDEX (\w+)")
_SQL_LITERAL = re.compile(r"'(?:[^']|'')*(?:'|\Z)|\$(\w*)\$.*?(?:\$\1\$|\Z)", re.DOTALL)
_JOB_APPLICATION_NAME = re.compile(r" job (\d+) lease \d+$")


class VacuumBlockerKind(StrEnum):
    HIDDEN = "hidden"  #: sessions that we may not look into; the name is their number
    SESSION = "session"
    PREPARED = "prepared"  #: a prepared transaction
    SLOT = "slot"  #: a replication slot
    STANDBY = "standby"  #: a standby with feedback


@dataclass(frozen=True, slots=True)
class VacuumBlocker:
    """What may hold back vacuum. `held_back_transactions` counts those that began since; None if it holds back nothing."""

    kind: VacuumBlockerKind
    name: str
    pid: int | None = None
    user: str | None = None
    application: str | None = None
    state: str | None = None
    age: float | None = None
    held_back_transactions: int | None = None
    query_age: float | None = None
    query: str | None = None


@dataclass(frozen=True, slots=True)
class TableStatistics:
    name: str
    live_rows: int
    dead_rows: int
    autovacuum_threshold: float  # dead rows that bring autovacuum
    is_autovacuum_enabled: bool
    seconds_since_vacuum: float | None  # seconds ago
    is_autovacuum_running: bool  # autovacuum and its statistics are on


@dataclass(frozen=True, slots=True)
class IndexStatistics:
    name: str
    table: str
    is_unique: bool
    is_valid: bool
    scans: int
    size_bytes: int
    entries: int | None  # None: unknown
    rows_written: int  # to its table


def vacuum_blockers() -> Query[list[VacuumBlocker]]:
    return query_records(_VACUUM_BLOCKERS, VacuumBlocker)


def table_statistics() -> Query[list[TableStatistics]]:
    return query_records(_TABLES, TableStatistics)


def recent_dead_rows(found: list[TableStatistics]) -> Query[int]:
    """Dead rows of `job`, among those that were found, for which autovacuum need not have come yet."""
    dead = sum(table.dead_rows for table in found if table.name == "job")
    return Query(
        _RECENT_DEAD_ROWS, {"max_rows": min(dead // 2 + 1, _MAX_RECENT_JOBS)}, lambda rows: int(rows[0][0])
    )


def index_statistics() -> Query[list[IndexStatistics]]:
    return query_records(_INDEXES, IndexStatistics)


def check_transactions(found: list[VacuumBlocker], role: str, tolerance: Thresholds) -> list[Finding]:
    """Report what has held back vacuum for longer than the threshold; fail after ten times that."""
    check = "transactions"
    hidden = next((int(holder.name) for holder in found if holder.kind == VacuumBlockerKind.HIDDEN), 0)
    bad = [finding for holder in found if (finding := _judge_vacuum_blocker(holder, tolerance)) is not None]
    if bad:
        return bad
    if hidden:
        why = f"the role {role} may not look into {hidden} of the other sessions"
        return [skip(check, why, psql_command(f'GRANT pg_read_all_stats TO "{role}"'))]
    oldest = max((holder.age for holder in found if holder.age is not None), default=0.0)
    return [
        ok(check, f"the oldest is {format_duration(oldest)} old; nothing holds back vacuum", seconds=oldest)
    ]


def _judge_vacuum_blocker(holder: VacuumBlocker, tolerance: Thresholds) -> Finding | None:
    why = (
        "vacuum cannot remove any row that died since: every claim and finish leaves one, so the tables grow and "
        "claims become slower by the minute"
    )
    if holder.kind in (VacuumBlockerKind.SLOT, VacuumBlockerKind.STANDBY):
        behind = holder.held_back_transactions or 0
        if behind < tolerance.held_back_transactions:
            return None
        how = warn if behind < 100 * tolerance.held_back_transactions else fail
        if holder.kind == VacuumBlockerKind.SLOT:
            what = f"the {holder.state} replication slot {holder.name} holds back vacuum by {behind:,} transactions"
            fix = (
                psql_command(f"SELECT pg_drop_replication_slot('{holder.name}')")
                + "  # if its owner will not finish it"
            )
        else:
            what = (
                f"the standby {holder.name} (pid {holder.pid}) holds back vacuum by {behind:,} transactions"
            )
            fix = "end the long query on the standby, or set hot_standby_feedback = off there"
        return how("transactions", what, why, fix, transactions=behind)
    if holder.age is None or holder.age < tolerance.warn_after_seconds:
        return None
    how = warn if holder.age < 10 * tolerance.warn_after_seconds else fail
    facts = {"seconds": holder.age, "pid": holder.pid, "user": holder.user, "application": holder.application}
    if holder.kind == VacuumBlockerKind.PREPARED:
        age = format_duration(holder.age)
        what = f"the prepared transaction {holder.name} of {holder.user}, {age} old, holds back vacuum"
        gid = holder.name.replace("'", "''")
        return how(
            "transactions",
            what,
            why,
            psql_command(f"ROLLBACK PREPARED '{gid}'") + "  # or COMMIT PREPARED",
            **facts,
        )
    pins = holder.held_back_transactions is not None
    what = (
        f"pid {holder.pid} (user {holder.user}, {holder.application or 'no application name'}, {holder.state}) has been "
        f"in a transaction for {format_duration(holder.age)}" + (" and holds back vacuum" if pins else "")
    )
    if holder.query:
        what += (
            f"; its last query, {format_duration(holder.query_age or 0.0)} ago: {mask_literals(holder.query)}"
        )
    if not pins:
        why = "it holds its locks, and from its first write or snapshot on it holds back vacuum"
    fixes = [psql_command(f"SELECT pg_terminate_backend({holder.pid})")]
    job = _JOB_APPLICATION_NAME.search(holder.application or "")
    if job is not None:
        fixes.insert(
            0,
            f"{shell_command('jobs cancel', job[1])}  # its handler opened the transaction with ctx.connect()",
        )
    return how("transactions", what, why, *fixes, **facts)


def mask_literals(query: str, max_characters: int = 80) -> str:
    """The beginning of a query on one line, without its literals, which may be secrets."""
    line = " ".join(_SQL_LITERAL.sub("'…'", query).split())
    return line if len(line) <= max_characters else line[: max_characters - 1] + "…"


def check_dead_rows(found: list[TableStatistics], fresh: int, tolerance: Thresholds) -> list[Finding]:
    check, bad = "dead rows", []
    for table in found:
        overdue = table.dead_rows - (fresh if table.name == "job" else 0)
        if overdue < tolerance.dead_rows or overdue < tolerance.dead_ratio * table.autovacuum_threshold:
            continue
        last = (
            "never"
            if table.seconds_since_vacuum is None
            else f"{format_duration(table.seconds_since_vacuum)} ago"
        )
        what = f"{table.name} has {table.dead_rows:,} dead rows and {table.live_rows:,} live ones; it was vacuumed {last}"
        threshold = f"{table.autovacuum_threshold:,.0f}"
        why = f"autovacuum should have come at {threshold}: something holds it back, or it cannot keep up"
        fix = psql_command(f"VACUUM (VERBOSE, ANALYZE) {{schema}}.{quote_identifier(table.name)}")
        bad.append(warn(check, what, why, fix, table=table.name, dead=table.dead_rows, live=table.live_rows))
    max_dead = max((table.dead_rows for table in found), default=0)
    return bad or [ok(check, f"at most {max_dead:,} in a table", dead=max_dead)]


def check_autovacuum(found: list[TableStatistics]) -> list[Finding]:
    why = "a queue makes a dead row with every claim and every finish: without vacuum it becomes slower by the hour"
    if any(not table.is_autovacuum_running for table in found):
        fix = (
            psql_command("ALTER SYSTEM RESET autovacuum"),
            psql_command("ALTER SYSTEM RESET track_counts"),
            psql_command("SELECT pg_reload_conf()"),
        )
        return [fail("autovacuum", "autovacuum (or track_counts) is off on this server", why, *fix)]
    off = [table.name for table in found if not table.is_autovacuum_enabled]
    if off:
        fixes = (
            psql_command(f"ALTER TABLE {{schema}}.{quote_identifier(name)} RESET (autovacuum_enabled)")
            for name in off
        )
        return [fail("autovacuum", f"autovacuum is off for {', '.join(off)}", why, *fixes)]
    return [ok("autovacuum", "on for every table")]


@cache
def shipped_indexes() -> frozenset[str]:
    """The names of the indexes that our migrations make."""
    return frozenset(
        name for migration in known_migrations() for name in _CREATED_INDEX.findall(migration.text)
    )


def check_indexes(found: list[IndexStatistics], tolerance: Thresholds) -> list[Finding]:
    check, bad = "indexes", []
    for name in sorted(shipped_indexes() - {index.name for index in found}):
        why = "a statement that needs it reads the whole table"
        bad.append(
            fail(
                check,
                f"the index {name} is missing",
                why,
                f"pgworkers migrate sql | grep -A2 'INDEX {name} '  # and run it",
            )
        )
    for index in found:
        reindex = psql_command(f"REINDEX INDEX CONCURRENTLY {{schema}}.{quote_identifier(index.name)}")
        if not index.is_valid:
            why = "a build that failed left it behind: it costs every write and answers nothing"
            bad.append(fail(check, f"the index {index.name} is not valid", why, reindex))
        elif index.entries is not None and index.size_bytes > max(
            tolerance.bloat_bytes,
            tolerance.bloat_ratio * max(_SMALL_INDEX_BYTES, index.entries * _MAX_INDEX_ENTRY_BYTES),
        ):
            what = f"{index.name} takes {format_size(index.size_bytes)} for about {index.entries:,} entries"
            why = "a claim reads pages that are almost empty"
            bad.append(warn(check, what, why, reindex, size=index.size_bytes, entries=index.entries))
        elif (
            index.name not in shipped_indexes()
            and not index.is_unique
            and not index.scans
            and index.rows_written > tolerance.unused_index_writes
        ):
            what = (
                f"{index.name} on {index.table} was not created by pgworkers, and has never been used "
                f"({index.rows_written:,} rows written)"
            )
            why = "it makes every enqueue, claim and finish slower, and can prevent HOT updates"
            bad.append(
                warn(
                    check,
                    what,
                    why,
                    psql_command(f"DROP INDEX CONCURRENTLY {{schema}}.{quote_identifier(index.name)}"),
                    size=index.size_bytes,
                )
            )
    total = sum(index.size_bytes for index in found)
    return bad or [
        ok(check, f"{len(found)}, {format_size(total)} together; none bloated, unused or missing", size=total)
    ]
