"""What hosts share: a number of workers, a limit of a key, a rate; and how fast they follow an operator."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from typing import Any

from support.cluster import Master, wait_for
from support.ledger import audit, most_at_once, read

from many_hosts.environment import Finding, ProofCluster, ProofServer, boottime, timed, within
from pgworkers.settings import Settings

PATIENCE = 90.0
SOON = 1.0
#: Everything that an operator can say about queues and limits.
SETTINGS_QUERY = """SELECT (SELECT array_agg((q.name, q.paused, q.workers, q.cluster_workers) ORDER BY q.name)
                    FROM pgworkers.queue q)::text
            || coalesce((SELECT array_agg((c.kind, c.name, c.slots) ORDER BY c.kind, c.name)
                           FROM pgworkers.concurrency c)::text, '')"""
RATE_LIMITED_TASK = """
@app.task(retries=0)
def rate_limited(ctx: Ctx, seconds: float) -> int:
    rate = ctx.rate("service", rate=50, per="1s")
    until = time.monotonic() + seconds
    count = 0
    while time.monotonic() < until:
        rate.acquire()
        note(ctx, "TOKEN")
        count += 1
    return count
"""


def count_workers(master: Master) -> int:
    return len(master.worker_pids("default/"))


class JobSupply:
    """Keeps jobs of a task waiting, so that every worker that may run one does."""

    def __init__(self, cluster: ProofCluster, task: str, **options: Any) -> None:
        self.jobs: list[int] = []
        self._site, self._task, self._options = cluster, task, options

    def top_up(self, least: int = 60) -> None:
        waiting = self._site.one(
            "SELECT count(*) FROM pgworkers.job WHERE state = 'ready' AND task = %s", self._task
        )
        if waiting < least:
            self.jobs += self._site.enqueue(self._task, least, **self._options)

    def until(self, fact: Callable[[], object], *, timeout: float = PATIENCE, what: str) -> float:
        """Seconds until the fact, feeding all the while."""

        def topped_up() -> object:
            self.top_up()
            return fact()

        return timed(topped_up, timeout=timeout, what=what)


# -- workers over all hosts -------------------------------------------------------------------------------------------


def slots(server: ProofServer, *, quick: bool) -> list[Finding]:
    limit = Settings().lease_duration + 5.0
    with server.cluster() as cluster:
        supply = JobSupply(cluster, "work", args={"seconds": 0.3})
        masters = [cluster.host("default:c6", wait=False) for _ in range(3)]
        spread = supply.until(lambda: [count_workers(m) for m in masters] == [2, 2, 2], what="two each")
        supply.until(lambda: _running(cluster) == 6, what="six run")
        lost = masters.pop()
        began = time.monotonic()
        cluster.kill_host(lost)
        supply.until(lambda: [count_workers(m) for m in masters] == [3, 3], what="three each")
        taken = time.monotonic() - began
        supply.until(lambda: _running(cluster) == 6, what="six run again")
        masters.append(cluster.host("default:c6", wait=False))
        supply.until(lambda: [count_workers(m) for m in masters] == [2, 2, 2], what="two each again")
        rolled = masters[: 1 if quick else 3]
        for old in rolled:
            _replace(cluster, supply, old)
        cluster.until_all_ended(timeout=PATIENCE)
        most = most_at_once(cluster.ledger, cluster.deaths)
        wrong = audit(cluster.db, cluster.ledger, supply.jobs)
        return [
            Finding(
                "cluster_workers=6 on 3 hosts: workers of each (/proc)",
                "2, 2, 2",
                "2, 2, 2",
                True,
                f"after {spread:.1f} s",
            ),
            within("one of the hosts killed: 3 each within lease + 5 s", limit, [taken]),
            Finding(
                f"never more at once by the ledger; a host killed, {len(rolled)} restarted one by one",
                "6",
                str(most),
                most <= 6 and not wrong,
                f"{len(supply.jobs)} jobs; {'; '.join(wrong[:3]) or 'the audit of the ledger finds nothing wrong'}",
            ),
        ]


def _replace(cluster: ProofCluster, supply: JobSupply, old: Master) -> None:
    """One step of a rolling restart: a new host comes while the old one leaves."""
    cluster.host("default:c6", wait=False)
    old.signal(signal.SIGTERM)
    supply.until(lambda: old.process.poll() is not None, what="it left")
    supply.until(
        lambda: sorted(map(count_workers, cluster.living())) == [2, 2, 2], what="two each after a restart"
    )


def _running(cluster: ProofCluster) -> int:
    return int(cluster.one("SELECT count(*) FROM pgworkers.job WHERE state = 'running'"))


# -- a limit of a key -------------------------------------------------------------------------------------------------


def keys(server: ProofServer, *, quick: bool) -> list[Finding]:
    draw = random.Random(7)
    period = 10.0 if quick else 40.0
    with server.cluster() as cluster:
        keyed = JobSupply(
            cluster, "tenant", args={"seconds": 0.1}, concurrency_key="tenant:7", max_crashes=100
        )
        free = JobSupply(cluster, "work", args={"seconds": 0.05}, max_crashes=100)
        masters = [cluster.host("default:10") for _ in range(2)]
        kills, until = 0, time.monotonic() + period
        while time.monotonic() < until:
            keyed.top_up()
            free.top_up(20)
            kills += cluster.kill_worker(draw, draw.choice(["tenant", " #"]))
            time.sleep(draw.uniform(0.1, 0.6))
        victim = draw.choice(masters)
        keyed.until(lambda: victim.titles("tenant"), what="it holds a slot")
        cluster.kill_host(victim)
        cluster.host("default:10")
        wait_for(lambda: _empty(cluster), timeout=PATIENCE + 60, what="every job has ended")
        most = most_at_once(cluster.ledger, cluster.deaths, keyed.jobs)
        wrong = audit(cluster.db, cluster.ledger, keyed.jobs + free.jobs)
        states = cluster.counts()
        cluster.enqueue("tenant", 4, args={"seconds": 2.0}, concurrency_key="tenant:7")
        both = timed(lambda: _running(cluster) == 2, timeout=30, what="both slots are free")
        return [
            Finding(
                f"limit 2 of a key, 20 workers on 2 hosts, {kills} workers and 1 host killed: most at once",
                "2",
                str(most),
                most == 2 and not wrong and kills > 5,
                f"{len(keyed.jobs)} jobs of the key; {'; '.join(wrong[:3]) or 'the audit finds nothing wrong'}",
            ),
            Finding(
                "no slot leaked: jobs of the key that run at once afterwards",
                "2",
                "2",
                set(states) == {"succeeded"},
                f"after {both:.2f} s; all ended: {states}",
            ),
        ]


def _empty(cluster: ProofCluster) -> bool:
    return bool(cluster.one("SELECT count(*) = 0 FROM pgworkers.job"))


# -- a rate -----------------------------------------------------------------------------------------------------------


def rate(server: ProofServer, *, quick: bool) -> list[Finding]:
    period = 10 if quick else 30
    with server.cluster() as cluster:
        cluster.declare(RATE_LIMITED_TASK)
        for _ in range(2):
            cluster.host("default:3")
        cluster.enqueue("rate_limited", 6, args={"seconds": period + 5.0})
        cluster.until_all_ended(timeout=period + PATIENCE)
        tokens = sorted(entry.at for entry in read(cluster.ledger) if entry.kind == "TOKEN")
        pids = {entry.pid for entry in read(cluster.ledger)}
        first = tokens[0]
        begin = first + 2_000_000_000  # the bucket was full at first: 50 at once
        count = sum(begin <= at < begin + period * 1_000_000_000 for at in tokens)
        off = abs(count / (50 * period) - 1)
        total = sum(at < first + period * 1_000_000_000 for at in tokens)
        return [
            Finding(
                f"a rate of 50/s over 2 hosts for {period} s",
                "within 5 %",
                f"{count / period:.2f}/s ({100 * off:.1f} % off)",
                off <= 0.05 and len(pids) == 6,
                f"{len(pids)} workers; from the very first token: {total}, of which 50 lay in the full bucket",
            )
        ]


# -- an operator ------------------------------------------------------------------------------------------------------


def retune(server: ProofServer, *, quick: bool) -> list[Finding]:
    """From the moment the row is changed until the processes, or the ledger, show it."""
    with server.cluster() as cluster:
        masters = [cluster.host("default:2") for _ in range(2)]
        ups, downs, pauses, resumes, limits = [], [], [], [], []
        supply = JobSupply(cluster, "work", args={"seconds": 0.02}, concurrency_key="k")
        cluster.command("queues", "limit", "--key", "k", "100")
        for _ in range(1 if quick else 4):
            ups.append(
                _follow(
                    cluster,
                    ("queues", "scale", "default", "4"),
                    lambda: {*map(count_workers, masters)} == {4},
                )
            )
            downs.append(
                _follow(
                    cluster,
                    ("queues", "scale", "default", "1"),
                    lambda: {*map(count_workers, masters)} == {1},
                )
            )
            supply.until(lambda: bool(read(cluster.ledger)), what="jobs run")
            supply.top_up(2000)
            pauses.append(_quiet(cluster, "queues", "pause", "default"))
            resumes.append(_loud(cluster, "queues", "resume", "default"))
            supply.top_up(2000)
            limits.append(_quiet(cluster, "queues", "limit", "--key", "k", "0"))
            limits.append(_loud(cluster, "queues", "limit", "--key", "k", "100"))
            cluster.command("queues", "scale", "default", "--default")
        cluster.db.execute("DELETE FROM pgworkers.job WHERE state = 'ready'")
        return [
            within("queues scale 4: both hosts have 4 workers (/proc) within", SOON, ups),
            within("queues scale 1: both hosts have 1 worker within", SOON, downs),
            within("queues pause: the last start in the ledger", SOON, pauses),
            within("queues resume: the first start in the ledger", SOON, resumes),
            within("queues limit --key 0 and back: the last, the first start", SOON, limits),
        ]


def _changed(cluster: ProofCluster, *words: str) -> int:
    """Run the command; when the change was first to be seen by others, CLOCK_BOOTTIME."""
    before = cluster.one(SETTINGS_QUERY)
    process = cluster.began(*words)
    wait_for(lambda: cluster.one(SETTINGS_QUERY) != before, what=" ".join(words))
    at = boottime()
    assert process.wait(30) == 0, words
    return at


def _follow(cluster: ProofCluster, words: tuple[str, ...], fact: Callable[[], bool]) -> float:
    at = _changed(cluster, *words)
    wait_for(fact, what=" ".join(words))
    return (boottime() - at) / 1e9


def _quiet(cluster: ProofCluster, *words: str) -> float:
    """Seconds from the change to the last start after it."""
    at = _changed(cluster, *words)
    time.sleep(3.0)
    starts = [entry.at for entry in read(cluster.ledger) if entry.kind == "START" and entry.at > at]
    return (max(starts) - at) / 1e9 if starts else 0.0


def _loud(cluster: ProofCluster, *words: str) -> float:
    at = _changed(cluster, *words)

    def first() -> list[int]:
        return [entry.at for entry in read(cluster.ledger) if entry.kind == "START" and entry.at > at]

    return (min(wait_for(first, what=" ".join(words))) - at) / 1e9
