"""Tables and indexes, and who keeps vacuum from cleaning them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from pgworkers.clock import show_seconds, show_size
from pgworkers.doctor.finding import Finding, Tolerance, fail, identifier, ok, skip, sql, warn
from pgworkers.observe.escape import command
from pgworkers.postgres.migrate import known
from pgworkers.postgres.statements import Query, Statement

_HORIZON = Statement.beside(__file__, "horizon")
_TABLES = Statement.beside(__file__, "tables")
_FRESH = Statement.beside(__file__, "fresh")
_INDEXES = Statement.beside(__file__, "indexes")

#: Bytes that an entry of our indexes takes at most, with its share of a page, and that a small index may take anyway.
_ENTRY, _SMALL = 80, 1 << 20
#: Jobs that are looked at for the age of dead rows.
_LOOK = 250_000
_MADE = re.compile(r"CREATE (?:UNIQUE )?INDEX (\w+)")
_LITERAL = re.compile(r"'(?:[^']|'')*(?:'|\Z)|\$(\w*)\$.*?(?:\$\1\$|\Z)", re.DOTALL)
_JOB = re.compile(r" job (\d+) lease \d+$")


@dataclass(frozen=True, slots=True)
class Holder:
    """Who may hold back vacuum. `transactions`: how many have begun since, None: it holds back nothing yet."""

    kind: str  # hidden, session, prepared, slot, standby
    name: str
    pid: int | None = None
    user: str | None = None
    application: str | None = None
    state: str | None = None
    age: float | None = None
    transactions: int | None = None
    query_age: float | None = None
    query: str | None = None


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    live: int
    dead: int
    trigger: float  # dead rows that bring autovacuum
    enabled: bool
    vacuumed: float | None  # seconds ago
    daemon: bool  # autovacuum and its statistics are on


@dataclass(frozen=True, slots=True)
class Index:
    name: str
    table: str
    unique: bool
    valid: bool
    scans: int
    size: int
    entries: int | None  # None: nobody knows
    written: int  # to its table


def horizon() -> Query[list[Holder]]:
    return Query(_HORIZON, {}, lambda rows: [Holder(*row) for row in rows])


def tables() -> Query[list[Table]]:
    return Query(_TABLES, {}, lambda rows: [Table(*row) for row in rows])


def fresh(found: list[Table]) -> Query[int]:
    """Dead rows of `job`, among those that were found, for which autovacuum need not have come yet."""
    dead = sum(table.dead for table in found if table.name == "job")
    return Query(_FRESH, {"look": min(dead // 2 + 1, _LOOK)}, lambda rows: int(rows[0][0]))


def indexes() -> Query[list[Index]]:
    return Query(_INDEXES, {}, lambda rows: [Index(*row) for row in rows])


def transactions(found: list[Holder], role: str, tolerance: Tolerance) -> list[Finding]:
    """Everybody who has held back vacuum for longer than the patience; a failure after ten times that."""
    check = "transactions"
    hidden = next((int(holder.name) for holder in found if holder.kind == "hidden"), 0)
    bad = [finding for holder in found if (finding := _held(holder, tolerance)) is not None]
    if bad:
        return bad
    if hidden:
        why = f"the role {role} may not look into {hidden} of the other sessions"
        return [skip(check, why, sql(f'GRANT pg_read_all_stats TO "{role}"'))]
    oldest = max((holder.age for holder in found if holder.age is not None), default=0.0)
    return [ok(check, f"the oldest is {show_seconds(oldest)} old; nobody holds back vacuum", seconds=oldest)]


def _held(holder: Holder, tolerance: Tolerance) -> Finding | None:
    why = (
        "vacuum cannot remove any row that died since: every claim and finish leaves one, so the tables grow and "
        "claims become slower by the minute"
    )
    if holder.kind in ("slot", "standby"):
        behind = holder.transactions or 0
        if behind < tolerance.transactions:
            return None
        how = warn if behind < 100 * tolerance.transactions else fail
        if holder.kind == "slot":
            what = f"the {holder.state} replication slot {holder.name} holds back vacuum by {behind:,} transactions"
            fix = (
                sql(f"SELECT pg_drop_replication_slot('{holder.name}')")
                + "  # if nobody will come back for it"
            )
        else:
            what = (
                f"the standby {holder.name} (pid {holder.pid}) holds back vacuum by {behind:,} transactions"
            )
            fix = "end the long query on the standby, or set hot_standby_feedback = off there"
        return how("transactions", what, why, fix, transactions=behind)
    if holder.age is None or holder.age < tolerance.patience:
        return None
    how = warn if holder.age < 10 * tolerance.patience else fail
    facts = {"seconds": holder.age, "pid": holder.pid, "user": holder.user, "application": holder.application}
    if holder.kind == "prepared":
        what = f"the prepared transaction {holder.name} of {holder.user}, {show_seconds(holder.age)} old, holds back vacuum"
        gid = holder.name.replace("'", "''")
        return how(
            "transactions", what, why, sql(f"ROLLBACK PREPARED '{gid}'") + "  # or COMMIT PREPARED", **facts
        )
    pins = holder.transactions is not None
    what = (
        f"pid {holder.pid} (user {holder.user}, {holder.application or 'no application name'}, {holder.state}) has been "
        f"in a transaction for {show_seconds(holder.age)}" + (" and holds back vacuum" if pins else "")
    )
    if holder.query:
        what += f"; its last query, {show_seconds(holder.query_age or 0.0)} ago: {masked(holder.query)}"
    if not pins:
        why = "it holds its locks, and from its first write or snapshot on it holds back vacuum"
    fixes = [sql(f"SELECT pg_terminate_backend({holder.pid})")]
    job = _JOB.search(holder.application or "")
    if job is not None:
        fixes.insert(
            0, f"{command('jobs cancel', job[1])}  # its handler opened the transaction with ctx.connect()"
        )
    return how("transactions", what, why, *fixes, **facts)


def masked(query: str, most: int = 80) -> str:
    """The beginning of a query on one line, without the texts in it: they may be anybody's secrets."""
    line = " ".join(_LITERAL.sub("'…'", query).split())
    return line if len(line) <= most else line[: most - 1] + "…"


def dead_rows(found: list[Table], fresh: int, tolerance: Tolerance) -> list[Finding]:
    check, bad = "dead rows", []
    for table in found:
        overdue = table.dead - (fresh if table.name == "job" else 0)
        if overdue < tolerance.dead or overdue < tolerance.dead_ratio * table.trigger:
            continue
        last = "never" if table.vacuumed is None else f"{show_seconds(table.vacuumed)} ago"
        what = (
            f"{table.name} has {table.dead:,} dead rows and {table.live:,} live ones; it was vacuumed {last}"
        )
        why = f"autovacuum should have come at {table.trigger:,.0f}: somebody holds it back, or it cannot keep up"
        fix = sql(f"VACUUM (VERBOSE, ANALYZE) {{schema}}.{identifier(table.name)}")
        bad.append(warn(check, what, why, fix, table=table.name, dead=table.dead, live=table.live))
    most = max((table.dead for table in found), default=0)
    return bad or [ok(check, f"at most {most:,} in a table", dead=most)]


def autovacuum(found: list[Table]) -> list[Finding]:
    why = "a queue makes a dead row with every claim and every finish: without vacuum it becomes slower by the hour"
    if any(not table.daemon for table in found):
        fix = (
            sql("ALTER SYSTEM RESET autovacuum"),
            sql("ALTER SYSTEM RESET track_counts"),
            sql("SELECT pg_reload_conf()"),
        )
        return [fail("autovacuum", "autovacuum (or track_counts) is off on this server", why, *fix)]
    off = [table.name for table in found if not table.enabled]
    if off:
        fixes = (sql(f"ALTER TABLE {{schema}}.{identifier(name)} RESET (autovacuum_enabled)") for name in off)
        return [fail("autovacuum", f"autovacuum is off for {', '.join(off)}", why, *fixes)]
    return [ok("autovacuum", "on for every table")]


@cache
def shipped() -> frozenset[str]:
    """The names of the indexes that our migrations make."""
    return frozenset(name for migration in known() for name in _MADE.findall(migration.text))


def index_health(found: list[Index], tolerance: Tolerance) -> list[Finding]:
    check, bad = "indexes", []
    for name in sorted(shipped() - {index.name for index in found}):
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
        again = sql(f"REINDEX INDEX CONCURRENTLY {{schema}}.{identifier(index.name)}")
        if not index.valid:
            why = "a build that failed left it behind: it costs every write and answers nothing"
            bad.append(fail(check, f"the index {index.name} is not valid", why, again))
        elif index.entries is not None and index.size > max(
            tolerance.bloat, tolerance.bloat_ratio * max(_SMALL, index.entries * _ENTRY)
        ):
            what = f"{index.name} takes {show_size(index.size)} for about {index.entries:,} entries"
            why = "a claim reads pages that are almost empty"
            bad.append(warn(check, what, why, again, size=index.size, entries=index.entries))
        elif (
            index.name not in shipped()
            and not index.unique
            and not index.scans
            and index.written > tolerance.written
        ):
            what = f"{index.name} on {index.table} is not ours, and nobody has read it ({index.written:,} rows written)"
            why = "it makes every enqueue, claim and finish dearer, and may keep updates from staying on their page"
            bad.append(
                warn(
                    check,
                    what,
                    why,
                    sql(f"DROP INDEX CONCURRENTLY {{schema}}.{identifier(index.name)}"),
                    size=index.size,
                )
            )
    total = sum(index.size for index in found)
    return bad or [
        ok(check, f"{len(found)}, {show_size(total)} together; none bloated, unused or missing", size=total)
    ]
