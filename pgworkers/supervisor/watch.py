"""What a supervisor reads from a scoreboard slot: limits that are broken and workers that stand still. Pure."""

from __future__ import annotations

import msgspec

from pgworkers.process.scoreboard import Reason, Running, State


def broken_limit(now: int, running: Running, used: int) -> Reason:
    """The limit that the running job has broken. `now` in nanoseconds, `used` in bytes."""
    if running.job == 0 or running.state != State.RUNNING:
        return Reason.NONE
    if running.deadline and now >= running.deadline:
        return Reason.DEADLINE
    if running.memory and used > running.memory:
        return Reason.MEMORY
    return Reason.NONE


def runs_away(running: Running, used: int) -> bool:
    """Far beyond its memory limit while it is being stopped: no grace is worth the neighbours' memory."""
    return running.memory > 0 and used > running.memory * 3 // 2


def patience(heartbeat: float) -> float:
    """How long a worker may neither beat nor use CPU before it counts as stalled."""
    return max(2.0, 3 * heartbeat)


def stood_still(now: float, pulse: Pulse, limit: int) -> bool:
    """Has a stalled worker shown no sign of life for longer than its job allows? `limit` in nanoseconds, 0: any."""
    return limit > 0 and pulse.stalled and now - pulse.since >= limit / 1e9


class Pulse(msgspec.Struct, eq=False):
    """The last sign of life of one worker: its beat, or else its CPU time.

    A C extension that holds the GIL stops the beat but uses CPU; a handler that sleeps uses none but its
    heartbeat thread beats. Neither is stalled. A worker that does neither is stopped, swapped out or
    deadlocked.
    """

    beat: int = -1
    ticks: int = -1  # -1: not asked for since the last beat
    since: float = 0.0
    stalled: bool = False

    def beats(self, now: float, beat: int, patience: float) -> bool:
        """Of a worker that rests: is its beat not overdue? Then there is no need to ask for its CPU time."""
        if beat != self.beat and not self.stalled:
            self.beat, self.ticks, self.since = beat, -1, now
        return not self.stalled and now - self.since < patience / 2

    def feel(self, now: float, beat: int, ticks: int, patience: float, *, rests: bool = False) -> bool | None:
        """True: it has just stalled. False: it has just come back. None: nothing new."""
        if self.ticks < 0 and beat == self.beat:
            self.ticks = ticks
            if not rests:
                self.since = now  # it has rested until now, and may have beaten long ago
        if (beat, ticks) != (self.beat, self.ticks):
            self.beat, self.ticks, self.since = beat, ticks, now
            if self.stalled:
                self.stalled = False
                return False
        elif not self.stalled and now - self.since >= patience:
            self.stalled = True
            return True
        return None
