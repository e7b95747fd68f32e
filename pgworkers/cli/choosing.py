"""Which jobs are meant: the options that filter them, and the question before many are changed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pgworkers.cli.invocation import Invocation
from pgworkers.cli.wording import plain
from pgworkers.errors import UsageError
from pgworkers.job.state import State

if TYPE_CHECKING:
    from pgworkers.job.show import Filter

F = TypeVar("F", bound=Callable[..., Any])


def filters(command: F) -> F:
    """The options that choose jobs."""
    for option in (
        click.option(
            "--task", multiple=True, metavar="TASK", help="Only jobs of this task; may be repeated."
        ),
        click.option(
            "--queue", multiple=True, metavar="QUEUE", help="Only jobs of this queue; may be repeated."
        ),
        click.option(
            "--state",
            multiple=True,
            type=click.Choice([str(state) for state in State]),
            help="Only jobs in this state; may be repeated.",
        ),
    ):
        command = option(command)
    return command


def states(given: Sequence[str]) -> list[State]:
    return [State(name) for name in given]


def described(chosen: Filter) -> str:
    """`dead or cancelled, queue reports, task render`"""
    said = (("", chosen.states), ("queue ", chosen.queues), ("task ", chosen.tasks))
    return ", ".join(what + " or ".join(names) for what, names in said if names)


def agreed(said: Invocation, question: str) -> bool:
    """Ask before a bulk change; without a terminal to ask on, refuse."""
    if said.yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError(f"{question} There is no terminal to ask on; -y goes ahead; nothing was changed")
    return click.confirm(plain(question), err=True)
