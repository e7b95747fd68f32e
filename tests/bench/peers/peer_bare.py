"""NOT a peer: minimal psycopg prototypes, the floor a Python project can be held against (no retries, no heartbeat, no errors kept).
variants: claim1 (2 procs, claim 1/commit, DELETE 1/commit) | claim50 (2 procs, claim 50, delete 50) |
          pipe (1 parent claims 50 and hands jobs one by one over socketpairs to --procs preforked children, deletes in batches) |
          forkjob (1 parent claims 50 and forks one child per job, --procs at a time, deletes in batches)
drain/latency/cpu/mem/backlog/horizon/enqueue all work. LISTEN/NOTIFY, one NOTIFY per enqueue call."""

import selectors
import socket

import psycopg
from harness import *

DB = "bench_bare"
KIND = os.environ.get("BENCH_KIND", "noop")
DDL = """CREATE TABLE q(id bigserial primary key, state smallint not null default 0, priority int not null default 0,
 run_at timestamptz not null default now(), locked_at timestamptz, attempts int not null default 0, payload jsonb not null);
CREATE INDEX q_claim ON q(priority, id) WHERE state=0;"""
CLAIM = """WITH c AS MATERIALIZED (SELECT id FROM q WHERE state=0 AND run_at<=now() ORDER BY priority,id LIMIT %s FOR UPDATE SKIP LOCKED)
UPDATE q SET state=1, locked_at=now(), attempts=attempts+1 FROM c WHERE q.id=c.id RETURNING q.id, (q.payload->>'i')::bigint"""
DEL = "DELETE FROM q WHERE id = ANY(%s)"


class P(Peer):
    name = "bare-psycopg"
    db = DB

    def version(self):
        return psycopg.__version__

    def reset(self):
        recreate_db(DB)
        sql(DB, DDL)

    def open(self):
        self.c = psycopg.connect(dsn(DB), autocommit=True, prepare_threshold=1)

    def close(self):
        self.c.close()

    def enqueue_one(self, i):
        self.c.execute(
            "WITH i AS (INSERT INTO q(payload) VALUES (jsonb_build_object('i',%s::bigint))) SELECT pg_notify('q','')",
            (i,),
        )

    def enqueue_bulk(self, ids):
        self.c.execute(
            "WITH i AS (INSERT INTO q(payload) SELECT jsonb_build_object('i',x) FROM unnest(%s::bigint[]) x) SELECT pg_notify('q','')",
            (list(ids),),
        )

    def remaining(self):
        return int(sql(DB, "select count(*) from q"))

    def worker_cmds(self, procs, kind):
        one = self.a.variant in ("pipe", "forkjob")
        return [[sys.executable, __file__, "worker", "--variant", self.a.variant, "--procs", str(procs)]] * (
            1 if one else procs
        )

    def worker(self):
        v = self.a.variant
        n = 1 if v == "claim1" else 50
        if v == "pipe":
            return self.pipe()
        if v == "forkjob":
            return self.forkjob()
        c = psycopg.connect(dsn(DB), autocommit=True, prepare_threshold=1)
        c.execute("LISTEN q")
        while True:
            rows = c.execute(CLAIM, (n,)).fetchall()
            if not rows:
                for _ in c.notifies(timeout=1, stop_after=1):
                    pass
                continue
            for _, i in rows:
                handle(KIND, i)
            c.execute(DEL, ([r[0] for r in rows],))

    def pipe(self):
        kids = {}
        for _ in range(self.a.procs):
            a, b = socket.socketpair()
            if os.fork() == 0:
                a.close()
                [k.close() for k in kids]
                while True:
                    m = b.recv(16)
                    if not m:
                        os._exit(0)
                    jid, i = struct.unpack("<qq", m)
                    handle(KIND, i)
                    b.send(struct.pack("<q", jid))
            b.close()
            kids[a] = True
        c = psycopg.connect(dsn(DB), autocommit=True, prepare_threshold=1)
        c.execute("LISTEN q")
        sel = selectors.DefaultSelector()
        [sel.register(k, selectors.EVENT_READ) for k in kids]
        idle = list(kids)
        buf = []
        done = []
        busy_n = 0
        dry = False
        while True:
            if done and (len(done) >= 50 or busy_n == 0 or not buf):
                c.execute(DEL, (done,))
                done = []
            if len(buf) == 0 and not dry:
                buf = c.execute(CLAIM, (50,)).fetchall()[::-1]
                dry = not buf
            while idle and buf:
                idle.pop().send(struct.pack("<qq", *buf.pop()))
                busy_n += 1
            if busy_n == 0:
                if done:
                    continue
                for _ in c.notifies(timeout=1, stop_after=1):
                    pass
                dry = False
                continue
            for k, _ in sel.select(1):
                done.append(struct.unpack("<q", k.fileobj.recv(8))[0])
                idle.append(k.fileobj)
                busy_n -= 1
                dry = False

    def forkjob(self):
        c = psycopg.connect(dsn(DB), autocommit=True, prepare_threshold=1)
        c.execute("LISTEN q")
        rec_fd()
        while True:
            rows = c.execute(CLAIM, (50,)).fetchall()
            if not rows:
                for _ in c.notifies(timeout=1, stop_after=1):
                    pass
                continue
            live = 0
            for _, i in rows:
                if live == self.a.procs:
                    os.wait()
                    live -= 1
                if os.fork() == 0:
                    handle(KIND, i)
                    os._exit(0)
                live += 1
            while live:
                os.wait()
                live -= 1
            c.execute(DEL, ([r[0] for r in rows],))


if __name__ == "__main__":
    main(P)
