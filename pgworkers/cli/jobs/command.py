"""The group `pgworkers jobs`. Its commands are in the other modules of this package."""

from __future__ import annotations

import click

from pgworkers.cli.invocation import CliGroup
from pgworkers.cli.jobs.deadline import deadline
from pgworkers.cli.jobs.list import list_jobs
from pgworkers.cli.jobs.retry_cancel_discard import cancel, discard, retry
from pgworkers.cli.jobs.show import show_job
from pgworkers.cli.jobs.stack_suspend_resume_kill import kill, resume, stack, suspend
from pgworkers.cli.jobs.wait import wait


@click.group(cls=CliGroup)
def jobs() -> None:
    """List, show, await, retry, cancel, discard jobs; move a deadline; look inside, suspend, resume, kill."""


for _command in (list_jobs, show_job, wait, retry, cancel, discard, deadline, stack, suspend, resume, kill):
    jobs.add_command(_command)
