"""Draws faults from a seed and plays them, several at a time; each counts itself only when it hit something."""

from __future__ import annotations

import random
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from chaos.environment import Host, World, boottime

OPEN = 4  # faults at once
GAP = 0.9  # mean seconds from one to the next
TRIES = 4  # a kind that found no target is drawn again

#: What a kind does: inject the fault, repair it, return the target; None if it found no target.
Play = Callable[[World, "Host | None", random.Random], "str | None"]


@dataclass(frozen=True)
class Kind:
    name: str
    needs: str  # "host", "leader", "server" or "": no other fault may use it meanwhile
    play: Play


KINDS: dict[str, Kind] = {}


def kind(name: str, needs: str = "") -> Callable[[Play], Play]:
    def register(play: Play) -> Play:
        assert name not in KINDS, name
        KINDS[name] = Kind(name, needs, play)
        return play

    return register


@dataclass
class Played:
    number: int
    kind: str
    began: float  # seconds of the run
    seconds: float
    hit: str | None
    error: str = ""
    since: int = 0  # CLOCK_BOOTTIME
    until: int = 0


class Nemesis:
    """`storm(seconds)` plays; afterwards nothing is open. The order of kinds follows from the seed alone."""

    def __init__(self, world: World, seed: str, say: Callable[[str], None]) -> None:
        self.played: list[Played] = []
        self._world = world
        self._say = say
        self._seed = seed
        self._draw = random.Random(f"{seed} nemesis")
        self._deck: list[str] = []
        self._misses: Counter[str] = Counter()
        self.began = time.monotonic()
        self.without = {} if world.postgres.disk else {"disk.full": "needs root"}  # what cannot be had here
        self.without |= {} if world.hosts[0].wall else {"host.clock": "needs a C compiler"}
        self._slots = threading.Semaphore(OPEN)
        self._lock = threading.Lock()

    def hits(self) -> Counter[str]:
        return Counter(one.kind for one in self.played if one.hit)

    def missing(self, least: int) -> list[str]:
        """Kinds that have not hit often enough; they come next."""
        hits = self.hits()
        found = [name for name in KINDS if hits[name] < least and name not in self.without]
        if found:
            self._deck = found
        return found

    def storm(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        threads: list[threading.Thread] = []
        while time.monotonic() < until:
            time.sleep(min(self._draw.expovariate(1 / GAP), 3.0))
            self._slots.acquire()
            name = self._next()
            number = len(threads) + len(self.played) + 1
            thread = threading.Thread(target=self._play, args=(KINDS[name], number), name=name)
            threads = [one for one in threads if one.is_alive()]
            threads.append(thread)
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive(), f"the fault {thread.name} does not end"

    def data(self) -> list[dict[str, Any]]:
        return [asdict(one) for one in self.played]

    def _next(self) -> str:
        if not self._deck:
            self._deck = sorted(KINDS)
            self._draw.shuffle(self._deck)
        return self._deck.pop(0)

    def _play(self, kind: Kind, number: int) -> None:
        draw = random.Random(f"{self._seed} {number} {kind.name}")
        since, began = boottime(), time.monotonic()
        hit, error = None, ""
        try:
            hit = self._with_needs(kind, draw)
        except Exception:
            error = traceback.format_exc()
        finally:
            self._slots.release()
        took = time.monotonic() - began
        one = Played(
            number, kind.name, round(began - self.began, 2), round(took, 2), hit, error, since, boottime()
        )
        with self._lock:
            self.played.append(one)
            if hit is None and self._misses[kind.name] < TRIES:
                self._misses[kind.name] += 1
                self._deck.append(kind.name)
        self._say(f"{one.began:7.1f}s {kind.name:22} {took:5.1f}s {hit or 'hit nobody'} {error}")

    def _with_needs(self, kind: Kind, draw: random.Random) -> str | None:
        world = self._world
        if kind.needs == "server":
            with world.taking(world.server_free) as taken:
                return kind.play(world, None, draw) if taken else None
        if kind.needs in ("host", "leader"):
            host = world.leader() if kind.needs == "leader" else None
            hosts = [host] if host else draw.sample(world.hosts, len(world.hosts))
            if kind.needs == "leader" and host is None:
                return None
            for one in hosts:
                if one.free.acquire(timeout=10 if len(hosts) == 1 else 0.05):
                    try:
                        one.ensure()
                        return kind.play(world, one, draw)
                    finally:
                        one.free.release()
            return None
        return kind.play(world, None, draw)
