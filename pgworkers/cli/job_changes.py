"""Change many jobs: what `jobs retry`, `cancel`, `discard` and `queues purge` share.

Jobs are chosen by id or by a filter. With a filter the command first shows how many jobs it found and asks. Then it works
in batches, from the newest job to the oldest. Jobs that are enqueued meanwhile are not changed, and a job that cannot be
changed is skipped once.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from pgworkers.cli import database, output
from pgworkers.cli.formatting import (
    plural,
    terminal_safe,
)
from pgworkers.cli.invocation import Invocation, OutputFormat
from pgworkers.cli.output import show_progress
from pgworkers.cli.parameters import parse_states
from pgworkers.errors import NotFound, UsageError
from pgworkers.job.model import JobState

if TYPE_CHECKING:
    from pgworkers.job.operations import OperationNote
    from pgworkers.job.queries import JobFilter


def describe_filter(chosen: JobFilter) -> str:
    """`dead or cancelled, queue reports, task render`"""
    parts = (("", chosen.states), ("queue ", chosen.queues), ("task ", chosen.tasks))
    return ", ".join(what + " or ".join(names) for what, names in parts if names)


def confirm(invocation: Invocation, question: str) -> bool:
    """Ask before a bulk change; without a terminal to ask on, refuse."""
    if invocation.is_confirmed:
        return True
    if not sys.stdin.isatty():
        raise UsageError(f"{question} There is no terminal to ask on; -y goes ahead; nothing was changed")
    return click.confirm(terminal_safe(question), err=True)


#: Jobs that are changed in one transaction, and ids that are looked for at once.
JOBS_PER_TRANSACTION = 500
JOB_IDS_PER_QUERY = 50 * JOBS_PER_TRANSACTION


#: The option of every command that leaves a trace in `pgworkers.operation`.
reason_option = click.option(
    "--reason", metavar="TEXT", help="Why; kept with your names and shown by `jobs show`."
)


@dataclass(frozen=True, slots=True)
class JobChange:
    """One change an operator makes to jobs."""

    name: str
    past_tense: str
    default_states: tuple[JobState, ...]  # what a filter without --state means
    allowed_states: tuple[JobState, ...]
    success_outcomes: frozenset[str]  # the outcomes that count as success
    apply: Callable[[database.OpenDatabase, list[int], OperationNote], list[tuple[int, str | None]]]


def change_jobs(
    invocation: Invocation,
    verb: JobChange,
    *,
    job_ids: tuple[int, ...],
    state: tuple[str, ...],
    queue: tuple[str, ...],
    task: tuple[str, ...],
    reason: str | None,
) -> int:
    from pgworkers.job.operations import make_note

    noted = make_note(reason)
    by_filter = bool(state or queue or task)
    if by_filter == bool(job_ids):
        raise UsageError(
            f"name the jobs to {verb.name} by id, or by --state, --queue or --task; nothing was changed"
        )
    wanted_states = parse_states(state) or list(verb.default_states)
    if wrong := [one for one in wanted_states if one not in verb.allowed_states]:
        raise UsageError(
            f"{wrong[0]} jobs cannot be {verb.past_tense}, only {', '.join(verb.allowed_states)}; nothing was changed"
        )
    with database.open_database(invocation) as db:
        if by_filter:
            from pgworkers.job.queries import JobFilter

            return change_by_filter(
                invocation, db, verb, JobFilter(states=wanted_states, queues=queue, tasks=task), noted
            )
        return _report_by_id(invocation, verb, verb.apply(db, list(dict.fromkeys(job_ids)), noted))


def _report_by_id(invocation: Invocation, verb: JobChange, outcomes: list[tuple[int, str | None]]) -> int:
    found = [{"id": one, "outcome": outcome} for one, outcome in outcomes if outcome is not None]
    if invocation.output != OutputFormat.TABLE:
        output.print_rows(invocation, found, [], if_empty="")
    elif not invocation.is_quiet:
        for one, outcome in outcomes:
            if outcome is not None:
                output.print_text(f"#{one} {_outcome_sentence(verb, outcome)}")
    if unknown := [one for one, outcome in outcomes if outcome is None]:
        raise NotFound(no_such_jobs(unknown))
    return 0 if all(outcome in verb.success_outcomes for _, outcome in outcomes) else 1


def _outcome_sentence(verb: JobChange, outcome: str) -> str:
    """What became of one job."""
    if outcome in verb.success_outcomes:
        return _SUCCESS_SENTENCES.get(outcome, f"is {outcome}")
    return f"was not {verb.past_tense}: {_FAILURE_REASONS.get(outcome, f'it is {outcome}')}"


_SUCCESS_SENTENCES = {"requeued": "is ready again"}
_FAILURE_REASONS = {
    "conflict": "a newer job holds its unique key",
    "running": "it is running; cancel it first",
    "changing": "another session is changing it; try again",
}


def change_by_filter(
    invocation: Invocation, db: database.OpenDatabase, verb: JobChange, chosen: JobFilter, note: OperationNote
) -> int:
    from pgworkers.job import queries

    counted_jobs = queries.count_jobs(db.run, chosen)
    total = counted_jobs.jobs if counted_jobs.is_complete else None
    amount = plural(counted_jobs.jobs, "job")
    if total is None:
        amount = f"{'more than' if counted_jobs.jobs >= queries.MAX_COUNTED_JOBS else 'at least'} {amount}"
    if total != 0 and not confirm(invocation, f"{verb.name} {amount} ({describe_filter(chosen)})?"):
        output.print_note(invocation, "nothing was changed")
        return 1
    outcomes: Counter[str] = Counter()
    rows: list[dict[str, Any]] = []
    with show_progress(invocation, verb.past_tense, total) as done:
        for ids in job_id_batches(db, chosen):
            for one, outcome in verb.apply(db, ids, note):
                outcomes[outcome or "gone"] += 1
                if invocation.output == OutputFormat.NDJSON:
                    output.print_json_line({"id": one, "outcome": outcome or "gone"})
                elif invocation.output == OutputFormat.JSON:
                    rows.append({"id": one, "outcome": outcome or "gone"})
            done(outcomes.total())
    if invocation.output == OutputFormat.JSON:
        output.print_json(rows)
    elif invocation.output == OutputFormat.TABLE:
        output.print_text(_summary(verb, outcomes))
    return 0


def job_id_batches(db: database.OpenDatabase, chosen: JobFilter) -> Iterator[list[int]]:
    """The ids of the jobs in batches, the newest first. Finding them costs more than changing them."""
    from pgworkers.job import queries

    for page in queries.search_pages(db.run, replace(chosen, limit=JOB_IDS_PER_QUERY)):
        for start in range(0, len(page.ids), JOBS_PER_TRANSACTION):
            yield page.ids[start : start + JOBS_PER_TRANSACTION]


def _summary(verb: JobChange, outcomes: Counter[str]) -> str:
    """`retried 12 jobs; 3 were not: 3 conflict`"""
    good = sum(count for outcome, count in outcomes.items() if outcome in verb.success_outcomes)
    others = {outcome: count for outcome, count in outcomes.items() if outcome not in verb.success_outcomes}
    sentence = f"{verb.past_tense} {plural(good, 'job')}"
    if others:
        sentence += f"; not {verb.past_tense}: " + ", ".join(
            f"{count:,} {name}" for name, count in others.items()
        )
    return sentence


def no_such_jobs(ids: list[int]) -> str:
    """The text for jobs that are not there."""
    listed = ", ".join(f"#{one}" for one in ids[:10]) + (", …" if len(ids) > 10 else "")
    return f"there is no job {listed}; pgworkers jobs list shows what there is"
