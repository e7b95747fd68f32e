"""What this machine can do at most: pgbench and COPY, on a table like ours with nothing around it.

limit.py claim1|claim50|insert1|copy|backlog|horizon [--secs N] [--pin 0|1] [--n ROWS]
"""

import re

from harness import *

DB = "bench_limit"
DDL = """DROP TABLE IF EXISTS q;
CREATE TABLE q (id bigserial primary key, state smallint not null default 0, priority int not null default 0,
  run_at timestamptz not null default now(), locked_at timestamptz, attempts int not null default 0, payload jsonb not null);
CREATE INDEX q_claim ON q (priority, id) WHERE state = 0;"""
PICK = (
    "SELECT id FROM q WHERE state=0 AND run_at<=now() ORDER BY priority, id LIMIT {} FOR UPDATE SKIP LOCKED"
)
INSERT = """INSERT INTO q(payload) VALUES ('{"id":1}');\n"""
CLAIM1 = f"""UPDATE q SET state=1, locked_at=now(), attempts=attempts+1 WHERE id=({PICK.format(1)}) RETURNING id \\gset
DELETE FROM q WHERE id=:id;\n"""
CLAIM50 = f"""WITH c AS ({PICK.format(50)}), u AS (UPDATE q SET state=1, locked_at=now(), attempts=attempts+1 FROM c WHERE q.id=c.id RETURNING q.id) SELECT array_agg(id) AS ids FROM u \\gset
DELETE FROM q WHERE id = ANY(:ids::bigint[]);\n"""


def load(rows):
    sql(DB, DDL)
    if rows:
        sql(DB, f"INSERT INTO q(payload) SELECT jsonb_build_object('id',g) FROM generate_series(1,{rows}) g")
    sql(DB, "VACUUM ANALYZE q")
    sql(DB, "CHECKPOINT")


def pgbench(script, clients, *how):
    path = f"{ROOT}/run/pgbench.sql"
    with open(path, "w") as file:
        file.write(script)
    done = subprocess.run(
        ["pgbench", "-n", "-M", "prepared", "-c", str(clients), "-j", str(clients), *how, "-f", path, DB],
        env=PSQL_ENV,
        capture_output=True,
        text=True,
    )
    found = re.search(r"tps = ([\d.]+)", done.stdout)
    if not found:
        raise RuntimeError((done.stdout + done.stderr)[-300:])
    return float(found[1]), done.stderr


def copy(rows):
    load(0)
    path = f"{ROOT}/run/copy-{rows}.txt"
    if not os.path.exists(path):
        with open(path, "w") as file:
            file.writelines('{"i": %d}\n' % i for i in range(rows))
    began = time.perf_counter()
    sql(DB, f"\\copy q(payload) from '{path}'")
    return rows / (time.perf_counter() - began)


def horizon(secs, pin):
    load(3000)
    holder = None
    if pin:
        holder = subprocess.Popen(
            ["psql", "-XqAt", "-d", DB],
            env=PSQL_ENV,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        holder.stdin.write("BEGIN ISOLATION LEVEL REPEATABLE READ;\nSELECT txid_current_snapshot();\n")
        holder.stdin.flush()
        holder.stdout.readline()
    # insert one, claim one, delete one: the backlog stays as it is
    _, said = pgbench(INSERT + CLAIM1, 2, "-T", str(secs), "-P", "20")
    rates = [round(float(x)) for x in re.findall(r"progress: .*?, ([\d.]+) tps", said)]
    if holder:
        holder.stdin.write("ROLLBACK;\n\\q\n")
        holder.stdin.close()
        holder.wait()
    return dict(
        pin=pin,
        secs=secs,
        per20s=rates,
        first20=rates[0],
        last20=rates[-1],
        ratio=round(rates[-1] / rates[0], 2),
    )


def main():
    p = argparse.ArgumentParser()
    p.add_argument("cmd", choices=["claim1", "claim50", "insert1", "copy", "backlog", "horizon"])
    p.add_argument("--secs", type=int, default=5)
    p.add_argument("--pin", type=int, default=1)
    p.add_argument("--n", type=int, default=0)
    a = p.parse_args()
    if sql("postgres", f"select count(*) from pg_database where datname='{DB}'") == "0":
        sql("postgres", f"create database {DB}")
    T = ("-T", str(a.secs))
    if a.cmd == "claim1":
        load(a.n or 12_000 * a.secs)
        found = dict(per_s=round(pgbench(CLAIM1, 2, *T)[0]))
    elif a.cmd == "claim50":
        load(a.n or 80_000 * a.secs)
        found = dict(per_s=round(50 * pgbench(CLAIM50, 2, *T)[0]))
    elif a.cmd == "insert1":
        load(0)
        found = dict(per_s=round(pgbench(INSERT, 1, *T)[0]))
    elif a.cmd == "copy":
        found = dict(per_s=round(copy(a.n or 100_000)))
    elif a.cmd == "backlog":
        load(a.n)
        found = dict(backlog=a.n, steady_per_s=round(pgbench(CLAIM1, 2, "-t", "4500")[0]))
    else:
        found = horizon(a.secs, a.pin)
    print(
        json.dumps(
            dict(
                peer="pgbench", version=sql(DB, "show server_version"), cmd=a.cmd, variant="default", **found
            )
        )
    )


main()
