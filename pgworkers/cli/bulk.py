"""`pgworkers jobs retry | cancel | discard`: by id, or every job that a filter finds.

A filter first says how many jobs it means and asks; then it works in bounded batches, from the newest to the
oldest: jobs enqueued meanwhile are never touched, and one that cannot be changed is passed by, not met again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from pgworkers.cli import output, place
from pgworkers.cli.choosing import agreed, described, filters, states
from pgworkers.cli.invocation import Command, Invocation, said
from pgworkers.cli.progress import counted
from pgworkers.cli.values import job_id
from pgworkers.cli.wording import plural
from pgworkers.errors import NotFound, UsageError
from pgworkers.job.state import State

if TYPE_CHECKING:
    from pgworkers.job.operation import Note
    from pgworkers.job.show import Filter

#: Jobs that are changed in one transaction, and ids that are looked for at once.
BATCH = 500
PAGE = 50 * BATCH


#: The option of every command that leaves a trace in `pgworkers.operation`.
REASON = click.option("--reason", metavar="TEXT", help="Why; kept with your names and shown by `jobs show`.")


@dataclass(frozen=True, slots=True)
class Verb:
    """One change an operator makes to jobs."""

    name: str
    past: str
    meant: tuple[State, ...]  # what a filter without --state means
    possible: tuple[State, ...]
    good: frozenset[str]  # the outcomes that are what was wished
    apply: Callable[[place.Database, list[int], Note], list[tuple[int, str | None]]]


def _retry(db: place.Database, ids: list[int], note: Note) -> list[tuple[int, str | None]]:
    from pgworkers.job.requeue import settled
    from pgworkers.postgres.statements import run

    found = settled(lambda query: run(db.conn, db.schema, query), ids, note)
    return [(one, None if found[one] == "missing" else found[one]) for one in ids]


def _cancel(db: place.Database, ids: list[int], note: Note) -> list[tuple[int, str | None]]:
    from pgworkers.job.cancel import cancel_many
    from pgworkers.postgres.statements import run

    found = run(db.conn, db.schema, cancel_many(ids, note))
    return [(one, found[one]) for one in ids]


def _discard(db: place.Database, ids: list[int], note: Note) -> list[tuple[int, str | None]]:
    from pgworkers.job.discard import discard_many
    from pgworkers.postgres.statements import run

    found = run(db.conn, db.schema, discard_many(ids, note))
    return [(one, found[one]) for one in ids]


_WAITING = (State.SCHEDULED, State.READY)
RETRY = Verb(
    "retry",
    "retried",
    (State.DEAD,),
    (State.DEAD, State.CANCELLED, State.SCHEDULED),
    frozenset({"requeued"}),
    _retry,
)
CANCEL = Verb(
    "cancel",
    "cancelled",
    (*_WAITING, State.CLAIMED, State.RUNNING),
    (*_WAITING, State.CLAIMED, State.RUNNING),
    frozenset({"cancelled", "cancelling"}),
    _cancel,
)
DISCARD = Verb("discard", "discarded", _WAITING, _WAITING, frozenset({"dead"}), _discard)


@click.command("retry", cls=Command)
@click.argument("job_ids", metavar="[ID]...", nargs=-1, type=job_id)
@filters
@REASON
@click.pass_context
def retry(ctx: click.Context, /, **given: Any) -> int:
    """Run dead or cancelled jobs again, scheduled ones now. Their budget begins anew.

    \b
    Examples:
      pgworkers jobs retry 1042
      pgworkers jobs retry --state dead --task render     shows the count and asks
      pgworkers jobs retry --queue reports -y             all dead jobs of the queue, without asking
    """
    return _change(said(ctx), RETRY, **given)


@click.command("cancel", cls=Command)
@click.argument("job_ids", metavar="[ID]...", nargs=-1, type=job_id)
@filters
@REASON
@click.pass_context
def cancel(ctx: click.Context, /, **given: Any) -> int:
    """End jobs for good. Waiting ones at once, running ones as soon as they are stopped.

    \b
    Examples:
      pgworkers jobs cancel 1042 1043 --reason 'wrong input'
      pgworkers jobs cancel --state ready --task render
    """
    return _change(said(ctx), CANCEL, **given)


@click.command("discard", cls=Command)
@click.argument("job_ids", metavar="[ID]...", nargs=-1, type=job_id)
@filters
@REASON
@click.pass_context
def discard(ctx: click.Context, /, **given: Any) -> int:
    """Declare waiting jobs dead, without running them.

    \b
    Examples:
      pgworkers jobs discard 1042
      pgworkers jobs discard --state scheduled --queue reports
    """
    return _change(said(ctx), DISCARD, **given)


def _change(
    said: Invocation,
    verb: Verb,
    *,
    job_ids: tuple[int, ...],
    state: tuple[str, ...],
    queue: tuple[str, ...],
    task: tuple[str, ...],
    reason: str | None,
) -> int:
    from pgworkers.job.operation import note

    noted = note(reason)
    by_filter = bool(state or queue or task)
    if by_filter == bool(job_ids):
        raise UsageError(
            f"name the jobs to {verb.name} by id, or by --state, --queue or --task; nothing was changed"
        )
    wished = states(state) or list(verb.meant)
    if wrong := [one for one in wished if one not in verb.possible]:
        raise UsageError(
            f"{wrong[0]} jobs cannot be {verb.past}, only {', '.join(verb.possible)}; nothing was changed"
        )
    with place.database(said) as db:
        if by_filter:
            from pgworkers.job.show import Filter

            return change_by_filter(said, db, verb, Filter(states=wished, queues=queue, tasks=task), noted)
        return _by_id(said, verb, verb.apply(db, list(dict.fromkeys(job_ids)), noted))


def _by_id(said: Invocation, verb: Verb, outcomes: list[tuple[int, str | None]]) -> int:
    from pgworkers.cli.jobs import missing

    found = [{"id": one, "outcome": outcome} for one, outcome in outcomes if outcome is not None]
    if said.output != "table":
        output.rows(said, found, [], empty="")
    elif not said.quiet:
        for one, outcome in outcomes:
            if outcome is not None:
                output.say(f"#{one} {_says(verb, outcome)}")
    if unknown := [one for one, outcome in outcomes if outcome is None]:
        raise NotFound(missing(unknown))
    return 0 if all(outcome in verb.good for _, outcome in outcomes) else 1


def _says(verb: Verb, outcome: str) -> str:
    """What became of one job."""
    if outcome in verb.good:
        return "is ready again" if verb is RETRY else f"is {outcome}"
    return f"was not {verb.past}: {_REASONS.get(outcome, f'it is {outcome}')}"


_REASONS = {
    "conflict": "a newer job holds its unique key",
    "running": "it is running; cancel it first",
    "changing": "somebody else is changing it; try again",
}


def change_by_filter(said: Invocation, db: place.Database, verb: Verb, chosen: Filter, note: Note) -> int:
    from pgworkers.job import show
    from pgworkers.postgres.statements import run

    counted_jobs = show.count(lambda query: run(db.conn, db.schema, query), chosen)
    total = counted_jobs.jobs if counted_jobs.complete else None
    amount = plural(counted_jobs.jobs, "job")
    if total is None:
        amount = f"{'more than' if counted_jobs.jobs >= show.MAX_COUNT else 'at least'} {amount}"
    if total != 0 and not agreed(said, f"{verb.name} {amount} ({described(chosen)})?"):
        output.note(said, "nothing was changed")
        return 1
    outcomes: Counter[str] = Counter()
    rows: list[dict[str, Any]] = []
    with counted(said, verb.past, total) as done:
        for ids in batches(db, chosen):
            for one, outcome in verb.apply(db, ids, note):
                outcomes[outcome or "gone"] += 1
                if said.output == "ndjson":
                    output.line({"id": one, "outcome": outcome or "gone"})
                elif said.output == "json":
                    rows.append({"id": one, "outcome": outcome or "gone"})
            done(outcomes.total())
    if said.output == "json":
        output.document(rows)
    elif said.output == "table":
        output.say(_summary(verb, outcomes))
    return 0


def batches(db: place.Database, chosen: Filter) -> Iterator[list[int]]:
    """The ids of the jobs, a bounded number at a time, the newest first. Looking for them is dearer than changing them."""
    from pgworkers.job import show
    from pgworkers.postgres.statements import run

    for page in show.pages(lambda query: run(db.conn, db.schema, query), replace(chosen, limit=PAGE)):
        for start in range(0, len(page.ids), BATCH):
            yield page.ids[start : start + BATCH]


def _summary(verb: Verb, outcomes: Counter[str]) -> str:
    """`retried 12 jobs; 3 were not: 3 conflict`"""
    good = sum(count for outcome, count in outcomes.items() if outcome in verb.good)
    others = {outcome: count for outcome, count in outcomes.items() if outcome not in verb.good}
    told = f"{verb.past} {plural(good, 'job')}"
    if others:
        told += f"; not {verb.past}: " + ", ".join(f"{count:,} {name}" for name, count in others.items())
    return told
