"""The server itself: version, round trip, clock, pooler, schema, connections, notifications."""

from __future__ import annotations

import ipaddress
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql as identifiers

from pgworkers.clock import monotonic, show_seconds
from pgworkers.doctor.finding import Finding, Tolerance, fail, ok, sql, warn
from pgworkers.postgres.migrate import MigrationStatus
from pgworkers.postgres.statements import Query, Statement, run

_CONNECTIONS = Statement.beside(__file__, "connections")
_CLOCK = Statement.beside(__file__, "clock")
_NOTIFY = Statement.beside(__file__, "notify")
_AGE = Statement.beside(__file__, "age")

#: Connections of one host, and what must be left so that another can start.
HOST_NEEDS = 4
FEW = 10
#: A queue of notifications to which nothing is added (notify.sql).
FULL = 0.9
#: Transaction ids that a database can use before it is vacuumed: at the last three million the server refuses to write.
MOST_IDS = (1 << 31) - 3_000_001
_TRIES = 5
Connect = Callable[[], psycopg.Connection[Any]]


@dataclass(frozen=True, slots=True)
class Room:
    """Connections: what there may be and what there is. A limit below 0: none."""

    most: int
    reserved: int
    now: int
    of_database: int
    in_database: int
    of_role: int
    by_role: int
    role: str


@dataclass(frozen=True, slots=True)
class Clocks:
    """The database's clock against this host's. Seconds."""

    trip: float
    ahead: float  # of the database
    unsure: float


def measure(conn: psycopg.Connection[Any], schema: str) -> Clocks:
    """The best of a few round trips: the others only tell of a busy machine."""
    best: Clocks | None = None
    for _ in range(_TRIES):
        before, began = time.time(), monotonic()
        theirs = run(conn, schema, now())
        trip = monotonic() - began
        if best is None or trip < best.trip:
            best = Clocks(trip, theirs - (before + trip / 2), trip / 2)
    assert best is not None
    return best


def now() -> Query[float]:
    """The database's clock."""
    return Query(_CLOCK, {}, lambda rows: float(rows[0][0]))


def version(number: int, clocks: Clocks, tolerance: Tolerance) -> list[Finding]:
    named = f"Postgres {number // 10000}.{number % 10000}"
    trip = f"round trip {clocks.trip * 1000:.1f}ms"
    if clocks.trip > tolerance.slow:
        why = "every claim and every finish waits for one: short jobs become slow, and fewer of them fit into a second"
        fix = "run the hosts in the same network as the database; ping its address; see whether the server is overloaded"
        return [warn("database", f"{named}, {trip}", why, fix, seconds=clocks.trip)]
    return [ok("database", f"{named}, {trip}", version=number, seconds=clocks.trip)]


def clock(clocks: Clocks, tolerance: Tolerance) -> list[Finding]:
    off = abs(clocks.ahead) - clocks.unsure
    if off > tolerance.skew:
        way = "behind" if clocks.ahead > 0 else "ahead of"
        what = f"this machine's clock is {show_seconds(abs(clocks.ahead))} {way} the database's"
        why = "it decides no job, but times in logs do not fit those of jobs, and at=datetime.now()+… is another moment"
        return [warn("clock", what, why, "timedatectl set-ntp true", ahead=clocks.ahead)]
    return [
        ok(
            "clock",
            f"within {show_seconds(max(abs(clocks.ahead), clocks.unsure))} of the database's",
            ahead=clocks.ahead,
        )
    ]


@dataclass(frozen=True, slots=True)
class Link:
    """How a session reaches its server."""

    address: str  # an IP address; "" for a Unix socket
    encrypted: bool
    sslmode: str

    @property
    def is_local(self) -> bool:
        try:
            return not self.address or ipaddress.ip_address(self.address).is_loopback
        except ValueError:
            return False


def link(conn: psycopg.Connection[Any]) -> Link:
    """Read from the session itself, not from its address: the server and PGSSLMODE have a say, too."""
    options = {option.keyword: option.val for option in conn.pgconn.info}
    sslmode = (options.get(b"sslmode") or b"prefer").decode()
    # A socket has no address; a directory as host says the same for libpq that does not tell.
    address = "" if conn.info.host.startswith(("/", "@")) else conn.info.hostaddr
    return Link(address, bool(conn.pgconn.ssl_in_use), sslmode)


def encryption(links: Sequence[Link]) -> list[Finding]:
    """Of each way to the database: is it encrypted, and is the server's certificate verified?"""
    check, found = "tls", []
    fix = (
        "add sslmode=verify-full&sslrootcert=/path/to/ca.pem to the dsn, or set PGSSLMODE and PGSSLROOTCERT",
        "sslrootcert=system for a certificate of a public authority (libpq 16 or newer)",
    )
    for one in dict.fromkeys(links):
        if one.is_local:
            continue
        if not one.encrypted:
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


def pooler(pooled: bool, direct: bool, direct_pooled: bool) -> list[Finding]:
    """`direct`: PGWORKERS_DIRECT_DSN is set."""
    why = "a session's lock and its notifications get lost in a transaction pooler; `pgworkers run` refuses to start there"
    fix = "PGWORKERS_DIRECT_DSN=postgresql://…  # the direct address of the same database; enqueuers may keep the pooler"
    if pooled and not direct:
        return [fail("pooler", "the dsn leads through a pooler, and no direct one is known", why, fix)]
    if direct and direct_pooled:
        return [fail("pooler", "PGWORKERS_DIRECT_DSN leads through a pooler, too", why, fix)]
    if pooled:
        return [ok("pooler", "the dsn leads through a pooler, PGWORKERS_DIRECT_DSN past it")]
    return [ok("pooler", "none between us and the server")]


def schema(name: str, states: Sequence[MigrationStatus]) -> list[Finding]:
    by = {
        state: [row.name for row in states if row.state == state]
        for state in ("pending", "changed", "unknown", "newer")
    }
    why = "this version cannot read or write these tables"
    if len(by["pending"]) == len(states):
        return [
            fail(
                "schema",
                f"the database has no schema {name}",
                "there is nothing to enqueue into",
                "pgworkers migrate up",
            )
        ]
    if by["unknown"]:
        what = f"{name} is newer than this pgworkers, which does not know {', '.join(by['unknown'])}"
        return [fail("schema", what, why, "pip install --upgrade pgworkers")]
    if by["changed"]:
        what = f"{name} was made by another version of {', '.join(by['changed'])} than this pgworkers has"
        return [fail("schema", what, why, "install the version of pgworkers that made it")]
    if by["pending"]:
        what = f"{name} is older than this pgworkers: {', '.join(by['pending'])} is missing"
        return [fail("schema", what, why, "pgworkers migrate up")]
    if by["newer"]:
        what = f"{name}, newer than this pgworkers ({', '.join(by['newer'])}), which it still serves"
        return [ok("schema", what)]
    return [ok("schema", f"{name}, up to date ({states[-1].name})")]


def connections() -> Query[Room]:
    return Query(_CONNECTIONS, {}, lambda rows: Room(*rows[0]))


def room(found: Room) -> list[Finding]:
    """The tightest of the three limits."""
    ways = [("the server", found.most - found.reserved, found.now, "max_connections")]
    if found.of_database >= 0:
        ways.append(("the database", found.of_database, found.in_database, "its CONNECTION LIMIT"))
    if found.of_role >= 0:
        ways.append((f"the role {found.role}", found.of_role, found.by_role, "its CONNECTION LIMIT"))
    whose, most, now, limit = min(ways, key=lambda way: way[1] - way[2])
    left = max(0, most - now)
    what = f"{left} left of {most} for {whose} ({limit})"
    why = (
        f"a host needs {HOST_NEEDS}; one that cannot connect runs no jobs, and a reconnect after a blip fails"
    )
    fixes = (
        sql(
            "SELECT usename, application_name, state, count(*) FROM pg_stat_activity GROUP BY 1, 2, 3 ORDER BY 4 DESC"
        ),
        "put the web servers behind a pooler (docs/adr/0504-poolers.md), or raise the limit",
    )
    if left < HOST_NEEDS:
        return [fail("connections", what, why, *fixes, left=left)]
    if left < FEW:
        return [warn("connections", what, why, *fixes, left=left)]
    return [ok("connections", what, left=left)]


def oldest() -> Query[tuple[str, int]]:
    """The database whose transaction ids are used up most, and how many."""
    return Query(_AGE, {}, lambda rows: (rows[0][0], rows[0][1]))


def ids(found: tuple[str, int]) -> list[Finding]:
    """Autovacuum freezes what is old at a tenth of them (autovacuum_freeze_max_age): half is far too much."""
    name, age = found
    used = age / MOST_IDS
    what = f"{used:.0%} of the transaction ids are used up in the database {name}"
    why = "when none is left, the server takes no enqueue, no claim and no end, until every database was vacuumed"
    fixes = (
        f"vacuumdb --all --freeze  # above all {name}",
        sql(
            "SELECT pid, usename, backend_xmin, query FROM pg_stat_activity ORDER BY age(backend_xmin) DESC NULLS LAST"
        ),
    )
    if used > 0.9:
        return [fail("wraparound", what, why, *fixes, database=name, age=age)]
    if used > 0.5:
        return [warn("wraparound", what, why, *fixes, database=name, age=age)]
    return [ok("wraparound", what, database=name, age=age)]


def notifications(
    conn: psycopg.Connection[Any], name: str, listen: Connect, patience: float
) -> list[Finding]:
    """Send a word to a second session and see it come."""
    channel, word = f"{name}_doctor", uuid.uuid4().hex
    with listen() as ear:
        ear.execute(identifiers.SQL("LISTEN {}").format(identifiers.Identifier(channel)))
        began = monotonic()
        used = float(
            run(conn, name, Query(_NOTIFY, {"channel": channel, "word": word}, lambda rows: rows[0][1]))
        )
        wait = patience if used < FULL else 0.0  # nothing was sent
        came = any(notice.payload == word for notice in ear.notifies(timeout=wait, stop_after=1))
    return notified(monotonic() - began if came else None, used, patience)


def notified(took: float | None, used: float, patience: float) -> list[Finding]:
    if used > 0.1:
        what = f"the server's queue of notifications is {used:.0%} full"
        why = (
            "a session that listens sits in a long transaction; when the queue is full, nobody is notified any more: "
            "jobs wait for the next poll, and whatever else notifies in this server fails on COMMIT"
        )
        fix = sql(
            "SELECT pid, usename, xact_start, query FROM pg_stat_activity WHERE state LIKE 'idle in%' ORDER BY xact_start"
        )
        return [(warn if took is not None else fail)("notify", what, why, fix, used=used)]
    if took is None:
        what = f"a notification did not come back within {show_seconds(patience)}"
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
