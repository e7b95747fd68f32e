"""`pgworkers enqueue`: one job from the command line, or a file of them by COPY."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click
import msgspec

from pgworkers import result_store
from pgworkers.cli import database, output
from pgworkers.cli.enqueue_job import JobBuilder, job_builder
from pgworkers.cli.formatting import plural, shorten, show_arguments
from pgworkers.cli.invocation import CliCommand, Invocation, OutputFormat, invocation_of
from pgworkers.cli.output import show_progress
from pgworkers.cli.parameters import (
    expand_bare_wait,
    parse_duration,
    parse_json_object,
    parse_moment,
    parse_named_arguments,
    parse_wait_duration,
)
from pgworkers.errors import JobFailed, UsageError
from pgworkers.job.model import JobState
from pgworkers.secret_arguments import hide_secrets

if TYPE_CHECKING:
    from pgworkers.job.enqueue import Enqueued
    from pgworkers.job.model import NewJob


class EnqueueCommand(CliCommand):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, expand_bare_wait(args))


@click.command(cls=EnqueueCommand)
@click.argument("task")
@click.argument("given", metavar="[NAME=VALUE]...", nargs=-1)
@click.option("--json", metavar="OBJECT", help="The arguments as one JSON object.")
@click.option(
    "--file",
    metavar="ROWS.NDJSON",
    help="One job per line, each the JSON object of its arguments; - is stdin.",
)
@click.option("--delay", metavar="TIME", type=parse_duration, help="Not before this long from now, e.g. 5m.")
@click.option(
    "--at", metavar="MOMENT", type=parse_moment, help="Not before this moment, e.g. 2026-03-01T08:00."
)
@click.option("--priority", metavar="N", type=int, help="Higher first.")
@click.option("--unique", metavar="KEY", help="At most one live job of this task with this key.")
@click.option(
    "--on-conflict",
    type=click.Choice(["return", "replace", "raise"]),
    help="When the key is held: return that job (default), replace its arguments, or refuse.",
)
@click.option(
    "--idempotency-key",
    metavar="KEY",
    help="Repeats with this key get the first job of this task, finished or not.",
)
@click.option(
    "--idempotency-window",
    metavar="TIME",
    type=parse_duration,
    help="How long they do, from the first enqueue on (default 1d, at most 31d).",
)
@click.option("--queue", metavar="QUEUE", help="Another queue than the task's own.")
@click.option("--meta", metavar="OBJECT", help="Why it is enqueued, as a JSON object; the job can read it.")
@click.option(
    "--wait",
    metavar="[=TIME]",
    type=parse_wait_duration,
    help="Wait for the end, print the result; exit code 1 if it fails.",
)
@click.option("--no-app", is_flag=True, help="Enqueue by name, without loading the app and without checks.")
@click.pass_context
def enqueue(
    ctx: click.Context,
    /,
    *,
    task: str,
    given: tuple[str, ...],
    json: str | None,
    file: str | None,
    wait: float | None,
    no_app: bool,
    meta: str | None,
    **how: Any,
) -> None:
    """Enqueue one job, or a file of them.

    Values are read as JSON where they are JSON (7, true, [1,2], null) and as text elsewhere; a parameter
    annotated str is always text. The arguments are checked against the task before anything is inserted.

    \b
    Examples:
      pgworkers enqueue render report_id=7 fmt=png
      pgworkers enqueue render --json '{"report_id": 7}' --delay 5m --unique report:7
      pgworkers enqueue render report_id=7 --idempotency-key mail:81   safe to repeat for a day
      pgworkers enqueue render report_id=7 --wait=1m       prints the result
      pgworkers enqueue render --file rows.ndjson          all of them or none
      generate | pgworkers enqueue render --file -
    """
    if sum((bool(given), json is not None, file is not None)) > 1:
        raise UsageError(
            "give the arguments once: as name=value, or with --json, or with --file; nothing was enqueued"
        )
    if file is not None and (wait is not None or how["unique"] or how["idempotency_key"]):
        raise UsageError(
            "--file enqueues many jobs: --wait, --unique and --idempotency-key are for one; nothing was enqueued"
        )
    invocation = invocation_of(ctx)
    chosen = {name: value for name, value in how.items() if value is not None}
    if meta is not None:
        chosen["meta"] = parse_json_object(meta, "--meta", 'write e.g. {"why": "nightly"}')
    ready = job_builder(invocation, task, chosen, no_app=no_app)
    if file is not None:
        _enqueue_file(invocation, ready, file)
        return
    args = (
        parse_json_object(json, "--json")
        if json is not None
        else parse_named_arguments(given, ready.read_argument)
    )
    _enqueue_one(invocation, ready, ready.build(args), wait)


def _enqueue_one(invocation: Invocation, ready: JobBuilder, job: NewJob, wait: float | None) -> None:
    from pgworkers.job import enqueue as verb

    with database.open_database(invocation, loaded=ready.loaded_settings) as db:
        with _translating_errors():
            made = db.run(verb.enqueue(job))
        sentence = _enqueued_sentence(job, made.id) if made.is_new else _conflict_sentence(db, job, made.id)
        if wait is None:
            _print_enqueued(invocation, job, made, sentence)
            return
        output.print_note(invocation, sentence)  # in addition to the result that will be printed
        _print_result(invocation, db, made.id, None if math.isinf(wait) else wait)


def _print_result(
    invocation: Invocation, db: database.OpenDatabase, job_id: int, timeout: float | None
) -> None:
    """Print the result of the job; JobFailed when it has none."""
    from pgworkers.cli.jobs.wait import wait_until_ended

    (ended,) = wait_until_ended(db, [job_id], timeout)
    if invocation.output != OutputFormat.TABLE:
        output.print_record(invocation, ended)
    elif ended.state == JobState.SUCCEEDED:
        stored = result_store.read_reference(ended.result)
        if stored is None:
            output.print_json_value(ended.result)
        else:
            data = result_store.fetch(db.settings.result_store, job_id, stored)
            output.print_json_value(msgspec.json.decode(data))
    if ended.state != JobState.SUCCEEDED:
        raise JobFailed(job_id, ended.state, ended.error)


def _print_enqueued(invocation: Invocation, job: NewJob, made: Enqueued, sentence: str) -> None:
    """Print the new job to stdout."""
    if invocation.output != OutputFormat.TABLE:
        row = {"id": made.id, "created": made.is_new, "task": job.task}
        output.print_record(invocation, row)
    else:
        output.print_text(str(made.id) if invocation.is_quiet else sentence)


def _enqueued_sentence(job: NewJob, job_id: int) -> str:
    where = f" on {job.queue}" if job.queue else ""
    return f"#{job_id} {_show_call(job)} enqueued{where}"


def _conflict_sentence(db: database.OpenDatabase, job: NewJob, job_id: int) -> str:
    """The sentence for a job that already existed under its key."""
    from pgworkers.job import queries

    if job.idempotency_key is not None:
        or_unique = f", or holds the unique key {job.unique_key}" if job.unique_key is not None else ""
        return f"#{job_id} {job.task} was enqueued with the idempotency key {job.idempotency_key} before{or_unique}"
    held = f"#{job_id} {job.task} already holds the unique key {job.unique_key}"
    if job.on_conflict != "replace":
        return held
    found = db.run(queries.get_job(job_id))
    if found is not None and found.args == _shown_arguments(job):
        return f"{held}; it is {_show_call(job)} now"
    return f"{held} and runs; its arguments were not replaced"


def _show_call(job: NewJob) -> str:
    return f"{job.task}({shorten(show_arguments(_shown_arguments(job)))})"


def _shown_arguments(job: NewJob) -> dict[str, Any]:
    found: dict[str, Any] = hide_secrets(parse_json_object(job.args_json, "arguments"))
    return found


def _enqueue_file(invocation: Invocation, ready: JobBuilder, file: str) -> None:
    """Every line of the file as a job, in one COPY."""
    from pgworkers.job.copy import copy_jobs

    with _open_file(file) as (stream, name):
        total = _count_lines(stream) if file != "-" and sys.stderr.isatty() else None
        with (
            database.open_database(invocation, loaded=ready.loaded_settings) as db,
            show_progress(invocation, "enqueued", total) as done,
            _translating_errors(),
        ):
            count = copy_jobs(
                db.conn, db.schema, _read_jobs(stream, name, ready.build), done, is_own_connection=True
            )
    if invocation.output == OutputFormat.TABLE:
        output.print_text(
            str(count) if invocation.is_quiet else f"enqueued {plural(count, 'job')} of {ready.task}"
        )
    else:
        row = {"enqueued": count, "task": ready.task}
        output.print_record(invocation, row)


@contextmanager
def _translating_errors() -> Iterator[None]:
    """Translate errors of the database for the user."""
    import psycopg

    from pgworkers.job.enqueue import enqueue_error

    try:
        yield
    except psycopg.Error as exc:
        raise enqueue_error(exc) from exc


def _read_jobs(
    stream: Iterable[bytes], name: str, prepare: Callable[[dict[str, Any]], NewJob]
) -> Iterator[NewJob]:
    """The jobs of a file; an error names its line."""
    for number, line in enumerate(stream, 1):
        text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        if not text.strip():
            continue
        try:
            yield prepare(parse_json_object(text, "the line"))
        except UsageError as exc:
            raise type(exc)(f"{name} line {number}: {exc}") from None


@contextmanager
def _open_file(file: str) -> Iterator[tuple[IO[bytes], str]]:
    if file == "-":
        yield sys.stdin.buffer, "stdin"
        return
    path = Path(file)
    if not path.exists() or path.is_dir():
        reason = "it is a directory" if path.is_dir() else "there is no such file"
        raise UsageError(f"--file {file}: {reason}; nothing was enqueued")
    with path.open("rb") as stream:
        yield stream, file


def _count_lines(stream: IO[bytes]) -> int | None:
    """How many lines a file has, for the bar; None when it cannot be read twice."""
    if not stream.seekable():
        return None
    count = sum(block.count(b"\n") for block in iter(lambda: stream.read(1 << 20), b""))
    stream.seek(0)
    return count
