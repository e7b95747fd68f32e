"""`jobs stack|suspend|resume|kill` and `workers stack|stop`: reaching into a running job or worker, on any host."""

from __future__ import annotations

import click

from pgworkers.cli import output, place
from pgworkers.cli.invocation import Command, said
from pgworkers.cli.values import job_id
from pgworkers.errors import NotFound, PgworkersError, UsageError


def _reach(ctx: click.Context, kind: str, number: int) -> None:
    from pgworkers.cli import asking

    invocation = said(ctx)
    with place.database(invocation) as db:
        answer = asking.of_job(db, kind, number)
    if answer.done is None:
        raise PgworkersError(
            f"job #{number}: its host did not answer; pgworkers hosts shows whether it lives"
        )
    if not answer.done:
        raise PgworkersError(f"job #{number}: {answer.text}")
    if invocation.output == "table":
        if kind == "stack":
            output.say(answer.text or "", lines=True)
        else:
            output.say(f"#{number} {answer.text}")
    else:
        output.document({"id": number, kind: answer.text})


@click.command("stack", cls=Command)
@click.argument("number", metavar="ID", type=job_id)
@click.pass_context
def stack(ctx: click.Context, *, number: int) -> None:
    """The Python stack of a running job, now, without stopping it.

    Works on any host, also while C code holds the interpreter's lock. It is done by a signal: Python's own calls go
    on where they were, but C code that does not begin an interrupted call again (EINTR) may end a wait early.

    \b
    Examples:
      pgworkers jobs stack 1042
    """
    _reach(ctx, "stack", number)


@click.command("suspend", cls=Command)
@click.argument("number", metavar="ID", type=job_id)
@click.pass_context
def suspend(ctx: click.Context, *, number: int) -> None:
    """Let a running job stand still (SIGSTOP). Its lease is kept and its deadline waits.

    \b
    Examples:
      pgworkers jobs suspend 1042
      pgworkers jobs resume 1042
    """
    _reach(ctx, "suspend", number)


@click.command("resume", cls=Command)
@click.argument("number", metavar="ID", type=job_id)
@click.pass_context
def resume(ctx: click.Context, *, number: int) -> None:
    """Let a suspended job go on.

    \b
    Examples:
      pgworkers jobs resume 1042
    """
    _reach(ctx, "resume", number)


@click.command("kill", cls=Command)
@click.argument("number", metavar="ID", type=job_id)
@click.pass_context
def kill(ctx: click.Context, *, number: int) -> None:
    """Kill the process of a running job. The job is handed back at once, and runs again.

    SIGKILL: the handler is not asked and nothing of it is left; its stack is kept with the attempt, which costs nothing.

    \b
    Examples:
      pgworkers jobs kill 1042
      pgworkers jobs cancel 1042      to end it for good
    """
    _reach(ctx, "kill", number)


@click.command("stack", cls=Command)
@click.argument("worker", metavar="[QUEUE[/SLOT]]", required=False)
@click.pass_context
def workers_stack(ctx: click.Context, *, worker: str | None) -> int:
    """The Python stacks of workers, now. Of all of them, those of a queue, or one.

    Exit code 1 when one of them gives no answer within 10 s.

    \b
    Examples:
      pgworkers workers stack
      pgworkers workers stack render
      pgworkers workers stack render/0
    """
    from pgworkers.cli import asking

    invocation = said(ctx)
    queue, slot = _worker(worker or "")
    with place.database(invocation) as db:
        found = asking.of_workers(db, "stack", queue, slot)
    if worker and not found:
        raise _unknown(worker)
    told = [
        {"host": one.host, "worker": f"{one.queue}/{one.slot}", "stack": one.text or "no answer"}
        for one in found
    ]
    if invocation.output == "json":
        output.document(told)
    elif invocation.output == "ndjson":
        for row in told:
            output.line(row)
    else:
        for row in told:
            output.say(f"{row['worker']} on {row['host']}")
            output.say(f"{row['stack']}\n", lines=True)
        if not told:
            output.note(invocation, "no workers: no host has told of any yet; pgworkers run starts one")
    return 0 if all(one.done for one in found) else 1


@click.command("stop", cls=Command)
@click.argument("worker", metavar="QUEUE[/SLOT]")
@click.pass_context
def workers_stop(ctx: click.Context, *, worker: str) -> int:
    """Let workers leave after their job. Their supervisor starts fresh ones.

    For a worker that has grown large or holds something stale. Running jobs finish; to stop a job, cancel or kill it.
    To have fewer workers, scale the queue.

    \b
    Examples:
      pgworkers workers stop render/0
      pgworkers workers stop render         all of the queue, on every host
    """
    from pgworkers.cli import asking

    invocation = said(ctx)
    queue, slot = _worker(worker)
    with place.database(invocation) as db:
        found = asking.of_workers(db, "leave", queue, slot)
    if not found:
        raise _unknown(worker)
    told = [
        {"host": one.host, "worker": f"{one.queue}/{one.slot}", "outcome": one.text or "no answer"}
        for one in found
    ]
    if invocation.output != "table":
        output.rows(invocation, told, [], empty="")
    else:
        for row in told:
            output.say(f"{row['worker']} on {row['host']}: {row['outcome']}")
    return 0 if all(one.done for one in found) else 1


def _unknown(worker: str) -> NotFound:
    return NotFound(f"there is no worker {worker!r}; pgworkers workers shows those there are")


def _worker(text: str) -> tuple[str | None, int | None]:
    """`QUEUE` or `QUEUE/SLOT`; the slot is what stands behind the last stroke."""
    if not text:
        return None, None
    queue, stroke, slot = text.rpartition("/")
    if not stroke:
        return text, None
    if not (slot.isascii() and slot.isdigit() and len(slot) < 10):
        raise UsageError(
            f"{text!r} is not a worker; write QUEUE or QUEUE/SLOT, as pgworkers workers shows them"
        )
    return queue, int(slot)
