"""How many connections a host holds: its own four, and what its handlers need."""

from __future__ import annotations

from collections import Counter

from support.cluster import Cluster, wait_for

APP = """

@app.task
def enqueues(ctx: Ctx) -> int:
    return work.enqueue().id

@app.task
async def enqueues_async(ctx: Ctx) -> int:
    return (await work.aenqueue()).id
"""


def sessions(cluster: Cluster) -> Counter[str]:
    rows = cluster.db.execute(
        "SELECT application_name FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name LIKE 'pgworkers %'"
    ).fetchall()
    return Counter(name.removeprefix("pgworkers ") for (name,) in rows)


def test_handlers_that_enqueue_share_one_connection_which_closes_when_idle(cluster: Cluster) -> None:
    cluster.app.write_text(cluster.app.read_text() + APP)
    cluster.start(queues="default:1,other:1")
    own = {"claim": 1, "finish": 1, "listen": 1, "leadership": 1}
    wait_for(lambda: sessions(cluster) == own, what="the four of the host")
    for task in ("enqueues", "enqueues_async", "enqueues", "enqueues_async"):
        [job] = cluster.enqueue(task)
        cluster.until(job, "succeeded")
        wait_for(lambda: sessions(cluster) == own | {"client": 1}, what=f"one session after {task}")
    wait_for(lambda: sessions(cluster) == own, what="the worker has rested, its session is closed")
    [job] = cluster.enqueue("enqueues")  # and is opened again without a word
    cluster.until(job, "succeeded")
    cluster.until_all_ended()


#: Settings of a role or a database with which our statements would not work.
HOSTILE = {
    "DateStyle": "'SQL, DMY'",
    "TimeZone": "'Asia/Kolkata'",
    "IntervalStyle": "'sql_standard'",
    "array_nulls": "off",
    "standard_conforming_strings": "off",
    "default_transaction_isolation": "'serializable'",
    "search_path": "evil, public",
    "extra_float_digits": "-15",
}


def backends(cluster: Cluster) -> dict[str, int]:
    rows = cluster.db.execute(
        "SELECT application_name, pid FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name LIKE 'pgworkers %'"
    ).fetchall()
    return {name.removeprefix("pgworkers "): pid for name, pid in rows}


def test_a_running_host_reconnects_whatever_its_role_and_database_say(cluster: Cluster) -> None:
    cluster.start(queues="default:1")
    own = {"claim", "finish", "listen", "leadership"}
    wait_for(lambda: set(backends(cluster)) == own, what="the four of the host")
    (name,) = cluster.db.execute("SELECT current_database()").fetchone() or ("",)
    timeout = {"idle_session_timeout": "'300ms'"} if cluster.db.info.server_version >= 140000 else {}
    for setting, value in (HOSTILE | timeout).items():
        for whose in (f"DATABASE {name}", f"ROLE CURRENT_USER IN DATABASE {name}"):
            cluster.db.execute(f"ALTER {whose} SET {setting} = {value}".encode())
    before = backends(cluster)
    cluster.db.execute(
        "SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) AS pid", [list(before.values())]
    )
    wait_for(
        lambda: set(backends(cluster)) == own and not set(backends(cluster).values()) & set(before.values()),
        what="the host is back",
    )
    after = backends(cluster)
    [job] = cluster.enqueue("work", args={"seconds": 1.0})  # longer than the timeout
    cluster.until(job, "succeeded")
    assert backends(cluster) == after, "the server ended a session that was idle"
    for whose in (
        f"DATABASE {name}",
        f"ROLE CURRENT_USER IN DATABASE {name}",
    ):  # for the sessions of the audit
        cluster.db.execute(f"ALTER {whose} RESET ALL".encode())
