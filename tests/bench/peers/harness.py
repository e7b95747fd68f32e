"""The harness that all are measured by. Every peer handler appends one 24-byte record (id,start_ns,end_ns)
to $BENCH_REC with O_APPEND; every measurement is derived from those records, so all
peers are timed by the same clock at the same place (inside the handler)."""

import argparse
import asyncio
import inspect
import json
import os
import random
import signal
import statistics
import struct
import subprocess
import sys
import threading
import time

ROOT = os.environ["BENCH_ROOT"]  # a scratch directory; see README.md
HERE = os.path.dirname(os.path.abspath(__file__))
HOST, PORT = "127.0.0.1", int(os.environ.get("BENCH_PG_PORT", "54999"))
REDIS_PORT = int(os.environ.get("BENCH_REDIS_PORT", "63999"))
REC = os.environ.get("BENCH_REC", f"{ROOT}/run/rec.bin")
CPU_ITERS = int(os.environ.get("BENCH_CPU_ITERS") or 680000)  # ~50 ms solo here; calibrate with calib.py
PSQL_ENV = dict(os.environ, PGHOST=HOST, PGPORT=str(PORT), PGUSER="postgres")
_fd = None


def dsn(db):
    return f"postgresql://postgres@{HOST}:{PORT}/{db}"


# ---------------------------------------------------------------- handler side
def rec_fd():
    global _fd
    if _fd is None:
        _fd = os.open(REC, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    return _fd


def spin(n):
    x = 0
    for i in range(n):
        x += i * i % 7
    return x


def handle(kind, i):
    t = time.time_ns()
    if kind == "cpu":
        spin(CPU_ITERS)
    elif kind.startswith("sleep"):  # sleep10: 10 ms that cost nothing, as a wait for somebody else
        time.sleep(int(kind[5:]) / 1000)
    os.write(rec_fd(), struct.pack("<qqq", i, t, time.time_ns()))


# ---------------------------------------------------------------- harness side
def sql(db, q, timeout=600):
    r = subprocess.run(
        ["psql", "-XqAt", "-d", db, "-v", "ON_ERROR_STOP=1", "-c", q],
        env=PSQL_ENV,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    if r.returncode:
        raise RuntimeError(r.stderr[:500])
    return r.stdout.strip()


def sql_file(db, path):
    r = subprocess.run(
        ["psql", "-Xqt", "-d", db, "-v", "ON_ERROR_STOP=1", "-f", path],
        env=PSQL_ENV,
        capture_output=True,
        text=True,
    )
    if r.returncode:
        raise RuntimeError(r.stderr[:500])


def recreate_db(db):
    sql("postgres", f'DROP DATABASE IF EXISTS "{db}" WITH (FORCE)')
    sql("postgres", f'CREATE DATABASE "{db}"')


def rec_reset():
    with open(REC, "wb"):
        pass
    os.chmod(REC, 0o666)


def rec_count():
    try:
        return os.stat(REC).st_size // 24
    except FileNotFoundError:
        return 0


def rec_read():
    d = open(REC, "rb").read()
    d = d[: len(d) // 24 * 24]
    return sorted(struct.iter_unpack("<qqq", d), key=lambda r: r[1])


def busy():
    f = open("/proc/stat").readline().split()[1:]
    v = list(map(int, f))
    idle = v[3] + v[4]
    return sum(v[:8]) - idle, sum(v[:8]), v[7]


def children(pid):
    out = [pid]
    i = 0
    while i < len(out):
        try:
            for t in os.listdir(f"/proc/{out[i]}/task"):
                out += [int(c) for c in open(f"/proc/{out[i]}/task/{t}/children").read().split()]
        except (FileNotFoundError, ProcessLookupError):
            pass
        i += 1
    return list(dict.fromkeys(out))


def tree_mem(pids):
    rss = pss = n = 0
    per = []
    for root in pids:
        for p in children(root):
            try:
                d = {
                    l.split(":")[0]: int(l.split()[1])
                    for l in open(f"/proc/{p}/smaps_rollup").read().splitlines()[1:]
                    if ":" in l
                }
                rss += d["Rss"]
                pss += d["Pss"]
                n += 1
                per.append((open(f"/proc/{p}/cmdline").read().replace("\0", " ")[:60], d["Rss"], d["Pss"]))
            except (FileNotFoundError, ProcessLookupError, KeyError):
                pass
    return dict(procs=n, rss_mib=round(rss / 1024, 1), pss_mib=round(pss / 1024, 1), detail=per)


def tree_cpu(pids):
    hz = os.sysconf("SC_CLK_TCK")
    t = 0
    for root in pids:
        for p in children(root):
            try:
                s = open(f"/proc/{p}/stat").read().rsplit(")", 1)[1].split()
                t += sum(map(int, s[11:15]))
            except (FileNotFoundError, ProcessLookupError):
                pass
    return t / hz


def postmaster():
    """The process whose children serve everybody: what it and they take is the store's share."""
    return int(sql("postgres", "select split_part(pg_read_file('postmaster.pid'), chr(10), 1)"))


class Shares:
    """CPU of the store and of the workers' tree, by stretches of time. Both move with the machine's pace; one against the other
    does not: the workers do the same for each job at any time, so what grows is the store's."""

    def __init__(self, w):
        self.roots, self.seen = ([postmaster()], w.pids()), []

    def mark(self):
        self.seen.append((rec_count(), *map(tree_cpu, self.roots)))

    def stretches(self):
        """Microseconds per job, (store, tree), of each stretch between two marks."""
        spans = [[b - a for a, b in zip(*two)] for two in zip(self.seen, self.seen[1:])]
        return [[round(cpu / max(1, jobs) * 1e6, 1) for cpu in cpus] for jobs, *cpus in spans]


def pct(xs, p):
    xs = sorted(xs)
    k = (len(xs) - 1) * p / 100
    f = int(k)
    return xs[f] + (xs[min(f + 1, len(xs) - 1)] - xs[f]) * (k - f)


async def maybe(x):
    return await x if inspect.isawaitable(x) else x


class Peer:
    name = "?"
    db = None
    bulk_chunk = 1000
    pg = True

    def __init__(self, a):
        self.a = a

    def reset(self):
        raise NotImplementedError

    def open(self):
        pass

    def close(self):
        pass

    def enqueue_one(self, i):
        raise NotImplementedError

    def enqueue_bulk(self, ids):
        raise NotImplementedError

    def remaining(self):
        raise NotImplementedError

    def worker_cmds(self, procs, kind):
        raise NotImplementedError

    def fill(self, n):
        return None  # optional fast backlog loader

    def version(self):
        return "?"

    async def timed_singles(self, n):
        t = time.perf_counter()
        if inspect.iscoroutinefunction(self.enqueue_one):
            for i in range(n):
                await self.enqueue_one(i)
        else:
            for i in range(n):
                self.enqueue_one(i)
        return time.perf_counter() - t

    async def timed_one(self, i):
        b = time.time_ns()
        await maybe(self.enqueue_one(i))
        return b, time.time_ns()

    async def bulk_all(self, n, start=0):
        for s in range(start, start + n, self.bulk_chunk):
            await maybe(self.enqueue_bulk(range(s, min(s + self.bulk_chunk, start + n))))


class Workers:
    def __init__(self, peer, procs, kind):
        cmds = peer.worker_cmds(procs, kind)  # first: it may set os.environ
        env = dict(os.environ, BENCH_KIND=kind, BENCH_REC=REC, BENCH_CPU_ITERS=str(CPU_ITERS))
        for k in ("PYTHONDONTWRITEBYTECODE",):
            env.pop(k, None)
        self.log = open(f"{ROOT}/logs/worker_{peer.name}.log", "ab")
        self.p = [
            subprocess.Popen(
                c, env=env, stdout=self.log, stderr=self.log, start_new_session=True, cwd=f"{ROOT}/scripts"
            )
            for c in cmds
        ]

    def pids(self):
        return [p.pid for p in self.p]

    def alive(self):
        return all(p.poll() is None for p in self.p)

    def stop(self):
        kids = [c for p in self.p for c in children(p.pid)]
        for p in self.p:
            if p.poll() is None:
                p.send_signal(signal.SIGTERM)
        end = time.time() + 8
        for p in self.p:
            try:
                p.wait(max(0.1, end - time.time()))
            except subprocess.TimeoutExpired:
                pass
        for k in kids:  # only pids we started
            try:
                os.kill(k, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for p in self.p:
            p.wait()


async def wait_for(n, w, limit):
    end = time.time() + limit
    while rec_count() < n and time.time() < end:
        if not w.alive():
            raise RuntimeError("worker died; see logs")
        await asyncio.sleep(0.01)
    return rec_count() >= n


async def fresh(peer, load=0):
    await maybe(peer.reset())
    await maybe(peer.open())
    if load:
        r = peer.fill(load)
        if r is None:
            await peer.bulk_all(load)
    if peer.pg:
        sql(peer.db, "VACUUM ANALYZE")
        sql(peer.db, "CHECKPOINT")
    rec_reset()


async def warm(peer, w, n=20):
    await maybe(peer.enqueue_bulk(range(-n, 0)))
    if not await wait_for(n, w, 60):
        raise RuntimeError("warm-up not consumed")
    await asyncio.sleep(2.5)
    rec_reset()


async def cmd_enqueue(peer):
    a = peer.a
    await fresh(peer)
    b0 = busy()
    if a.mode == "single":
        el = await peer.timed_singles(a.n)
    else:
        t = time.perf_counter()
        await peer.bulk_all(a.n)
        el = time.perf_counter() - t
    b1 = busy()
    await maybe(peer.close())
    return dict(
        mode=a.mode,
        n=a.n,
        chunk=peer.bulk_chunk if a.mode != "single" else 1,
        s=round(el, 3),
        per_s=round(a.n / el),
        cpu_busy=round((b1[0] - b0[0]) / (b1[1] - b0[1]), 2),
        steal=b1[2] - b0[2],
    )


async def cmd_drain(peer):
    a = peer.a
    await fresh(peer, a.n)
    b0 = busy()
    w = Workers(peer, a.procs, "noop")
    try:
        ok = await wait_for(a.n, w, a.limit)
        end = time.time() + 15
        left = None
        while time.time() < end:
            left = await maybe(peer.remaining())
            if not ok or left == 0:
                break
            await asyncio.sleep(0.02)
        t_done = time.time_ns()
        b1 = busy()
        wc = tree_cpu(w.pids())
    finally:
        w.stop()
    await maybe(peer.close())
    r = rec_read()
    n = len(r)
    if n < 10:
        return dict(error="no records", n=n)
    first, last = r[0][1], r[-1][2]
    lo, hi = r[int(n * 0.1)][1], r[int(n * 0.9) - 1][1]
    uniq = len({x[0] for x in r})
    return dict(
        n=n,
        uniq=uniq,
        complete=ok,
        left=left,
        handlers_per_s=round((n - 1) / ((last - first) / 1e9)),
        total_per_s=round(n / ((t_done - first) / 1e9)) if ok else None,
        steady_per_s=round((int(n * 0.9) - int(n * 0.1)) / ((hi - lo) / 1e9)),
        commit_lag_s=round((t_done - last) / 1e9, 3),
        worker_cpu_ms_per_job=round(wc / n * 1000, 3),
        sys_cpu_ms_per_job=round((b1[0] - b0[0]) / 100 / n * 1000, 3),
        cpu_busy=round((b1[0] - b0[0]) / (b1[1] - b0[1]), 2),
        steal=b1[2] - b0[2],
    )


async def cmd_latency(peer):
    a = peer.a
    await fresh(peer)
    w = Workers(peer, a.procs, "noop")
    tb = {}
    ta = {}
    try:
        await warm(peer, w)
        b0 = busy()
        t0 = time.time()
        nxt = time.time()
        for i in range(a.n):
            tb[i], ta[i] = await peer.timed_one(i)
            nxt += 0.05 + random.uniform(-0.005, 0.005)  # jitter: no lock-step with pollers
            await asyncio.sleep(max(0, nxt - time.time()))
        await wait_for(a.n, w, 30)
        b1 = busy()
    finally:
        w.stop()
    await maybe(peer.close())
    r = [x for x in rec_read() if x[0] in ta]
    lat = [(x[1] - ta[x[0]]) / 1e6 for x in r]
    e2e = [(x[1] - tb[x[0]]) / 1e6 for x in r]
    return dict(
        n=len(r),
        **{f"p{p}": round(pct(lat, p), 2) for p in (50, 95, 99, 100)},
        min=round(min(lat), 2),
        **{f"e2e_p{p}": round(pct(e2e, p), 2) for p in (50, 95, 99)},
        cpu_busy=round((b1[0] - b0[0]) / (b1[1] - b0[1]), 2),
    )


def bare_cpu(n=200, procs=2):
    t = time.perf_counter()
    ps = []
    for k in range(procs):
        pid = os.fork()
        if pid == 0:
            for _ in range(n // procs):
                spin(CPU_ITERS)
            os._exit(0)
        ps.append(pid)
    for p in ps:
        os.waitpid(p, 0)
    return time.perf_counter() - t


async def cmd_cpu(peer):
    """Against bare forks right before and right after it: the machine's pace moves by a third within seconds."""
    a = peer.a
    await fresh(peer)
    bare = getattr(peer, "bare_cpu", bare_cpu)
    each = [await maybe(bare(a.n))]
    w = Workers(peer, a.procs, "cpu")
    try:
        await warm(peer, w)
        t0 = time.time_ns()
        await maybe(peer.enqueue_bulk(range(a.n)))
        ok = await wait_for(a.n, w, 120)
    finally:
        w.stop()
    each.append(await maybe(bare(a.n)))
    ideal = sum(each) / len(each)
    await maybe(peer.close())
    r = rec_read()
    wall = (max(x[2] for x in r) - t0) / 1e9
    return dict(
        n=len(r),
        complete=ok,
        wall_s=round(wall, 3),
        bare_fork_s=round(ideal, 3),
        bare_each=[round(one, 3) for one in each],
        eff=round(ideal / wall * 100, 1),
        mean_job_ms=round(sum(x[2] - x[1] for x in r) / len(r) / 1e6, 1),
        max_job_ms=round(max(x[2] - x[1] for x in r) / 1e6, 1),
    )


async def cmd_mem(peer):
    a = peer.a
    out = {}
    for p in (2, 4):
        a.procs = p
        await fresh(peer)
        w = Workers(peer, p, "noop")
        try:
            await warm(peer, w)
            m = tree_mem(w.pids())
        finally:
            w.stop()
        await maybe(peer.close())
        out[p] = m
    return dict(
        w2_procs=out[2]["procs"],
        w2_rss=out[2]["rss_mib"],
        w2_pss=out[2]["pss_mib"],
        w4_procs=out[4]["procs"],
        w4_rss=out[4]["rss_mib"],
        w4_pss=out[4]["pss_mib"],
        per_extra_pss=round((out[4]["pss_mib"] - out[2]["pss_mib"]) / 2, 1),
        per_extra_rss=round((out[4]["rss_mib"] - out[2]["rss_mib"]) / 2, 1),
        detail=out[2]["detail"],
    )


class Pace(threading.Thread):
    """How fast the machine is meanwhile: CPU that a small piece of work takes, twenty times a second. It wanders by a third."""

    def __init__(self):
        super().__init__(daemon=True)
        self.seen, self.over = [], threading.Event()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.join()

    def run(self):
        while not self.over.wait(0.05):
            began, sum_ = time.thread_time_ns(), 0
            for i in range(8000):
                sum_ += i * i
            self.seen.append((time.time_ns(), (time.thread_time_ns() - began) / 1e3))

    def between(self, lo, hi):
        """Microseconds, the median of that time."""
        seen = [took for at, took in self.seen if lo <= at <= hi] or [took for _, took in self.seen] or [0.0]
        return round(statistics.median(seen), 1)


async def cmd_backlog(peer):
    """With --repeat, several times, and the median: a small backlog is drained in less time than the machine's pace changes."""
    a = peer.a
    found = [await backlog_once(peer) for _ in range(a.repeat)]
    found.sort(key=lambda one: one.get("steady_per_s", 0))
    return dict(found[len(found) // 2], each=[one.get("steady_per_s") for one in found])


async def backlog_once(peer):
    a = peer.a
    t = time.time()
    await fresh(peer, a.n)
    load = time.time() - t
    with Pace() as pace:
        w = Workers(peer, a.procs, "noop")
        try:
            await wait_for(a.n, w, a.secs + 3)
        finally:
            w.stop()
    await maybe(peer.close())
    r = rec_read()
    if len(r) < 10:
        return dict(
            backlog=a.n, load_s=round(load, 1), done=len(r), note="<10 jobs in window", secs=a.secs + 3
        )
    first, last = r[0][1], r[-1][1]
    lo = first + (last - first) * 0.1
    hi = first + (last - first) * 0.95
    k = [x for x in r if lo <= x[1] <= hi]
    return dict(
        backlog=a.n,
        load_s=round(load, 1),
        done=len(r),
        window_s=round((hi - lo) / 1e9, 1),
        steady_per_s=round(len(k) / ((hi - lo) / 1e9)),
        pace_us=pace.between(lo, hi),
    )


async def cmd_standing(peer):
    """With so many jobs waiting all the time: what is done is enqueued again. So a small backlog is measured as a large one is, in the
    middle of steady work, for as long, with as much to commit. (`backlog` drains: a small one is over before its ends are
    written, and before the machine's pace can be told.)"""
    a = peer.a
    await fresh(peer, a.n)
    w = Workers(peer, a.procs, "noop")
    sent, began = a.n, None
    with Pace() as pace:
        try:
            shares = Shares(w) if peer.pg else None
            end = time.time() + 60
            while time.time() < end:
                if sent - rec_count() < a.n:
                    await maybe(peer.enqueue_bulk(range(sent, sent + 500)))
                    sent += 500
                    if began is None:
                        began = time.time()
                        end = began + 3 + a.secs
                else:
                    await asyncio.sleep(0.002)
                if shares and not shares.seen and began and time.time() > began + 3:
                    shares.mark()
                if not w.alive():
                    raise RuntimeError("worker died")
            if shares:
                shares.mark()
        finally:
            w.stop()
    await maybe(peer.close())
    lo, hi = (began + 3) * 1e9, (began + 3 + a.secs) * 1e9
    done = sum(lo <= x[1] < hi for x in rec_read())
    store, tree = shares.stretches()[0] if shares else (None, None)
    return dict(
        backlog=a.n,
        done=done,
        steady_per_s=round(done / a.secs),
        store_us=store,
        tree_us=tree,
        store_share=round(store / tree, 3) if shares else None,
        pace_us=pace.between(lo, hi),
    )


async def cmd_horizon(peer):
    a = peer.a
    await fresh(peer)
    pin = None
    if a.pin:
        pin = subprocess.Popen(
            ["psql", "-XqAt", "-d", peer.db],
            env=PSQL_ENV,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        pin.stdin.write("BEGIN ISOLATION LEVEL REPEATABLE READ;\nSELECT txid_current_snapshot();\n")
        pin.stdin.flush()
        pin.stdout.readline()
    w = Workers(peer, a.procs, "noop")
    sent = 0
    pace = Pace()
    pace.start()
    shares = Shares(w)
    began, end = time.time(), time.time() + 60
    try:
        while time.time() < end:
            if rec_count() and time.time() >= began + 20 * len(shares.seen):
                if not shares.seen:  # the clock starts with the first job: else the last 20 s are shorter by the workers' start
                    start, began, end = time.time() - began, time.time(), time.time() + a.secs
                shares.mark()
            if sent - rec_count() < 1500:
                await maybe(peer.enqueue_bulk(range(sent, sent + 500)))
                sent += 500
            else:
                await asyncio.sleep(0.005)
            if not w.alive():
                raise RuntimeError("worker died")
        shares.mark()
        sizes = sql(
            peer.db,
            "select string_agg(relname||':dead='||n_dead_tup||':MB='||pg_total_relation_size(relid)/1048576, ' ' order by n_dead_tup desc) from (select * from pg_stat_user_tables order by n_dead_tup desc limit 5) s",
        )
        xa = sql(
            peer.db,
            "select coalesce(max(age(backend_xmin)),0) from pg_stat_activity where datname=current_database()",
        )
    finally:
        pace.over.set()
        w.stop()
        if pin:
            pin.stdin.write("ROLLBACK;\n\\q\n")
            pin.stdin.close()
            pin.wait()
    await maybe(peer.close())
    r = rec_read()
    base = r[0][1]
    buckets = {}
    for x in r:
        buckets.setdefault(int((x[1] - base) / 20e9), []).append(1)
    nb = a.secs // 20
    rates = [round(len(buckets.get(b, [])) / 20) for b in range(nb)]
    paces = [pace.between(base + b * 20e9, base + (b + 1) * 20e9) for b in range(nb)]
    share = [round(store / tree, 3) for store, tree in shares.stretches()]
    return dict(
        pin=a.pin,
        secs=a.secs,
        per20s=rates,
        pace20s=paces,
        paced_ratio=round(rates[-1] * paces[-1] / max(1.0, rates[0] * paces[0]), 2),
        store_per20s=share,
        store_ratio=round((1 + share[0]) / (1 + share[-1]), 3),
        first20=rates[0],
        last20=rates[-1],
        ratio=round(rates[-1] / max(1, rates[0]), 2),
        start_s=round(start, 2),
        total=len(r),
        xmin_age=xa,
        tables=sizes,
    )


CMDS = dict(
    enqueue=cmd_enqueue,
    drain=cmd_drain,
    latency=cmd_latency,
    cpu=cmd_cpu,
    mem=cmd_mem,
    backlog=cmd_backlog,
    standing=cmd_standing,
    horizon=cmd_horizon,
)


def main(cls, extra=None):
    p = argparse.ArgumentParser()
    p.add_argument("cmd", choices=list(CMDS) + ["worker", "reset"])
    p.add_argument("--n", type=int)
    p.add_argument("--procs", type=int, default=2)
    p.add_argument("--mode", default="single")
    p.add_argument("--limit", type=float, default=180)
    p.add_argument("--secs", type=int, default=10)
    p.add_argument("--repeat", type=int, default=1)
    p.add_argument("--pin", type=int, default=1)
    p.add_argument("--variant", default="default")
    p.add_argument("--runs", type=int, default=1)
    p.add_argument("--tag", default="")
    a, rest = p.parse_known_args()
    a.rest = rest
    peer = cls(a)
    if a.cmd == "worker":
        return asyncio.run(peer.worker()) if inspect.iscoroutinefunction(peer.worker) else peer.worker()
    if a.cmd == "reset":
        return asyncio.run(maybe(peer.reset()))
    a.n = a.n or dict(enqueue=20000, drain=20000, latency=200, cpu=200, backlog=10000, standing=10000).get(
        a.cmd, 0
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that finally: w.stop() runs
    for k in range(a.runs):
        peer = cls(a)
        try:
            res = asyncio.run(CMDS[a.cmd](peer))
        except Exception as e:
            res = dict(error=f"{type(e).__name__}: {e}"[:300])
        line = dict(
            peer=peer.name,
            version=peer.version(),
            cmd=a.cmd,
            variant=a.variant,
            procs=a.procs,
            run=k + 1,
            t=time.strftime("%H:%M:%S"),
            **res,
        )
        s = json.dumps(line)
        print(s, flush=True)
