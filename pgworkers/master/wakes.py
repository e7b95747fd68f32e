"""When a host wants to be told of new jobs, and when it looks by itself; pure.

Notifications make all commits on the server wait for one another, so they are for hosts that sleep. It is what a
network card does under load: interrupts while little comes in, polling while much does.

A queue is *asleep* as long as few notifications of it arrive: each new job wakes one of the sleeping hosts at once. When
they come faster than `BUSY`, it is *awake*: no host is notified of it, and the host looks every `STEP` while it has room.
When it had room and found nothing for `QUIET`, it falls asleep again. Hosts that share a queue share the looks: each looks
less often and stays awake for longer, up to `MAX_SHARE` times, so that together they look as often as one.

A queue is *full* when the host was notified of a job for which it had no room, and passed the notification on. It asks to
be notified again when a claim has found less than there was room for. (docs/adr/2911)

Falling asleep has a gap: a transaction that saw no sleeping host may commit its job just after this host has looked. So
the host looks again, a few times, at growing distances (`LOOKS`); what commits later still is found by the poll. If another
host slept already, that transaction has notified it, and there are no more looks.

A queue that sleeps and gave less than there was room for is *dry*: whatever becomes ready in it is notified, so until then
nobody looks, however many workers get free. It is dry for no longer than the poll, or until a look can go where the last
one did not. (docs/adr/2331)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

WINDOW = 0.1
BUSY = 20  # notifications of a queue within a window
STEP = 0.005
QUIET = 0.1
LOOKS = (0.003, 0.015, 0.075)
MAX_SHARE = 10


class Wakes:
    def __init__(self) -> None:
        self._heard: dict[str, tuple[float, int]] = {}  # queue -> begin of the window, notifications in it
        self._awake: dict[str, float] = {}  # queue -> when it was last of use to be awake
        self._told: frozenset[str] | None = None  # what the database knows; None: nobody knows
        self._looks: list[float] = []
        self.hosts = 1  # that serve these queues, this one included
        self._full: set[str] = set()
        self._dry: dict[str, float] = {}  # queue -> until when
        self._expired: set[str] = set()  # were dry until now, and were not heard of
        self._polled: set[str] = set()  # of these, what the last claim looked at
        self._news: set[str] | None = (
            set()
        )  # queues heard of since the last claim was sent; None: any may have jobs

    def heard(self, queue: str, now: float) -> None:
        """A notification of this queue came."""
        self._dry.pop(queue, None)
        self._expired.discard(queue)
        if self._news is not None:
            self._news.add(queue)
        begin, count = self._heard.get(queue, (now, 0))
        begin, count = (begin, count + 1) if now - begin <= WINDOW else (now, 1)
        self._heard[queue] = (begin, count)
        if count > BUSY:
            self._awake[queue] = now

    def awake(self, queue: str) -> bool:
        """True if the host looks at this queue by itself, without notifications."""
        return queue in self._awake

    def stir(self) -> None:
        """Something changed that may let jobs of any queue begin."""
        self._dry.clear()
        self._expired.clear()
        self._news = None

    def forget(self) -> None:
        """The database may know nothing of this host any more."""
        self._told = None
        self.stir()

    def to_tell(self, queues: Iterable[str]) -> frozenset[str] | None:
        """Of which of its queues the host wants to be notified, when the database does not know that yet."""
        wanted = frozenset(queues) - self._awake.keys() - self._full
        return None if wanted == self._told else wanted

    def told(self, asleep: frozenset[str], now: float, unattended: frozenset[str] | None = None) -> None:
        """The database knows. Whatever fell asleep is looked at again.

        `unattended`: the queues for which no other host slept; None: all of them.
        """
        fallen = asleep - (self._told or frozenset())
        if fallen:
            self.stir()
        if fallen if unattended is None else fallen & unattended:
            self._looks = [now + after for after in LOOKS]
        self._told = asleep

    def full(self, queues: Set[str]) -> None:
        """The database knows that this host is not to be notified of these queues: it has no room."""
        self._full |= queues
        if self._told is not None:
            self._told -= queues

    def dry(self, queue: str, now: float) -> bool:
        return self._dry.get(queue, now) > now

    def sent(self) -> None:
        """A claim is on its way: what is heard from now on it may have missed."""
        self._news = set()

    def polled(self, queue: str) -> bool:
        """True if the last claim looked at this queue only because the poll was due: no notification had come."""
        return queue in self._polled

    def looked(self, room: Mapping[str, int], found: Mapping[str, int], now: float, again: float) -> None:
        """A claim came back: these queues had room for so many, and in these it found some.

        `again`: when to look once more, whatever is heard until then.
        """
        self._looks = [look for look in self._looks if look > now]
        self._polled = room.keys() & (self._expired | self._dry.keys())
        self._expired -= room.keys()
        for queue, count in room.items():
            if found.get(queue, 0) >= count:
                self._dry.pop(queue, None)
                continue
            self._full.discard(queue)
            if self._news is not None and queue not in self._news and queue in (self._told or ()):
                self._dry[queue] = again
        idle = room.keys() - found.keys()
        for queue, used in list(self._awake.items()):
            if queue not in idle:
                self._awake[queue] = now
            elif now - used > QUIET * self._share():
                del self._awake[queue]
                self._heard.pop(queue, None)

    def pause(self, now: float, poll: float, room: bool) -> float:
        """How long the host may wait for a notification before it looks by itself."""
        pause = poll
        if self._looks and self._looks[0] <= now:
            del self._looks[0]
            self.stir()
            return 0.0
        if self._dry:
            again = min(self._dry.values())
            if again <= now:
                self._expired |= {queue for queue, until in self._dry.items() if until <= now}
                self._dry = {queue: until for queue, until in self._dry.items() if until > now}
                return 0.0
            pause = min(pause, again - now)
        if self._looks:
            pause = min(pause, self._looks[0] - now)
        if self._awake and room:
            pause = min(pause, STEP * self._share())
        return pause

    def _share(self) -> int:
        return min(self.hosts, MAX_SHARE)
