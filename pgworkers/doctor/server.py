"""Checks of the server: version, round trip, clock, pooler, schema, connections, notifications."""

from __future__ import annotations

import ipaddress
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql as identifiers

from pgworkers.clock import monotonic
from pgworkers.doctor.findings import Finding, Thresholds, fail, ok, psql_command, warn
from pgworkers.postgres.migrate import MigrationState, MigrationStatus
from pgworkers.postgres.statements import Query, Statement, run
from pgworkers.units import format_duration

_CONNECTIONS = Statement.from_file(__file__, "server_connections")
_CLOCK = Statement.from_file(__file__, "server_clock")
_NOTIFY = Statement.from_file(__file__, "server_notify")
_OLDEST_TRANSACTION_ID = Statement.from_file(__file__, "server_oldest_transaction_id")

#: Connections of one host, and what must be left so that another can start.
CONNECTIONS_PER_HOST = 4
FEW_CONNECTIONS_LEFT = 10
#: A queue of notifications to which nothing is added (notify.sql).
NOTIFICATION_QUEUE_FULL_RATIO = 0.9
#: Transaction ids that a database can use before it is vacuumed: at the last three million the server refuses to write.
MAX_TRANSACTION_IDS = (1 << 31) - 3_000_001
_CLOCK_SAMPLES = 5
OpenSession = Callable[[], psycopg.Connection[Any]]


@dataclass(frozen=True, slots=True)
class ConnectionCounts:
    """Limits and numbers of connections. A limit below 0 means no limit."""

    max_connections: int
    reserved: int
    connections: int
    max_of_database: int
    connections_of_database: int
    max_of_role: int
    connections_of_role: int
    role: str


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """The database's clock against this host's. Seconds."""

    round_trip_seconds: float
    database_ahead_seconds: float  # of the database
    uncertainty_seconds: float


def measure_clock(conn: psycopg.Connection[Any], schema: str) -> ClockOffset:
    """The best of a few round trips. The others only show that the machine is busy."""
    best: ClockOffset | None = None
    for _ in range(_CLOCK_SAMPLES):
        before, began = time.time(), monotonic()
        theirs = run(conn, schema, database_time())
        trip = monotonic() - began
        if best is None or trip < best.round_trip_seconds:
            best = ClockOffset(trip, theirs - (before + trip / 2), trip / 2)
    assert best is not None
    return best


def database_time() -> Query[float]:
    """The database's clock."""
    return Query(_CLOCK, {}, lambda rows: float(rows[0][0]))


def check_version(number: int, clocks: ClockOffset, tolerance: Thresholds) -> list[Finding]:
    named = f"Postgres {number // 10000}.{number % 10000}"
    trip = f"round trip {clocks.round_trip_seconds * 1000:.1f}ms"
    if clocks.round_trip_seconds > tolerance.slow_round_trip_seconds:
        why = "every claim and every finish waits for one: short jobs become slow, and fewer of them fit into a second"
        fix = "run the hosts in the same network as the database; ping its address; see whether the server is overloaded"
        return [warn("database", f"{named}, {trip}", why, fix, seconds=clocks.round_trip_seconds)]
    return [ok("database", f"{named}, {trip}", version=number, seconds=clocks.round_trip_seconds)]


def check_clock(clocks: ClockOffset, tolerance: Thresholds) -> list[Finding]:
    off = abs(clocks.database_ahead_seconds) - clocks.uncertainty_seconds
    if off > tolerance.clock_skew_seconds:
        way = "behind" if clocks.database_ahead_seconds > 0 else "ahead of"
        what = f"this machine's clock is {format_duration(abs(clocks.database_ahead_seconds))} {way} the database's"
        why = "it decides no job, but times in logs do not fit those of jobs, and at=datetime.now()+… is another moment"
        return [warn("clock", what, why, "timedatectl set-ntp true", ahead=clocks.database_ahead_seconds)]
    apart = max(abs(clocks.database_ahead_seconds), clocks.uncertainty_seconds)
    what = f"within {format_duration(apart)} of the database's"
    return [ok("clock", what, ahead=clocks.database_ahead_seconds)]


@dataclass(frozen=True, slots=True)
class ConnectionSecurity:
    """How a session reaches its server."""

    address: str  # an IP address; "" for a Unix socket
    is_encrypted: bool
    sslmode: str

    @property
    def is_local(self) -> bool:
        try:
            return not self.address or ipaddress.ip_address(self.address).is_loopback
        except ValueError:
            return False


def connection_security(conn: psycopg.Connection[Any]) -> ConnectionSecurity:
    """Read from the session, not from its address, because the server and PGSSLMODE decide as well."""
    options = {option.keyword: option.val for option in conn.pgconn.info}
    sslmode = (options.get(b"sslmode") or b"prefer").decode()
    # A socket has no address. With a libpq that does not report one, a directory as host shows it.
    address = "" if conn.info.host.startswith(("/", "@")) else conn.info.hostaddr
    return ConnectionSecurity(address, bool(conn.pgconn.ssl_in_use), sslmode)


def check_encryption(links: Sequence[ConnectionSecurity]) -> list[Finding]:
    """Check for each address whether it is encrypted and the certificate of the server is verified."""
    check, found = "tls", []
    fix = (
        "add sslmode=verify-full&sslrootcert=/path/to/ca.pem to the dsn, or set PGSSLMODE and PGSSLROOTCERT",
        "sslrootcert=system for a certificate of a public authority (libpq 16 or newer)",
    )
    for one in dict.fromkeys(links):
        if one.is_local:
            continue
        if not one.is_encrypted:
            what = f"the connection to {one.address} is not encrypted (sslmode={one.sslmode})"
            why = "arguments, results and, depending on the server, the password can be read and changed on the network"
            found.append(warn(check, what, why, *fix))
        elif one.sslmode != "verify-full":
            what = f"the connection to {one.address} is encrypted, but sslmode={one.sslmode} does not verify the server"
            why = "a machine that poses as the server gets the password, reads arguments and hands out jobs"
            found.append(warn(check, what, why, *fix))
    if found:
        return found
    if all(one.is_local for one in links):
        return [ok(check, "not needed: the server is on this machine")]
    return [ok(check, "the connection is encrypted, and the server's certificate is verified")]


def check_pooler(is_pooled: bool, has_direct_dsn: bool, is_direct_pooled: bool) -> list[Finding]:
    """`has_direct_dsn`: PGWORKERS_DIRECT_DSN is set."""
    why = "a session's lock and its notifications get lost in a transaction pooler; `pgworkers run` refuses to start there"
    fix = "PGWORKERS_DIRECT_DSN=postgresql://…  # the direct address of the same database; enqueuers may keep the pooler"
    if is_pooled and not has_direct_dsn:
        return [fail("pooler", "the dsn leads through a pooler, and no direct one is known", why, fix)]
    if has_direct_dsn and is_direct_pooled:
        return [fail("pooler", "PGWORKERS_DIRECT_DSN leads through a pooler, too", why, fix)]
    if is_pooled:
        return [ok("pooler", "the dsn leads through a pooler, PGWORKERS_DIRECT_DSN past it")]
    return [ok("pooler", "none between us and the server")]


def check_schema(name: str, states: Sequence[MigrationStatus]) -> list[Finding]:
    by = {state: [row.name for row in states if row.state == state] for state in MigrationState}
    why = "this version cannot read or write these tables"
    if len(by[MigrationState.PENDING]) == len(states):
        return [
            fail(
                "schema",
                f"the database has no schema {name}",
                "there is nothing to enqueue into",
                "pgworkers migrate up",
            )
        ]
    if by[MigrationState.UNKNOWN]:
        what = f"{name} is newer than this pgworkers, which does not know {', '.join(by[MigrationState.UNKNOWN])}"
        return [fail("schema", what, why, "pip install --upgrade pgworkers")]
    if by[MigrationState.CHANGED]:
        what = f"{name} was made by another version of {', '.join(by[MigrationState.CHANGED])} than this pgworkers has"
        return [fail("schema", what, why, "install the version of pgworkers that made it")]
    if by[MigrationState.PENDING]:
        what = f"{name} is older than this pgworkers: {', '.join(by[MigrationState.PENDING])} is missing"
        return [fail("schema", what, why, "pgworkers migrate up")]
    if by[MigrationState.NEWER]:
        what = f"{name}, newer than this pgworkers ({', '.join(by[MigrationState.NEWER])}), which it still serves"
        return [ok("schema", what)]
    return [ok("schema", f"{name}, up to date ({states[-1].name})")]


def connection_counts() -> Query[ConnectionCounts]:
    return Query(_CONNECTIONS, {}, lambda found: found[0], record=ConnectionCounts)


def check_connections(found: ConnectionCounts) -> list[Finding]:
    """Check the tightest of the three limits of connections."""
    ways = [("the server", found.max_connections - found.reserved, found.connections, "max_connections")]
    if found.max_of_database >= 0:
        ways.append(
            ("the database", found.max_of_database, found.connections_of_database, "its CONNECTION LIMIT")
        )
    if found.max_of_role >= 0:
        ways.append(
            (f"the role {found.role}", found.max_of_role, found.connections_of_role, "its CONNECTION LIMIT")
        )
    whose, max_now, now, limit = min(ways, key=lambda way: way[1] - way[2])
    left = max(0, max_now - now)
    what = f"{left} left of {max_now} for {whose} ({limit})"
    why = f"a host needs {CONNECTIONS_PER_HOST}; one that cannot connect runs no jobs, and a reconnect after a blip fails"
    fixes = (
        psql_command(
            "SELECT usename, application_name, state, count(*) FROM pg_stat_activity GROUP BY 1, 2, 3 ORDER BY 4 DESC"
        ),
        "put the web servers behind a pooler (docs/adr/08-four-direct-connections.md), or raise the limit",
    )
    if left < CONNECTIONS_PER_HOST:
        return [fail("connections", what, why, *fixes, left=left)]
    if left < FEW_CONNECTIONS_LEFT:
        return [warn("connections", what, why, *fixes, left=left)]
    return [ok("connections", what, left=left)]


def oldest_transaction_id() -> Query[tuple[str, int]]:
    """The database whose transaction ids are used up most, and how many."""
    return Query(_OLDEST_TRANSACTION_ID, {}, lambda rows: (rows[0][0], rows[0][1]))


def check_transaction_ids(found: tuple[str, int]) -> list[Finding]:
    """Warn when half of the transaction ids are used. Autovacuum freezes old rows at a tenth of them."""
    name, age = found
    used = age / MAX_TRANSACTION_IDS
    what = f"{used:.0%} of the transaction ids are used up in the database {name}"
    why = "when none is left, the server takes no enqueue, no claim and no end, until every database was vacuumed"
    fixes = (
        f"vacuumdb --all --freeze  # above all {name}",
        psql_command(
            "SELECT pid, usename, backend_xmin, query FROM pg_stat_activity ORDER BY age(backend_xmin) DESC NULLS LAST"
        ),
    )
    if used > 0.9:
        return [fail("wraparound", what, why, *fixes, database=name, age=age)]
    if used > 0.5:
        return [warn("wraparound", what, why, *fixes, database=name, age=age)]
    return [ok("wraparound", what, database=name, age=age)]


def check_notifications(
    conn: psycopg.Connection[Any], name: str, listen: OpenSession, timeout: float
) -> list[Finding]:
    """Send a notification to a second session and wait for it."""
    channel, word = f"{name}_doctor", uuid.uuid4().hex
    with listen() as ear:
        ear.execute(identifiers.SQL("LISTEN {}").format(identifiers.Identifier(channel)))
        began = monotonic()
        params = {"channel": channel, "word": word, "full": NOTIFICATION_QUEUE_FULL_RATIO}
        used = float(run(conn, name, Query(_NOTIFY, params, lambda rows: rows[0][1])))
        wait = timeout if used < NOTIFICATION_QUEUE_FULL_RATIO else 0.0  # nothing was sent
        came = any(notice.payload == word for notice in ear.notifies(timeout=wait, stop_after=1))
    return judge_notification(monotonic() - began if came else None, used, timeout)


def judge_notification(took: float | None, used: float, timeout: float) -> list[Finding]:
    if used > 0.1:
        what = f"the server's queue of notifications is {used:.0%} full"
        why = (
            "a session that listens sits in a long transaction; when the queue is full, no session is notified any more: "
            "jobs wait for the next poll, and whatever else notifies in this server fails on COMMIT"
        )
        fix = psql_command(
            "SELECT pid, usename, xact_start, query FROM pg_stat_activity WHERE state LIKE 'idle in%' ORDER BY xact_start"
        )
        return [(warn if took is not None else fail)("notify", what, why, fix, used=used)]
    if took is None:
        what = f"a notification did not come back within {format_duration(timeout)}"
        why = "jobs wait for the next poll instead of starting at once, and cancels come late"
        return [
            fail(
                "notify",
                what,
                why,
                "connect without a pooler: PGWORKERS_DIRECT_DSN=postgresql://…",
                used=used,
            )
        ]
    return [ok("notify", f"a notification came back in {took * 1000:.1f}ms", seconds=took, used=used)]
