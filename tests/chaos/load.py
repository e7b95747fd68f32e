"""Enqueue jobs of every kind through a separate proxy, and remember the answer to each."""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg

from chaos.environment import SoakEnvironment
from pgworkers.app import App
from pgworkers.app_import import import_app
from pgworkers.errors import OutcomeUnknown, PgworkersError
from pgworkers.settings import Settings

MAX_LIVE_JOBS = 90  # jobs that wait or run, before the load holds back
OUTLASTING = {"outlast", "outlast_alone"}  # kinds, and their tasks
MAX_OUTLASTING_JOBS = 4  # of each; their queues have six workers
UNKNOWN = "of_another_app"  # a task that no host has
MAX_UNKNOWN_JOBS = 300
ENQUEUE_INTERVAL_SECONDS = 0.02
#: The states in which a job may end that was not cancelled.
EXPECTED_STATES = {
    "sturdy": {"succeeded"},
    "alone": {"succeeded"},
    "outlast": {"succeeded"},
    "outlast_alone": {"succeeded"},
    "limited": {"succeeded"},
    "gather": {"succeeded"},
    "beat": {"succeeded"},
    "stuck": {"dead"},
}
#: Those that write how they were left, however that was; and those that return their lease.
WRITING_END = {"sturdy", "alone", "outlast", "outlast_alone", "limited", "gather", "beat"}
RETURNING_LEASE = {"sturdy", "alone", "outlast", "outlast_alone", "limited"}
EXCLUSIVE = {"alone", "outlast_alone"}


@dataclass
class EnqueueAnswers:
    """The answers that the enqueuer received."""

    acknowledged: dict[str, int] = field(default_factory=dict)  # token -> job
    unknown: set[str] = field(default_factory=set)  # the connection broke: at most one job each
    batches: dict[str, tuple[int, int]] = field(default_factory=dict)  # token -> (batch, jobs)
    idempotent: dict[str, list[str]] = field(default_factory=dict)  # key -> tokens of its enqueues
    errors: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)


class Load:
    """A thread that keeps the hosts busy. `pause()` for the quiet phases."""

    def __init__(self, soak: SoakEnvironment, seed: str) -> None:
        self.answers = EnqueueAnswers()
        self._soak = soak
        self._draw = random.Random(f"{seed} load")
        self._number = 0
        self._alive: Counter[str] = Counter()  # jobs by task, when they were last counted
        self._on = threading.Event()
        self._is_paused = threading.Event()
        self._end = threading.Event()
        os.environ["APP_QUEUES"] = soak.queues
        self._app: App = import_app(str(soak.cluster.app))

        @self._app.task(name=UNKNOWN)  # here only: the hosts do not have it
        def unknown() -> None: ...

        self._app.use_database(soak.client.dsn, Settings())  # an enqueuer has the timeouts of production
        self._thread = threading.Thread(target=self._run, name="load")
        self._thread.start()

    def go(self) -> None:
        self._is_paused.clear()
        self._on.set()

    def pause(self) -> None:
        self._on.clear()
        self._is_paused.wait(60)

    def close(self) -> None:
        self._end.set()
        self._on.set()
        self._thread.join(60)
        self._app.close()

    def probe(self, queue: str) -> int | None:
        """Enqueue one small job. Returns its id; None if the answer was lost."""
        token = self._token()
        self._send(token, lambda: self._using("sturdy", token, queue=queue).enqueue(0.02).id)
        return self.answers.acknowledged.get(token)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._end.is_set():
            if not self._on.is_set():
                self._is_paused.set()
                self._on.wait(1)
                continue
            try:
                self._alive = Counter(
                    dict(self._soak.rows("SELECT task, count(*) FROM pgworkers.job GROUP BY 1"))
                )
            except psycopg.Error:
                continue
            room = MAX_LIVE_JOBS - self._alive.total() + self._alive[UNKNOWN]
            for _ in range(min(room, 12)):
                self._one()
            time.sleep(ENQUEUE_INTERVAL_SECONDS if room > 0 else 0.2)

    def _one(self) -> None:
        draw, token = self._draw, self._token()
        kind = draw.choices(list(JOB_KINDS), weights=[weight for weight, _ in JOB_KINDS.values()])[0]
        if kind in OUTLASTING:
            self._alive[kind] += 1
            kind = kind if self._alive[kind] <= MAX_OUTLASTING_JOBS else "short"
        if kind == "unknown":
            self._alive[UNKNOWN] += 1
            kind = kind if self._alive[UNKNOWN] <= MAX_UNKNOWN_JOBS else "short"
        self.answers.kinds[kind] += 1
        JOB_KINDS[kind][1](self, token, draw)

    def _token(self) -> str:
        self._number += 1
        return f"t{self._number}"

    def _using(self, task: str, token: str, **options: Any) -> Any:
        return self._app.tasks[task].using(meta={"t": token}, **options)

    def _send(self, token: str, enqueue: Callable[[], int]) -> None:
        try:
            self.answers.acknowledged[token] = enqueue()
        except OutcomeUnknown:
            self.answers.unknown.add(token)
        except (PgworkersError, psycopg.Error) as error:
            self.answers.errors[_short(error)] += 1
            # Not even connected, or an error of the server. It may have been killed between commit and answer, which
            # psycopg says in the same words. So: at most one.
            self.answers.unknown.add(token)

    def simple(self, token: str, task: str, *args: Any, **options: Any) -> None:
        self._send(token, lambda: self._using(task, token, **options).enqueue(*args).id)

    def batch(self, token: str, draw: random.Random) -> None:
        size = draw.randint(3, 12)
        tokens = [f"{token}.{nth}" for nth in range(size)]
        jobs = [self._using("sturdy", one).prepare(draw.uniform(0, 0.1)) for one in tokens]
        then = self._using("gather", f"{token}.then").prepare()
        self.answers.unknown.update(tokens)  # COPY returns no ids
        try:
            made = self._app.batch(jobs, then)
            assert made.then is not None
            self.answers.acknowledged[f"{token}.then"] = made.then.id
            self.answers.batches[token] = (made.id, size)
        except (PgworkersError, psycopg.Error):
            self.answers.unknown.add(f"{token}.then")

    def idempotent(self, token: str, draw: random.Random) -> None:
        """Enqueue with a key that may have been used before, by a job that has ended or whose answer was lost."""
        key = f"i{draw.randint(1, 40)}"
        self.answers.idempotent.setdefault(key, []).append(token)
        self.simple(token, "sturdy", 0.0, idempotency_key=key)

    def chain(self, token: str, draw: random.Random) -> None:
        self.simple(token, "sturdy", draw.uniform(0, 0.2))
        first = self.answers.acknowledged.get(token)
        if first is not None:
            self.simple(f"{token}.next", "sturdy", 0.0, after=[first], on_failed="run")


def _short(error: Exception) -> str:
    """The class of the error and the message of the server or the network, without addresses."""
    said = re.split(r"failed: |; nothing was done", str(error).splitlines()[0])
    return f"{type(error).__name__}: {(said[2] if len(said) > 2 else said[0])[:80]}"


Maker = Callable[[Load, str, random.Random], None]


def _plain(task: str, *args: Any, **options: Any) -> Maker:
    return lambda load, token, draw: load.simple(token, task, *args, **options)


JOB_KINDS: dict[str, tuple[int, Maker]] = {
    "short": (30, lambda load, token, draw: load.simple(token, "sturdy", draw.uniform(0, 0.15))),
    "fast": (15, _plain("sturdy", 0.0, queue="fast")),
    "long": (4, lambda load, token, draw: load.simple(token, "sturdy", draw.uniform(1, 3), queue="slow")),
    "alone": (
        4,
        lambda load, token, draw: load.simple(token, "alone", draw.uniform(0.5, 2.5), queue="alone"),
    ),
    "outlast": (
        3,
        lambda load, token, draw: load.simple(token, "outlast", draw.uniform(12, 24), queue="slow"),
    ),
    "outlast_alone": (
        3,
        lambda load, token, draw: load.simple(token, "outlast_alone", draw.uniform(12, 24), queue="alone"),
    ),
    "unique": (
        8,
        lambda load, token, draw: load.simple(
            token, "sturdy", draw.uniform(0, 0.3), unique=f"k{draw.randint(1, 5)}", queue="fast"
        ),
    ),
    "batch": (2, Load.batch),
    "chain": (4, Load.chain),
    "later": (
        5,
        lambda load, token, draw: load.simple(token, "sturdy", 0.0, delay=draw.uniform(0.2, 2.0)),
    ),
    "tenant": (
        5,
        lambda load, token, draw: load.simple(
            token, "tenant", draw.uniform(0, 0.2), concurrency_key=f"c{draw.randint(1, 3)}", retries=1000
        ),
    ),
    "limited": (
        8,
        lambda load, token, draw: load.simple(
            token, "limited", draw.uniform(0, 0.4), concurrency_key=f"l{draw.randint(1, 4)}"
        ),
    ),
    "unknown": (6, _plain(UNKNOWN, queue="fast")),
    "idempotent": (5, Load.idempotent),
    "fail": (3, _plain("fail", "on purpose", 1)),
    "die": (
        3,
        lambda load, token, draw: load.simple(token, "die", draw.choice(["kill", "segv", "exit0"]), 1),
    ),
    "poison": (1, _plain("die", "kill")),
    "steer": (
        2,
        lambda load, token, draw: load.simple(token, "steer", draw.choice(["retry", "snooze"]), 0.2),
    ),
    "hostile": (
        2,
        lambda load, token, draw: load.simple(
            token,
            "hostile",
            draw.choice(["return nul", "raise surrogate", "raise nasty", "return nan", "print"]),
        ),
    ),
    "stuck": (1, _plain("stuck", queue="slow")),
    "polite": (
        2,
        lambda load, token, draw: load.simple(token, "polite", draw.uniform(0.2, 1.5), queue="slow"),
    ),
    "progress": (3, _plain("progress", 5, 0.03)),
    "spin": (3, lambda load, token, draw: load.simple(token, "spin", draw.uniform(0, 0.1))),
    "gil": (1, _plain("hold_gil", 5_000_000)),
    "litter": (1, _plain("litter", 0.05)),
    "breathe": (3, _plain("breathe", 0.02)),
}


def tokens(answers: EnqueueAnswers) -> Iterator[str]:
    yield from answers.acknowledged
    yield from answers.unknown
