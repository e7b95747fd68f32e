"""`pgworkers bench`: measure this database from this machine, in about a minute."""

from __future__ import annotations

import signal
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from pgworkers.cli import database, output
from pgworkers.cli.invocation import CliCommand, Invocation, invocation_of
from pgworkers.cli.output import Column, show_progress

if TYPE_CHECKING:
    from pgworkers.cli.bench.measurements import BenchSchema
    from pgworkers.cli.database import OpenDatabase


@dataclass(frozen=True, slots=True)
class Measurement:
    """One line of the answer."""

    measure: str
    value: float
    unit: str
    meaning: str


@click.command(cls=CliCommand)
@click.option("--jobs", metavar="N", type=click.IntRange(100, 1_000_000), default=20_000, show_default=True)
@click.option("-w", "--workers", metavar="N", type=click.IntRange(1, 64), default=2, show_default=True)
@click.option(
    "--tries",
    metavar="N",
    type=click.IntRange(10, 10_000),
    default=200,
    show_default=True,
    help="How often round trips and pickups are tried.",
)
@click.pass_context
def bench(ctx: click.Context, *, jobs: int, workers: int, tries: int) -> None:
    """Measure this database for pgworkers: round trips, enqueueing, a host at work.

    It works in a schema of its own, pgworkers_bench_…, that it makes and drops again, also after Ctrl-C; your tables are
    not touched. It starts a real host with --workers processes and has it do --jobs empty jobs, so the server is busy for
    some seconds: do not run it on a busy production database.

    \b
    How to read it:
      round trip, notify   the way to the server; every other latency is a multiple of it
      enqueue single       one commit each: mostly the server's fsync
      enqueue bulk         app.enqueue_many, streamed by COPY
      drain                claim, run and finish of empty jobs: what pgworkers itself costs
      pickup               from the call of enqueue to the start of the handler, on an idle host
      wal per job          bytes of write-ahead log from enqueue to end, and what others wrote meanwhile

    \b
    Examples:
      pgworkers bench                         the database of app.py, DATABASE_URL or the embedded one
      pgworkers bench --dsn postgresql://db/shop -w 8
      pgworkers bench --jobs 2000 -o json     a quick look, for a script
    """
    invocation = invocation_of(ctx)
    with (
        _interrupt_on_sigterm(),
        database.open_database(invocation, should_create_embedded=True, should_check_schema=False) as db,
    ):
        from pgworkers.cli.bench.measurements import bench_schema

        output.print_note(
            invocation,
            f"measuring {_show_database(db)} in a schema of its own, about a minute; Ctrl-C ends it",
        )
        with bench_schema(db.conn, db.dsn, db.settings) as found:
            figures = _measure(invocation, found, jobs, workers, tries)
    output.print_rows(invocation, figures, _COLUMNS, if_empty="", quiet_column="value")


def _measure(
    invocation: Invocation, site: BenchSchema, jobs: int, workers: int, tries: int
) -> list[Measurement]:
    from pgworkers.cli.bench import measurements

    figures = _percentiles("round trip", measurements.round_trip_latencies(site, tries), "SELECT 1")
    figures += _percentiles(
        "notify", measurements.notification_latencies(site, tries), "from NOTIFY to the listener"
    )
    ones = min(jobs // 10, 2000)
    with measurements.bound_app(site) as app:
        before = measurements.wal_bytes(site)
        with show_progress(invocation, "enqueue, one by one", ones) as done:
            rate = measurements.enqueue_one_by_one(app, ones, done)
        figures.append(Measurement("enqueue single", round(rate), "1/s", "one commit each"))
        output.print_note(invocation, f"enqueue {jobs:,} in bulk")
        rate = measurements.enqueue_in_bulk(app, jobs)
        figures.append(Measurement("enqueue bulk", round(rate), "1/s", f"{jobs:,} by COPY"))
        with measurements.running_host(site, workers) as host:
            with show_progress(invocation, f"drain with {workers} workers", ones + jobs) as done:
                drained = measurements.wait_until_drained(site, host, ones + jobs, done)
            bytes_each = (measurements.wal_bytes(site) - before) / (ones + jobs)
            rate = drained.count / max(drained.seconds, 1e-3)
            figures.append(Measurement("drain", round(rate), "1/s", f"empty jobs, {workers} workers"))
            with show_progress(invocation, "pickup", tries) as done:
                waits = measurements.pickup_latencies(site, app, tries, done)
    figures += _percentiles("pickup", waits, "from enqueue to handler, idle host")
    figures.append(Measurement("wal per job", round(bytes_each), "bytes", "enqueue, claim and finish"))
    return figures


def _percentiles(name: str, found: list[float], meaning: str) -> list[Measurement]:
    ordered = sorted(found) or [0.0]
    last = ordered[min(len(ordered) - 1, round(0.99 * (len(ordered) - 1)))]
    return [
        Measurement(f"{name} p50", round(statistics.median(ordered), 3), "ms", meaning),
        Measurement(f"{name} p99", round(last, 3), "ms", meaning),
    ]


def _show_database(db: OpenDatabase) -> str:
    from pgworkers.postgres.dsn import show_dsn

    return f"the embedded server in {db.chosen.home}" if db.chosen.is_embedded else show_dsn(db.chosen.dsn)


@contextmanager
def _interrupt_on_sigterm() -> Iterator[None]:
    """SIGTERM ends it as Ctrl-C does: with the schema dropped."""

    def stop(_signum: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before: Any = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


_COLUMNS: list[Column] = [
    ("measure", lambda row: row.measure),
    ("value", lambda row: f"{row.value:,}"),
    ("unit", lambda row: row.unit),
    ("meaning", lambda row: row.meaning),
]
