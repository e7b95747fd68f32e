"""I23: the database's password is nowhere but where the operator put it. A canary in the DSN, and a search everywhere."""

from __future__ import annotations

import os
import re
import urllib.request
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from support.cluster import Cluster, Master, wait_for
from support.command import Command

CANARY = "c4n4ry-w1th-@-and-%"
APP = """
import os, subprocess, sys
from pgworkers import App, Ctx
app = App(name="canary")
app.queue("default", workers=1)

@app.task(retries=0)
def look(ctx: Ctx) -> dict:
    inherited = subprocess.run(["env"], capture_output=True, text=True).stdout
    with open("/proc/self/environ", errors="replace") as file:
        at_exec = file.read()
    with ctx.connect() as conn:
        answer = conn.execute("SELECT 1").fetchone()[0]
    return {"os": dict(os.environ), "at exec": at_exec, "child": inherited, "connected": answer,
            "enqueued": quiet.enqueue().id}

@app.task(retries=0)
def quiet() -> None:
    pass

@app.task(retries=0)
def fail(ctx: Ctx) -> None:
    address = "the address"
    print(ctx, app, app.client, app.client.database, ctx.connect)
    raise RuntimeError(f"{app!r} {ctx!r} {app.client.settings!r}")

@app.task(retries=0)
def wrong(ctx: Ctx) -> None:
    ctx.connect(host="127.0.0.1", port=1)

@app.task(retries=0)
def crash(ctx: Ctx) -> None:
    import ctypes
    ctypes.string_at(0)
"""


def _everything_written(db: psycopg.Connection[Any]) -> str:
    """Every row of every table of the schema, as text."""
    tables = db.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'pgworkers'").fetchall()
    rows = [
        row[0]
        for (table,) in tables
        for row in db.execute(sql.SQL("SELECT t::text FROM {} t").format(sql.Identifier("pgworkers", table)))
    ]
    return "\n".join(rows)


def _proc(master: Master, name: str, *, but: int = 0) -> str:
    found = []
    for process in master.processes():
        if process.pid != but:
            try:
                found.append(Path(f"/proc/{process.pid}/{name}").read_bytes().decode(errors="replace"))
            except OSError:
                continue
    assert len(found) >= 2, "the search found no process to look at"
    return "\n".join(found)


@pytest.mark.parametrize("where", ["PGWORKERS_DSN", "--dsn"])
def test_i23_the_canary_is_nowhere(cluster: Cluster, tmp_path: Path, where: str) -> None:
    cluster.app.write_text(APP)
    environ, args = _given(cluster.dsn, where)
    cli = Command(tmp_path, **{k: v for k, v in environ.items() if v})
    words = args
    master = cluster.start(
        *args,
        queues="default:1",
        PGWORKERS_METRICS_ADDRESS="127.0.0.1:0",
        PGWORKERS_LOG_FORMAT="json" if where == "--dsn" else "text",
        **environ,
    )
    jobs = {name: cluster.enqueue(name)[0] for name in ("look", "fail", "wrong", "crash")}
    cluster.until_all_ended()
    wait_for(master.worker_pids, what="the successor of the one that crashed")
    result = cluster.row(jobs["look"])["result"]
    assert result["connected"] == 1, "handlers can still connect"
    assert cluster.state(result["enqueued"]) == "succeeded", "and enqueue"
    log = master.log()
    address = re.search(r"http://[\d.:]+", log)
    assert address is not None
    page = urllib.request.urlopen(f"{address[0]}/metrics", timeout=60).read().decode()
    shown = (
        cli(*words, "jobs", "show", str(jobs["fail"])).out
        + cli(*words, "jobs", "show", str(jobs["look"])).out
    )
    told = cli(*words, "config", "show", code=None)
    refused = cli(
        "jobs", "list", "--dsn", make_conninfo(_with(cluster.dsn), host="127.0.0.1", port=1), code=None
    )
    evidence = {
        "titles and command lines": _proc(master, "cmdline"),
        "environ of supervisors and workers": _proc(master, "environ", but=master.pid),
        "the log": log,
        "metrics": page,
        "every row of every table": _everything_written(cluster.db),
        "the result": str(result),
        "jobs show": shown,
        "config show": told.out + told.err,
        "an address that does not answer": refused.out + refused.err,
    }
    assert all(evidence.values()), evidence
    assert [name for name, text in evidence.items() if CANARY in text or "c4n4ry" in text] == []


def _with(dsn: str) -> str:
    return make_conninfo(dsn, password=CANARY)


def _given(dsn: str, where: str) -> tuple[dict[str, str], list[str]]:
    """The environment and the words of the command line that carry the canary."""
    if where == "PGWORKERS_DSN":
        return {"PGWORKERS_DSN": dsn, "DATABASE_URL": _with(dsn), "PGPASSWORD": CANARY}, []
    return {"PGWORKERS_DSN": "", "DATABASE_URL": _with(dsn)}, ["--dsn", _with(dsn)]


def test_the_error_for_an_app_that_needs_the_address_says_how(tmp_path: Path, dsn: str) -> None:
    (tmp_path / "app.py").write_text(
        "import os\nfrom pgworkers import App\nurl = os.environ['DATABASE_URL']\napp = App()\napp.queue('default')\n"
    )
    cli = Command(tmp_path, DATABASE_URL=dsn)
    told = cli("run", "--check", code=None)
    assert told.code != 0
    assert "PGWORKERS_INHERITED_VARIABLES=DATABASE_URL" in told.err
    assert cli("run", "--check", PGWORKERS_INHERITED_VARIABLES="DATABASE_URL").code == 0


def test_the_search_can_find_something(cluster: Cluster) -> None:
    """The broken twin: let through, the canary is in the environment of the worker."""
    cluster.app.write_text(APP)
    master = cluster.start(
        queues="default:1", PGWORKERS_DSN=_with(cluster.dsn), PGWORKERS_INHERITED_VARIABLES="PGWORKERS_DSN"
    )
    (job,) = cluster.enqueue("look")
    wait_for(lambda: cluster.state(job) == "succeeded")
    assert "c4n4ry" in _proc(master, "environ", but=master.pid)
    assert "c4n4ry" in str(cluster.row(job)["result"])
    assert os.environ.get("PGWORKERS_DSN") is None
