"""One point of a curve: throughput and pickup latency of pgworkers. point | pinned. One JSON line."""

from own_pgworkers import *


def ms_of(kind):
    return int(kind[5:]) if kind.startswith("sleep") else 0


async def pickup(own, w, n, every):
    """Enqueue one job after the other, spread over the queues; from commit to handler start, in ms."""
    sent, names = {}, [part.split(":")[0] for part in own.queues.split(",")]
    tasks = [own.module.job.using(queue=name) for name in names]
    rec_reset()
    nxt = time.time()
    for i in range(n):
        tasks[i % len(tasks)].enqueue(i)
        sent[i] = time.time_ns()
        nxt += every * random.uniform(0.9, 1.1)
        await asyncio.sleep(max(0, nxt - time.time()))
    await wait_for(n, w, 60)
    return [(x[1] - sent[x[0]]) / 1e6 for x in rec_read() if x[0] in sent]


async def point(a):
    """Drain, then pickup at half load at most; `--backlog` ready jobs lie in a queue that nobody serves."""
    own = PgworkersHost(a)
    names = ["bench"] if a.queues == 1 else [f"other{n}" for n in range(a.queues)]
    own.queues = ",".join(f"{name}:{a.procs}" for name in names)
    os.environ.update(BENCH_QUEUES=str(a.queues), BENCH_EACH=str(a.procs), BENCH_KIND=a.kind)
    await fresh(own)
    module = own.module
    if a.backlog:
        parked = module.job.using(queue="parked")
        module.app.enqueue_many(parked.prepare(i) for i in range(a.backlog))
    for name in names:
        task = module.job.using(queue=name)
        module.app.enqueue_many(task.prepare(i) for i in range(a.n // len(names)))
    total = a.n // len(names) * len(names)
    sql(DB, "VACUUM ANALYZE")
    sql(DB, "CHECKPOINT")
    rec_reset()
    w = Workers(own, 0, a.kind)
    try:
        await wait_for(total, w, 150)
        r = rec_read()
        await asyncio.sleep(2)
        waits = await pickup(own, w, a.tries, max(0.05, 2 * ms_of(a.kind) / 1000 / a.procs / len(names)))
    finally:
        w.stop()
    own.close()
    r = sorted(r, key=lambda x: x[1])
    lo, hi = r[int(len(r) * 0.1)][1], r[int(len(r) * 0.9)][1]
    return dict(
        workers=a.procs * len(names),
        queues=len(names),
        kind=a.kind,
        backlog=a.backlog,
        n=len(r),
        handlers_per_s=round(len(r) / ((max(x[2] for x in r) - r[0][1]) / 1e9)),
        steady_per_s=round(len(r) * 0.8 / ((hi - lo) / 1e9)),
        **{f"p{p}": round(pct(waits, p), 2) for p in (50, 95, 99, 100)},
    )


async def pinned(a):
    """A closed loop on one queue while an old snapshot is held, and probes on another: rate and pickup per 20 s."""
    own = PgworkersHost(a)
    own.queues = "bench:2,other0:1"
    os.environ.update(BENCH_QUEUES="1", BENCH_EACH="1", BENCH_OTHER="noop")
    await fresh(own)
    pin = psycopg.connect(dsn(DB))
    pin.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    pin.execute("select txid_current_snapshot()")
    w = Workers(own, 0, "noop")
    sent, probes, number = 0, {}, 0
    try:
        await asyncio.sleep(3)
        began = time.time()
        probe_at = began
        while time.time() < began + a.secs:
            if sent - (rec_count() - number) < 1500:
                own.enqueue_bulk(range(sent, sent + 500))
                sent += 500
            if time.time() >= probe_at:
                probe_at += 0.1
                own.module.other.enqueue(-1 - number)
                probes[-1 - number] = time.time_ns()
                number += 1
            await asyncio.sleep(0.005)
        await asyncio.sleep(1)
    finally:
        w.stop()
        pin.close()
    own.close()
    buckets = {}
    for x in rec_read():
        slot = buckets.setdefault(int((x[1] / 1e9 - began) // 20), ([], []))
        if x[0] in probes:
            slot[1].append((x[1] - probes[x[0]]) / 1e6)
        elif x[0] >= 0:
            slot[0].append(1)
    spans = [buckets.get(n, ([], [])) for n in range(a.secs // 20)]
    rates = [round(len(done) / 20) for done, _ in spans]
    waits = [round(pct(found, 99), 2) if found else None for _, found in spans]
    return dict(
        secs=a.secs,
        per20s=rates,
        p99_per20s=waits,
        p50_per20s=[round(pct(found, 50), 2) if found else None for _, found in spans],
        steady_per_s=round(sum(rates) / len(rates)),
        ratio=round(rates[-1] / max(1, rates[0]), 2),
        p99=max((x for x in waits if x is not None), default=None),
    )


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("cmd", choices=["point", "pinned"])
    p.add_argument("--n", type=int, default=20_000)
    p.add_argument("--tries", type=int, default=150)
    p.add_argument("--procs", type=int, default=2)
    p.add_argument("--secs", type=int, default=120)
    p.add_argument("--kind", default="noop")
    p.add_argument("--queues", type=int, default=1)
    p.add_argument("--backlog", type=int, default=0)
    p.add_argument("--variant", default="default")
    given = p.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    found = asyncio.run(dict(point=point, pinned=pinned)[given.cmd](given))
    print(json.dumps(dict(peer="pgworkers", version=md.version("pgworkers"), cmd=given.cmd, **found)))
