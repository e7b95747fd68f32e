"""When a host wants to be told of new jobs, and when it looks by itself; pure.

Notifications make all commits on the server wait for one another, so they are for hosts that sleep. It is what a
network card does under load: interrupts while little comes in, polling while much does.

A queue is *asleep* as long as few notifications of it arrive: each new job wakes the host at once. When they come
faster than `BUSY`, it is *awake*: nobody is notified of it, and the host looks every `STEP` while it has room. When
it had room and found nothing for `QUIET`, it falls asleep again.

Falling asleep has a gap: whoever enqueued without seeing that the host sleeps may commit just after the host has
looked. So it looks again, a few times, at growing distances (`LOOKS`); what commits later still is found by the poll.
"""

from __future__ import annotations

from collections.abc import Iterable

WINDOW = 0.1
BUSY = 20  # notifications of a queue within a window
STEP = 0.005
QUIET = 0.1
LOOKS = (0.003, 0.015, 0.075)


class Wakes:
    def __init__(self) -> None:
        self._heard: dict[str, tuple[float, int]] = {}  # queue -> begin of the window, notifications in it
        self._awake: dict[str, float] = {}  # queue -> when it was last of use to be awake
        self._told: frozenset[str] | None = None  # what the database knows; None: nobody knows
        self._looks: list[float] = []

    def heard(self, queue: str, now: float) -> None:
        """A notification of this queue came."""
        begin, count = self._heard.get(queue, (now, 0))
        begin, count = (begin, count + 1) if now - begin <= WINDOW else (now, 1)
        self._heard[queue] = (begin, count)
        if count > BUSY:
            self._awake[queue] = now

    def forget(self) -> None:
        """The database may know nothing of this host any more."""
        self._told = None

    def to_tell(self, queues: Iterable[str]) -> frozenset[str] | None:
        """Of which of its queues the host wants to be notified, when the database does not know that yet."""
        wanted = frozenset(queues) - self._awake.keys()
        return None if wanted == self._told else wanted

    def told(self, asleep: frozenset[str], now: float) -> None:
        """The database knows. Whatever fell asleep is looked at again."""
        if asleep - (self._told or frozenset()):
            self._looks = [now + after for after in LOOKS]
        self._told = asleep

    def looked(self, room: Iterable[str], found: Iterable[str], now: float) -> None:
        """A claim came back: these queues had room, and in these it found jobs."""
        self._looks = [look for look in self._looks if look > now]
        idle = set(room) - set(found)
        for queue, used in list(self._awake.items()):
            if queue not in idle:
                self._awake[queue] = now
            elif now - used > QUIET:
                del self._awake[queue]
                self._heard.pop(queue, None)

    def pause(self, now: float, poll: float, room: bool) -> float:
        """How long the host may wait for a notification before it looks by itself."""
        pause = poll
        if self._looks and self._looks[0] <= now:
            del self._looks[0]
            return 0.0
        if self._looks:
            pause = min(pause, self._looks[0] - now)
        if self._awake and room:
            pause = min(pause, STEP)
        return pause
