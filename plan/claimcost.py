"""Time one keyed claim of 350 on a prepared database, with auto_explain of nested statements."""
import os, sys, time
sys.path.insert(0, os.path.join(os.getcwd(), "tests"))
sys.path.insert(0, os.getcwd())
from pathlib import Path
from bench.place import Place
root = Path("/var/tmp/pgw-cost"); place = Place(root, None)
import psycopg
os.environ["BENCH_ROOT"]=str(root)
with place.postgres() as v:
    os.environ["BENCH_PG_PORT"]=str(place.pg_port)
    sys.path.insert(0, "tests/bench/peers")
    import store_pgworkers as sp
    import argparse
    pinned = "--pinned" in sys.argv
    a=argparse.Namespace(load="keys", backlog=10000, partitions=20, pinned=pinned, churn=400000)
    with psycopg.connect(f"postgresql://postgres@127.0.0.1:{place.pg_port}/postgres", autocommit=True) as c:
        c.execute("DROP DATABASE IF EXISTS bench_store"); c.execute("CREATE DATABASE bench_store")
    with psycopg.connect(sp.dsn("bench_store"), autocommit=True) as conn:
        pin=sp.prepare(a, conn)
        conn.execute("INSERT INTO pgworkers.task (name, queue, priority, max_attempts, max_crashes, concurrency_per_key) VALUES ('keyed','bench',0,1,3,100) ON CONFLICT (name) DO UPDATE SET concurrency_per_key=100")
        from pgworkers.postgres.statements import Statement
        text = open("pgworkers/job/claim.sql").read()
        p = dict(host="00000000-0000-0000-0000-0000000000aa", queues=["bench"], counts=[350], tasks=["free","keyed","mail"], look=100, gates=True)
        conn.prepare_threshold=None; conn.execute("SET jit=off"); [conn.execute(x) for x in os.environ.get("SETS","").split(";") if x]
        def fin():
            conn.execute("DELETE FROM pgworkers.job WHERE host='00000000-0000-0000-0000-0000000000aa'")
        for i in range(8):
            t=time.perf_counter(); rows=conn.execute(text,p).fetchall(); dt=time.perf_counter()-t
            print("claim", len(rows), f"{dt*1000:.1f} ms", flush=True)
            fin()
        import subprocess, datetime
        conn.execute(subprocess.run([sys.executable,"/work/plan/notices.py"],capture_output=True,text=True).stdout)
        last=[None]
        def show(d):
            m=d.message_primary; name,ts=m.rsplit(" ",2)[0], m.split(" ",1)
            t=datetime.datetime.fromisoformat(m[m.index("20"):].strip()+":00" if m.strip().endswith("+00") else m[m.index("20"):])
            print(f"   {m[:m.index('20')]:20s}", "" if last[0] is None else f"+{(t-last[0]).total_seconds()*1000:.2f} ms"); last[0]=t
        conn.add_notice_handler(show)
        for i in range(3):
            last[0]=None
            t=time.perf_counter(); rows=conn.execute(text,p).fetchall(); dt=time.perf_counter()-t
            print("claim", len(rows), f"{dt*1000:.1f} ms", flush=True); fin()
