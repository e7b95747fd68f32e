"""The seven states of a job, the moves between them, and the verdicts of an attempt.

One enum in SQL (`job_state`) and here; a test compares them. `MOVES` is the table the diagram in the docs is
checked against. `claimed` is in no row: readers see it in place of `running` while no worker is known to have the job.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    SCHEDULED = "scheduled"  #: waits for its time
    READY = "ready"  #: may be claimed
    CLAIMED = "claimed"  #: only shown: a host holds its lease, and no worker is known to have it
    RUNNING = "running"  #: a host holds its lease
    SUCCEEDED = "succeeded"  #: terminal
    DEAD = "dead"  #: terminal: out of attempts, out of crashes, discarded, expired or without a result that can be kept
    CANCELLED = "cancelled"  #: terminal: somebody wished it


#: How the error of an attempt begins whose handler raised `Retry`: it did not fail, it asked.
ASKED = "asked to be retried"

#: A host holds its lease.
HELD = frozenset({State.CLAIMED, State.RUNNING})
LIVE = frozenset({State.SCHEDULED, State.READY}) | HELD
TERMINAL = frozenset({State.SUCCEEDED, State.DEAD, State.CANCELLED})

#: (from, to) -> the verb that makes the move.
MOVES: dict[tuple[State, State], str] = {
    (State.SCHEDULED, State.READY): "promote",
    (State.READY, State.RUNNING): "claim",
    (State.RUNNING, State.SUCCEEDED): "finish",
    (State.RUNNING, State.DEAD): "finish",
    (State.RUNNING, State.CANCELLED): "finish",
    (State.RUNNING, State.SCHEDULED): "retry",
    (State.RUNNING, State.READY): "release",
    (State.SCHEDULED, State.CANCELLED): "cancel",
    (State.READY, State.CANCELLED): "cancel",
    (State.SCHEDULED, State.DEAD): "discard",
    (State.READY, State.DEAD): "discard",
    (State.DEAD, State.READY): "requeue",
    (State.CANCELLED, State.READY): "requeue",
}


class Verdict(StrEnum):
    """Why an attempt ended."""

    SUCCEEDED = "succeeded"
    ERROR = "error"  #: the handler raised
    TIMEOUT = "timeout"  #: past its deadline
    CANCELLED = "cancelled"  #: somebody wished it
    MEMORY_LIMIT = "memory_limit"  #: over its own limit
    OOM = "oom"  #: the kernel took the worker
    CRASH = "crash"  #: a signal ended the worker
    EXIT = "exit"  #: the handler called sys.exit or os._exit
    INTERRUPTED = "interrupted"  #: drain, operator kill or the death of its supervisor; costs nothing
    HOST_LOST = "host_lost"  #: the host stopped renewing
    LEASE_LOST = "lease_lost"  #: another host owns the job now
    SNOOZED = "snoozed"  #: the handler asked to be run later; costs nothing
    THROTTLED = "throttled"  #: the handler asked for its queue to cool down; costs nothing
    DISCARDED = "discarded"  #: the handler, or an operator, gave it up
    EXPIRED = "expired"  #: not started in time
    UNFIT = "unfit"  #: its row cannot be claimed, or not be sent to a worker
    BAD_RESULT = "bad_result"  #: the handler returned what cannot be kept: too large, or not JSON


#: Verdicts that count against max_crashes: the process died, not only the handler.
CRASHES = frozenset({Verdict.CRASH, Verdict.OOM, Verdict.EXIT})
#: A job that was running in this many consecutive deaths of its supervisor or host is dead: it probably causes them.
MAX_LOSSES = 10
#: Verdicts that give the attempt back.
FREE = frozenset({Verdict.INTERRUPTED, Verdict.SNOOZED, Verdict.THROTTLED})
