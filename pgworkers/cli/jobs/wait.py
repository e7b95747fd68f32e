"""`pgworkers jobs wait`: wait for notifications that jobs ended, and look every second in case one was missed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from pgworkers.cli import database, output
from pgworkers.cli.database import OpenDatabase
from pgworkers.cli.formatting import shorten, show_duration
from pgworkers.cli.invocation import CliCommand, Invocation, invocation_of
from pgworkers.cli.job_changes import no_such_jobs
from pgworkers.cli.output import Column
from pgworkers.cli.parameters import parse_duration, parse_job_id
from pgworkers.errors import NotFound, ResultTimeout
from pgworkers.job.model import TERMINAL_STATES, JobState
from pgworkers.job.notification_payloads import MIN_HINT_INTERVAL_SECONDS
from pgworkers.units import format_duration

if TYPE_CHECKING:
    from pgworkers.job.queries import JobView


@click.command("wait", cls=CliCommand)
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True, type=parse_job_id)
@click.option(
    "--timeout",
    metavar="TIME",
    type=parse_duration,
    help="Give up after this long, e.g. 30s; the jobs go on.",
)
@click.pass_context
def wait(ctx: click.Context, *, job_ids: tuple[int, ...], timeout: float | None) -> int:
    """Wait until jobs have ended; exit code 1 unless all succeeded.

    \b
    Examples:
      pgworkers jobs wait 1042
      pgworkers jobs wait --timeout 5m 1042 1043 && echo both succeeded
    """
    invocation = invocation_of(ctx)
    with database.open_database(invocation) as db:
        ended = wait_until_ended(db, job_ids, timeout)
    return print_ended(invocation, ended)


def print_ended(invocation: Invocation, ended: list[Any]) -> int:
    """Print how jobs ended; 0 when all of them succeeded."""
    output.print_rows(invocation, ended, _ENDED_COLUMNS, if_empty="", quiet_column="id")
    return 0 if all(job.state == JobState.SUCCEEDED for job in ended) else 1


_ENDED_COLUMNS: list[Column] = [
    ("id", lambda job: str(job.id)),
    ("state", lambda job: str(job.state)),
    ("task", lambda job: job.task),
    ("ran", lambda job: show_duration(job.duration)),
    ("result", lambda job: shorten(_show_result(job))),
]


def _show_result(job: Any) -> str:
    from pgworkers.cli.formatting import compact_json

    return compact_json(job.result) if job.state == JobState.SUCCEEDED else (job.error or job.verdict or "")


JOB_POLL_SECONDS = 1.0
_JOBS_PER_QUERY = 1000


def wait_until_ended(db: OpenDatabase, ids: Sequence[int], timeout: float | None) -> list[JobView]:
    """The jobs once all have ended, in the order asked for. Unknown ids end the wait at once."""
    from psycopg import sql

    began = time.monotonic()
    db.conn.execute(sql.SQL("LISTEN {}").format(sql.Identifier(f"{db.schema}_done")))
    ended: dict[int, JobView] = {}
    hinted = False
    while True:
        waiting = [one for one in dict.fromkeys(ids) if one not in ended]
        found = _read_jobs(db, waiting)
        if unknown := [one for one in waiting if one not in found]:
            raise NotFound(no_such_jobs(unknown))
        ended |= {one: job for one, job in found.items() if job.state in TERMINAL_STATES}
        if len(waiting) == sum(one in ended for one in waiting):
            return [ended[one] for one in dict.fromkeys(ids)]
        left = None if timeout is None else timeout - (time.monotonic() - began)
        if left is not None and left <= 0:
            still = ", ".join(f"#{one} {found[one].state}" for one in waiting if one not in ended)
            raise ResultTimeout(f"not ended after {format_duration(timeout or 0)}: {still}; the jobs go on")
        step = JOB_POLL_SECONDS if left is None else min(JOB_POLL_SECONDS, left)
        if hinted:  # without effect: any login can send a notification
            time.sleep(min(step, MIN_HINT_INTERVAL_SECONDS))
        # Whichever job a notification names, looking again is one cheap statement.
        hinted = bool(list(db.conn.notifies(timeout=step, stop_after=1)))


def _read_jobs(db: OpenDatabase, ids: Sequence[int]) -> dict[int, JobView]:
    from pgworkers.job import queries

    found: dict[int, JobView] = {}
    for at in range(0, len(ids), _JOBS_PER_QUERY):
        some = list(ids[at : at + _JOBS_PER_QUERY])
        for job in db.run(queries.jobs_by_id(some)):
            found[job.id] = job
    return found
