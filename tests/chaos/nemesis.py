"""Draw faults from a seed and inject them, several at a time. A fault counts only if it found a target."""

from __future__ import annotations

import random
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from chaos.environment import Host, SoakEnvironment, boottime

MAX_OPEN_FAULTS = 4  # faults at once
MEAN_GAP_SECONDS = 0.9  # mean seconds from one to the next
MAX_DRAWS_WITHOUT_TARGET = 4  # a kind that found no target is drawn again

#: What a kind does: inject the fault, repair it, return the target; None if it found no target.
Fault = Callable[[SoakEnvironment, "Host | None", random.Random], "str | None"]


@dataclass(frozen=True)
class Kind:
    name: str
    needs: str  # "host", "leader", "server" or "": no other fault may use it meanwhile
    inject: Fault


KINDS: dict[str, Kind] = {}


def kind(name: str, needs: str = "") -> Callable[[Fault], Fault]:
    def register(inject: Fault) -> Fault:
        assert name not in KINDS, name
        KINDS[name] = Kind(name, needs, inject)
        return inject

    return register


@dataclass
class InjectedFault:
    number: int
    kind: str
    began: float  # seconds of the run
    seconds: float
    hit: str | None
    error: str = ""
    since: int = 0  # CLOCK_BOOTTIME
    until: int = 0


class Nemesis:
    """`run(seconds)` injects faults; when it returns, all are repaired. The order of kinds follows from the seed alone."""

    def __init__(self, soak: SoakEnvironment, seed: str, say: Callable[[str], None]) -> None:
        self.injected: list[InjectedFault] = []
        self._soak = soak
        self._say = say
        self._seed = seed
        self._draw = random.Random(f"{seed} nemesis")
        self._deck: list[str] = []
        self._misses: Counter[str] = Counter()
        self.began = time.monotonic()
        self.without = (
            {} if soak.postgres.disk else {"disk.full": "needs root"}
        )  # kind -> what this machine lacks
        self.without |= {} if soak.hosts[0].wall else {"host.clock": "needs a C compiler"}
        self._slots = threading.Semaphore(MAX_OPEN_FAULTS)
        self._lock = threading.Lock()

    def hits(self) -> Counter[str]:
        return Counter(one.kind for one in self.injected if one.hit)

    def missing(self, least: int) -> list[str]:
        """Kinds that have not found a target often enough; they are drawn next."""
        hits = self.hits()
        found = [name for name in KINDS if hits[name] < least and name not in self.without]
        if found:
            self._deck = found
        return found

    def run(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        threads: list[threading.Thread] = []
        while time.monotonic() < until:
            time.sleep(min(self._draw.expovariate(1 / MEAN_GAP_SECONDS), 3.0))
            self._slots.acquire()
            name = self._next()
            number = len(threads) + len(self.injected) + 1
            thread = threading.Thread(target=self._inject, args=(KINDS[name], number), name=name)
            threads = [one for one in threads if one.is_alive()]
            threads.append(thread)
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive(), f"the fault {thread.name} does not end"

    def data(self) -> list[dict[str, Any]]:
        return [asdict(one) for one in self.injected]

    def _next(self) -> str:
        if not self._deck:
            self._deck = sorted(KINDS)
            self._draw.shuffle(self._deck)
        return self._deck.pop(0)

    def _inject(self, kind: Kind, number: int) -> None:
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
        one = InjectedFault(
            number, kind.name, round(began - self.began, 2), round(took, 2), hit, error, since, boottime()
        )
        with self._lock:
            self.injected.append(one)
            if hit is None and self._misses[kind.name] < MAX_DRAWS_WITHOUT_TARGET:
                self._misses[kind.name] += 1
                self._deck.append(kind.name)
        self._say(f"{one.began:7.1f}s {kind.name:22} {took:5.1f}s {hit or 'no target'} {error}")

    def _with_needs(self, kind: Kind, draw: random.Random) -> str | None:
        soak = self._soak
        if kind.needs == "server":
            with soak.taking(soak.server_free) as taken:
                return kind.inject(soak, None, draw) if taken else None
        if kind.needs in ("host", "leader"):
            host = soak.leader() if kind.needs == "leader" else None
            hosts = [host] if host else draw.sample(soak.hosts, len(soak.hosts))
            if kind.needs == "leader" and host is None:
                return None
            for one in hosts:
                if one.free.acquire(timeout=10 if len(hosts) == 1 else 0.05):
                    try:
                        one.ensure()
                        return kind.inject(soak, one, draw)
                    finally:
                        one.free.release()
            return None
        return kind.inject(soak, None, draw)
