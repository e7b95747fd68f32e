"""variants: default (concurrentJobs=10, no batching) | c1 | c2 | batched (localQueue 500 + completeJobBatchDelay 0). Run with the 'tools' venv; workers/producer are peer_graphile.mjs"""

from harness import *

DB = "bench_graphile"
JS = f"{ROOT}/scripts/peer_graphile.mjs"


class P(Peer):
    name = "graphile-worker"
    db = DB

    def version(self):
        return json.load(open(f"{HERE}/node_modules/graphile-worker/package.json"))["version"]

    def reset(self):
        recreate_db(DB)
        subprocess.run(["node", JS, "migrate"], check=True)

    def open(self):
        self.p = subprocess.Popen(
            ["node", JS, "producer"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.p.stdout.readline()

    def call(self, s):
        self.p.stdin.write(s + "\n")
        self.p.stdin.flush()
        return self.p.stdout.readline().strip()

    def close(self):
        self.p.stdin.write("quit\n")
        self.p.stdin.close()
        self.p.wait(10)

    async def timed_singles(self, n):
        return float(self.call(f"singles {n}"))

    async def timed_one(self, i):
        return tuple(map(int, self.call(f"one {i}").split()))

    def enqueue_bulk(self, ids):
        assert self.call(f"bulk {ids.start} {ids.stop}") == "ok"

    def remaining(self):
        return int(sql(DB, "select count(*) from graphile_worker._private_jobs"))

    def iters(self):
        f = f"{ROOT}/run/js_iters"
        if not os.path.exists(f):
            open(f, "w").write(
                subprocess.run(["node", JS, "calib"], capture_output=True, text=True).stdout.strip()
            )
        return open(f).read()

    def bare_cpu(self, n):
        env = dict(os.environ, BENCH_JS_ITERS=self.iters())
        t = time.perf_counter()
        ps = [subprocess.Popen(["node", JS, "barecpu", str(n // 2)], env=env) for _ in range(2)]
        [p.wait() for p in ps]
        return time.perf_counter() - t

    def worker_cmds(self, procs, kind):
        os.environ["BENCH_JS_ITERS"] = self.iters()
        return [["node", JS, "worker", self.a.variant]] * procs


if __name__ == "__main__":
    main(P)
