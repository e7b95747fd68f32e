"""`pgworkers jobs retry | cancel | discard`: what each of them does to jobs, and in which states it is allowed.

`cli.job_changes` has what they share: choosing jobs by id or by filter, the confirmation, and the report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pgworkers.cli import database
from pgworkers.cli.invocation import CliCommand, invocation_of
from pgworkers.cli.job_changes import JobChange, change_jobs, reason_option
from pgworkers.cli.parameters import WAITING_STATES, job_filter_options, parse_job_id
from pgworkers.job.model import JobState

if TYPE_CHECKING:
    from pgworkers.job.operations import OperationNote


def _retry(db: database.OpenDatabase, ids: list[int], note: OperationNote) -> list[tuple[int, str | None]]:
    from pgworkers.job.requeue import requeue_until_settled

    found = requeue_until_settled(db.run, ids, note)
    return [(one, None if found[one] == "missing" else found[one]) for one in ids]


def _cancel(db: database.OpenDatabase, ids: list[int], note: OperationNote) -> list[tuple[int, str | None]]:
    from pgworkers.job.cancel import cancel_many

    found = db.run(cancel_many(ids, note))
    return [(one, found[one]) for one in ids]


def _discard(db: database.OpenDatabase, ids: list[int], note: OperationNote) -> list[tuple[int, str | None]]:
    from pgworkers.job.cancel import discard_many

    found = db.run(discard_many(ids, note))
    return [(one, found[one]) for one in ids]


RETRY_CHANGE = JobChange(
    "retry",
    "retried",
    (JobState.DEAD,),
    (JobState.DEAD, JobState.CANCELLED, JobState.SCHEDULED),
    frozenset({"requeued"}),
    _retry,
)
CANCEL_CHANGE = JobChange(
    "cancel",
    "cancelled",
    (*WAITING_STATES, JobState.CLAIMED, JobState.RUNNING),
    (*WAITING_STATES, JobState.CLAIMED, JobState.RUNNING),
    frozenset({"cancelled", "cancelling"}),
    _cancel,
)
DISCARD_CHANGE = JobChange(
    "discard", "discarded", WAITING_STATES, WAITING_STATES, frozenset({"dead"}), _discard
)


@click.command("retry", cls=CliCommand)
@click.argument("job_ids", metavar="[ID]...", nargs=-1, type=parse_job_id)
@job_filter_options
@reason_option
@click.pass_context
def retry(ctx: click.Context, /, **given: Any) -> int:
    """Run dead or cancelled jobs again, and scheduled jobs now. Resets their attempts.

    \b
    Examples:
      pgworkers jobs retry 1042
      pgworkers jobs retry --state dead --task render     shows the count and asks
      pgworkers jobs retry --queue reports -y             all dead jobs of the queue, without asking
    """
    return change_jobs(invocation_of(ctx), RETRY_CHANGE, **given)


@click.command("cancel", cls=CliCommand)
@click.argument("job_ids", metavar="[ID]...", nargs=-1, type=parse_job_id)
@job_filter_options
@reason_option
@click.pass_context
def cancel(ctx: click.Context, /, **given: Any) -> int:
    """Cancel jobs. Waiting jobs end at once, running jobs when they have stopped.

    \b
    Examples:
      pgworkers jobs cancel 1042 1043 --reason 'wrong input'
      pgworkers jobs cancel --state ready --task render
    """
    return change_jobs(invocation_of(ctx), CANCEL_CHANGE, **given)


@click.command("discard", cls=CliCommand)
@click.argument("job_ids", metavar="[ID]...", nargs=-1, type=parse_job_id)
@job_filter_options
@reason_option
@click.pass_context
def discard(ctx: click.Context, /, **given: Any) -> int:
    """Declare waiting jobs dead, without running them.

    \b
    Examples:
      pgworkers jobs discard 1042
      pgworkers jobs discard --state scheduled --queue reports
    """
    return change_jobs(invocation_of(ctx), DISCARD_CHANGE, **given)
