"""`pgworkers jobs`: list, show and await jobs; changing them is in `bulk`."""

from __future__ import annotations

import click

from pgworkers.cli.invocation import CliGroup
from pgworkers.cli.jobs import retry_cancel_discard, stack_suspend_resume_kill


@click.group(cls=CliGroup)
def jobs() -> None:
    """List, show, await, retry, cancel, discard jobs; move a deadline; look inside, suspend, resume, kill."""


for _verb in (
    retry_cancel_discard.retry,
    retry_cancel_discard.cancel,
    retry_cancel_discard.discard,
    stack_suspend_resume_kill.stack,
    stack_suspend_resume_kill.suspend,
    stack_suspend_resume_kill.resume,
    stack_suspend_resume_kill.kill,
):
    jobs.add_command(_verb)
