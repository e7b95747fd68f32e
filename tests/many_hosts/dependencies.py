"""One after the other: what comes after a batch begins once, and nothing begins before the jobs it comes after."""

from __future__ import annotations

import random
import time

from support.cluster import wait_for
from support.ledger import read

from many_hosts.environment import Finding, ProofCluster, ProofServer
from pgworkers import App

PATIENCE = 900.0
LAST = """
@app.task
def last(ctx: Ctx) -> dict[str, int]:
    note(ctx, "LAST")
    counts = app.get_batch(ctx.meta["batch"]).counts()
    return {"succeeded": counts.succeeded, "failed": counts.failed, "live": counts.live}
"""


def batch(server: ProofServer, *, quick: bool) -> list[Finding]:
    count = 5_000 if quick else 1_000_000
    draw = random.Random(9)
    with server.cluster() as cluster:
        cluster.declare(LAST)
        for _ in range(2):
            cluster.host("default:3")
        app = App(dsn=cluster.dsn)
        app.queue("default")

        @app.task(max_crashes=20)
        def work() -> None: ...

        @app.task
        def last() -> dict[str, int]:
            return {}

        began = time.monotonic()
        made = app.batch((work.prepare() for _ in range(count)), then=last.prepare())
        enqueued = time.monotonic() - began
        kills = _kill_until(cluster, count // 10, draw, pause=0.5 if quick else 4.0)
        assert made.then is not None
        result = made.then.result(timeout=300)
        took = time.monotonic() - began
        counts = made.wait(timeout=30)
        app.close()
        lines = read(cluster.ledger)
        lasts = [line.at for line in lines if line.kind == "LAST"]
        early = sum(line.at > lasts[0] for line in lines if line.kind == "START")
        ok = len(lasts) == 1 and early == 0 and result == {"succeeded": count, "failed": 0, "live": 0}
        return [
            Finding(
                f"a batch of {count:,} jobs on 2 hosts, {kills} workers killed: its `then` ran",
                "once, after all",
                f"{len(lasts)} time, {early} jobs began after it",
                ok and counts.succeeded == count,
                f"{result}; enqueued in {enqueued:.1f} s, all done after {took:.0f} s ({count / took:.0f}/s)",
            )
        ]


def graph(server: ProofServer, *, quick: bool) -> list[Finding]:
    depth, width = (8, 10) if quick else (20, 50)
    draw = random.Random(11)
    with server.cluster() as cluster:
        masters = [cluster.host("default:4") for _ in range(2)]
        cluster.command("queues", "pause", "default")
        parents = _plant(cluster, depth, width, draw)
        cluster.command("queues", "resume", "default")
        kills = _kill_until(cluster, depth * width // 2, draw)
        wait_for(lambda: masters[0].titles(" #"), what="it runs something")
        cluster.kill_host(masters[0])
        cluster.host("default:4")
        kills += _kill_until(cluster, depth, draw)
        states = cluster.until_all_ended(timeout=180)
        first: dict[int, int] = {}
        end: dict[int, int] = {}
        for line in read(cluster.ledger):
            if line.kind == "START":
                first.setdefault(line.job, line.at)
            else:
                end[line.job] = line.at
        early = [(job, one) for job, after in parents.items() for one in after if first[job] < end[one]]
        return [
            Finding(
                f"a graph of {len(parents):,} jobs, depth {depth}, on 2 hosts: jobs that began before one they come after",
                "0",
                str(len(early)),
                not early and states == {"succeeded": len(parents)} and kills >= (1 if quick else 10),
                f"{sum(map(len, parents.values()))} edges; {kills} workers and 1 host killed; {states}",
            )
        ]


def _kill_until(cluster: ProofCluster, left: int, draw: random.Random, pause: float = 0.2) -> int:
    """SIGKILL a busy worker now and then until no more than `left` jobs are left. Returns the number of kills."""
    kills, until = 0, time.monotonic() + PATIENCE
    while (now := int(cluster.one("SELECT count(*) FROM pgworkers.job"))) > left:
        assert time.monotonic() < until, f"{now} jobs are left"
        kills += cluster.kill_worker(draw)
        time.sleep(draw.uniform(0.5, 1.5) * pause)
    return kills


def _plant(cluster: ProofCluster, depth: int, width: int, draw: random.Random) -> dict[int, list[int]]:
    """Layer by layer, each job after up to three of the layer before."""
    parents: dict[int, list[int]] = {}
    layer: list[int] = []
    for _ in range(depth):
        made = []
        for _ in range(width):
            after = draw.sample(layer, min(3, len(layer)))
            [job] = cluster.enqueue(
                "work", args={"seconds": 0.2}, after=after, max_crashes=100, max_attempts=100
            )
            parents[job] = after
            made.append(job)
        layer = made
    return parents
