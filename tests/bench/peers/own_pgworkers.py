"""What only pgworkers is measured by: busy | enqueuers | fairness | idle | crowd | storage. One JSON line each."""

import http.client
import socket
import threading

import psycopg
from peer_pgworkers import *

FREE = socket.socket()
FREE.bind(("127.0.0.1", 0))
METRICS = f"127.0.0.1:{FREE.getsockname()[1]}"
FREE.close()


class PgworkersHost(P):
    """The same set-up; `queues` is what -Q says."""

    queues = "bench:2"

    def worker_cmds(self, procs, kind):
        return [[*run_command(self.queues)[:-1], METRICS]]


async def start(own, kind="noop"):
    """A migrated database, an open app, a host with warm workers."""
    await fresh(own)
    w = Workers(own, 0, kind)
    try:
        await warm(own, w)
    except BaseException:
        w.stop()
        raise
    return w


def facts():
    """Counters of the server, as a dict."""
    with psycopg.connect(dsn("postgres"), autocommit=True) as conn:
        row = conn.execute(
            "select pg_current_wal_lsn() - '0/0'::pg_lsn, xact_commit + xact_rollback"
            " from pg_stat_database where datname = %s",
            [DB],
        ).fetchone()
    return dict(wal=int(row[0]), commits=int(row[1]))


def flushed():
    """Backends report their counters now and then; wait until these stand still."""
    before = facts()
    for _ in range(8):
        time.sleep(0.5)
        after = facts()
        if after["commits"] - before["commits"] < 3:
            break
        before = after
    return after


async def busy_queues(a):
    """Pickup latency on one queue while seven others have more work than they can do."""
    own = PgworkersHost(a)
    own.queues = "bench:2," + ",".join(f"other{n}:1" for n in range(7))
    os.environ.update(BENCH_QUEUES="7", BENCH_EACH="1", BENCH_OTHER=a.kind)
    w = await start(own)
    try:
        module, each = own.module, 2500
        for n in range(7):
            other = module.other.using(queue=f"other{n}")
            module.app.enqueue_many(other.prepare(-1000 - i) for i in range(each))
        await asyncio.sleep(1)
        before, began = rec_count(), time.time()
        sent, nxt = {}, time.time()
        for i in range(a.n):
            sent[i] = (await own.timed_one(i))[1]
            nxt += 0.05 + random.uniform(-0.005, 0.005)
            await asyncio.sleep(max(0, nxt - time.time()))
        rate = (rec_count() - before) / (time.time() - began)
        left = sql(DB, "select count(distinct queue) from pgworkers.job where queue like 'other%'")
        until = time.time() + 20
        while len({x[0] for x in rec_read() if x[0] >= 0}) < a.n and time.time() < until:
            await asyncio.sleep(0.2)
    finally:
        w.stop()
    own.close()
    waits = [(x[1] - sent[x[0]]) / 1e6 for x in rec_read() if x[0] in sent]
    return dict(
        n=len(waits),
        others=a.kind,
        others_per_s=round(rate),
        queues_still_busy=int(left),
        **{f"p{p}": round(pct(waits, p), 2) for p in (50, 95, 99, 100)},
    )


async def enqueuer(a):
    """One of the eight: begins when a line comes, says when it is done."""
    import pgworkers_app as module

    module.app.use_database(dsn(DB))
    module.job.enqueue(-1)
    print("ready", flush=True)
    sys.stdin.readline()
    for i in range(a.n):
        module.job.enqueue(i)
    module.app.close()
    return dict(n=a.n)


ENQUEUERS = "select pid from pg_stat_activity where application_name = 'pgworkers client'"
#: Calls of pg_notify become calls of nothing.
SILENCE = """
create schema silent;
create function silent.pg_notify(text, text) returns void language sql as 'select null::void';
do $$
declare f record;
begin
  for f in select pg_get_functiondef(p.oid) as def from pg_proc p join pg_namespace n on n.oid = p.pronamespace
           where n.nspname = 'pgworkers' and p.prokind = 'f' and prosrc like '%pg_notify(%' loop
    execute replace(replace(f.def, 'pg_catalog.pg_notify(', 'silent.pg_notify('), ' pg_notify(', ' silent.pg_notify(');
  end loop;
end $$;
alter database bench_pgworkers set search_path = silent, pg_catalog, public;
"""


class Notifier(threading.Thread):
    """Notifies instead of the enqueuers, whenever the host sleeps and a job waits: so it wakes as it does when they do."""

    WORDS = (
        "select count(pg_catalog.pg_notify('pgworkers', 'ready:bench')) from pgworkers.idle_host a where a.queue = 'bench'"
        " and exists (select from pgworkers.job j where j.queue = 'bench' and j.state = 'ready' and not j.behind_limit"
        " and j.concurrency_key is null)"
    )

    def __init__(self):
        super().__init__(daemon=True)
        self.rung, self.over = 0, threading.Event()

    def run(self):
        with psycopg.connect(dsn(DB), autocommit=True) as conn:
            pause = 0.001  # often enough for it to stop asking for notifications, as it does when eight enqueue at once
            while not self.over.wait(pause):
                rung = conn.execute(self.WORDS, prepare=True).fetchone()[0]
                pause = 0.001 if rung else 0.02
                self.rung += rung


async def enqueuers(a):
    """Eight processes that enqueue one by one for a host that runs the jobs at once. `--mode off` takes the notifications
    away and lets a process of the bench wake the host instead, so that it does the same work on the same cores;
    `--mode asleep` takes them away and lets it sleep: that measures what running the jobs costs the enqueuers."""
    own = PgworkersHost(a)
    await fresh(own)
    if a.mode != "on":
        sql(DB, SILENCE)
    w = Workers(own, 0, "noop")
    heard, ringer = [0], Notifier()
    with psycopg.connect(dsn(DB), autocommit=True) as ear:
        ear.execute("listen pgworkers")
        argv = [sys.executable, __file__, "enqueuer", "--n", str(a.n)]
        kids = [
            subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(8)
        ]
        try:
            await warm(own, w)
            for kid in kids:
                kid.stdout.readline()
            list(ear.notifies(timeout=0.1))  # those of the warm-up
            # A host notifies as well, of what it gives back: only the enqueuers' are counted.
            told_by = {pid for (pid,) in ear.execute(ENQUEUERS).fetchall()}
            if a.mode == "off":
                ringer.start()
            began, cpu = time.perf_counter(), tree_cpu(w.pids())
            for kid in kids:
                kid.stdin.write("go\n")
                kid.stdin.flush()
            while any(kid.poll() is None for kid in kids):
                heard[0] += sum(said.pid in told_by for said in ear.notifies(timeout=0.02))
            took, cpu = time.perf_counter() - began, tree_cpu(w.pids()) - cpu
        finally:
            ringer.over.set()
            for kid in kids:
                kid.kill()
            w.stop()
        heard[0] += sum(said.pid in told_by for said in ear.notifies(timeout=0.3))
    if a.mode != "on" and heard[0]:
        return dict(error=f"{heard[0]} notifications came though they were taken away")
    return dict(
        mode=a.mode,
        n=8 * a.n,
        per_s=round(8 * a.n / took),
        notifications=heard[0],
        rung=ringer.rung,
        host_cpu_s=round(cpu, 2),
        ran=rec_count(),
    )


class Probe:
    """The longest that one commit of a single row took meanwhile, and that a thread slept too long: what no queue could do better."""

    def __init__(self):
        self.commit = self.sleep = 0.0
        self._over = threading.Event()
        with psycopg.connect(dsn(DB), autocommit=True) as conn:
            conn.execute("create table if not exists probe (at timestamptz)")
        self._threads = [threading.Thread(target=t, daemon=True) for t in (self._commits, self._sleeps)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _commits(self):
        with psycopg.connect(dsn(DB), autocommit=True) as conn:
            while not self._over.wait(0.02):
                began = time.perf_counter()
                conn.execute("insert into probe values (now())")
                self.commit = max(self.commit, (time.perf_counter() - began) * 1e3)

    def _sleeps(self):
        while not self._over.is_set():
            began = time.perf_counter()
            time.sleep(0.005)
            self.sleep = max(self.sleep, (time.perf_counter() - began) * 1e3 - 5.0)


async def fairness(a):
    """How long a worker stands idle while a job of its queue waits: long and short jobs of one task, mixed."""
    own = PgworkersHost(a)
    w = await start(own)
    try:
        with Probe() as probe:
            module = own.module
            module.app.enqueue_many(module.nap.prepare(i, 0) for i in range(10_000, 12_000))
            await wait_for(2000, w, 60)
            rec_reset()
            count = 2000  # the task's jobs were short until now; every fiftieth takes 300 ms
            module.app.enqueue_many(module.nap.prepare(i, 300 if i % 50 == 25 else 0) for i in range(count))
            await wait_for(count, w, 60)
            mixed = idle_while_waiting(rec_read())
            rec_reset()
            behind = []  # one worker has a long job, short ones arrive one by one
            for turn in range(5):
                module.nap.enqueue(20_000 + turn, 1000)
                await asyncio.sleep(0.2)
                for i in range(10):
                    module.nap.enqueue(turn * 10 + i, 0)
                    behind.append(
                        (turn * 10 + i, time.time_ns())
                    )  # from now on it waits, if it has not begun
                    await asyncio.sleep(0.06)
                await asyncio.sleep(0.5)
            await wait_for(55, w, 30)
            began = {x[0] & 0xFFFFFFFF: x[1] for x in rec_read()}
            waits = [max(0.0, (began[i] - at) / 1e6) for i, at in behind if i in began]
    finally:
        w.stop()
    own.close()
    return dict(
        mixed_ms=round(mixed, 1),
        behind_ms=round(max(waits), 1),
        behind_p50=round(pct(waits, 50), 2),
        worst_ms=round(max(mixed, *waits), 1),
        commit_max_ms=round(probe.commit, 1),
        sleep_max_ms=round(probe.sleep, 1),
        n=len(waits),
    )


def idle_while_waiting(records):
    """The longest time, in ms, that a worker had nothing to do although a job began later: that one waited for no reason."""
    last, lives = max(x[1] for x in records), {}
    for number, began, ended in records:
        lives.setdefault(number >> 32, []).append((began, ended))
    first = min(x[1] for x in records)
    worst = 0
    for life in lives.values():
        free = first
        for began, ended in sorted(life):
            worst = max(worst, began - free)
            free = ended
        worst = max(worst, last - free)
    return worst / 1e6


async def idle(a):
    """CPU and statements of a host that has nothing to do."""
    own = PgworkersHost(a)
    own.queues = f"bench:{a.procs}"
    w = await start(own)
    try:
        rests(True)
        await asyncio.sleep(3)
        before, cpu, parts = flushed(), tree_cpu(w.pids()), per_process(w.pids())
        began = time.time()
        await asyncio.sleep(a.secs)
        took = time.time() - began
        used = tree_cpu(w.pids()) - cpu
        after_parts = per_process(w.pids())
        time.sleep(1.1)
        after = facts()
        memory = tree_mem(w.pids())
    finally:
        rests(False)
        w.stop()
    own.close()
    return dict(
        workers=a.procs,
        secs=round(took, 1),
        cpu_percent=round(100 * used / took, 3),
        statements_per_s=round((after["commits"] - before["commits"]) / (took + 1.1), 2),
        pss_mib=memory["pss_mib"],
        ticks={name: after_parts[name] - parts.get(name, 0) for name in after_parts},
    )


def rests(yes):
    """Commits are counted by database: those of autovacuum, some ten each time it looks, are not the host's."""
    with psycopg.connect(dsn("postgres"), autocommit=True) as conn:
        conn.execute(
            "alter system set autovacuum_naptime = '1h'" if yes else "alter system reset autovacuum_naptime"
        )
        conn.execute("select pg_reload_conf()")


def per_process(pids):
    """Clock ticks by process."""
    found = {}
    for root in pids:
        for pid in children(root):
            try:
                stat = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
                title = open(f"/proc/{pid}/cmdline").read().replace("\0", " ").strip()[:40]
                found[f"{pid} {title}"] = int(stat[11]) + int(stat[12])
            except OSError:
                pass
    return found


class LoopLagProbe(threading.Thread):
    """Asks the master's loop how it is, twenty times a second: an upper bound of its lag."""

    def __init__(self):
        super().__init__(daemon=True)
        self.took, self.stopped = [], False

    def run(self):
        host, port = METRICS.split(":")
        while not self.stopped:
            began = time.perf_counter()
            conn = http.client.HTTPConnection(host, int(port), timeout=10)
            try:
                conn.request("GET", "/livez")
                conn.getresponse().read()
                self.took.append((time.perf_counter() - began) * 1000)
            except OSError:
                pass
            finally:
                conn.close()
            time.sleep(0.05)


async def crowd(a):
    """Many workers, short jobs: what the master itself costs."""
    own = PgworkersHost(a)
    own.queues = f"bench:{a.procs}"
    w = await start(own, a.kind)
    try:
        own.enqueue_bulk(range(a.n))
        until = time.time() + 20
        while rec_count() < a.n * 0.05 and time.time() < until:
            await asyncio.sleep(0.01)
        pinger = LoopLagProbe()
        pinger.start()
        master = w.pids()[0]
        cpu, began, done = own_cpu(master), time.time(), rec_count()
        while rec_count() < a.n * 0.95 and time.time() < began + a.secs:
            await asyncio.sleep(0.02)
        took, more = time.time() - began, rec_count() - done
        used = own_cpu(master) - cpu
        pinger.stopped = True
        pinger.join(15)
    finally:
        w.stop()
    own.close()
    lags = pinger.took or [0.0]
    return dict(
        workers=a.procs,
        per_s=round(more / took),
        cpu_percent=round(100 * used / took, 1),
        master_us_per_job=round(1e6 * used / max(1, more), 1),
        lag_ms=round(pct(lags, 99), 1),
        lag_max_ms=round(max(lags), 1),
        pings=len(lags),
        secs=round(took, 1),
    )


def own_cpu(pid):
    """Of one process, its threads included, its children not."""
    stat = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


async def storage(a):
    """What one finished job costs the server: WAL, dead tuples, commits. Enqueued before, so only claim and finish count."""
    own = PgworkersHost(a)
    await fresh(own, a.n)
    with psycopg.connect(dsn(DB), autocommit=True) as conn:
        conn.execute("alter table pgworkers.job set (autovacuum_enabled = off)")
        size = conn.execute("select pg_total_relation_size('pgworkers.job')").fetchone()[0]
        own.enqueue_bulk(())
        before = flushed()
        w = Workers(own, 2, "noop")
        try:
            ok = await wait_for(a.n, w, 60)
            until = time.time() + 15
            while own.remaining() and time.time() < until:
                await asyncio.sleep(0.05)
            after = flushed()
        finally:
            w.stop()
        time.sleep(0.5)
        dead = conn.execute(
            "select sum(n_dead_tup) from pg_stat_user_tables where schemaname = 'pgworkers'"
        ).fetchone()[0]
        grown = conn.execute("select pg_total_relation_size('pgworkers.job')").fetchone()[0]
    own.close()
    return dict(
        n=a.n,
        complete=ok,
        wal_bytes_per_job=round((after["wal"] - before["wal"]) / a.n),
        dead_tuples_per_job=round(int(dead) / a.n, 2),
        commits_per_job=round((after["commits"] - before["commits"]) / a.n, 4),
        table_bytes_per_job=round((grown - size) / a.n),
    )


CMDS = dict(
    busy=busy_queues,
    enqueuer=enqueuer,
    enqueuers=enqueuers,
    fairness=fairness,
    idle=idle,
    crowd=crowd,
    storage=storage,
)

if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("cmd", choices=list(CMDS))
    p.add_argument("--n", type=int, default=200)
    p.add_argument("--procs", type=int, default=2)
    p.add_argument("--secs", type=int, default=20)
    p.add_argument("--mode", default="on")
    p.add_argument("--kind", default="noop")
    p.add_argument("--variant", default="default")
    given = p.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that finally: w.stop() runs
    found = asyncio.run(CMDS[given.cmd](given))
    print(json.dumps(dict(peer="pgworkers", version=md.version("pgworkers"), cmd=given.cmd, **found)))
