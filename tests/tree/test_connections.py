"""How many connections a host holds: its own four, and what its handlers need."""

from __future__ import annotations

from collections import Counter

from support.tree import Forest, wait_for

APP = """

@app.task
def enqueues(ctx: Ctx) -> int:
    return work.enqueue().id

@app.task
async def enqueues_async(ctx: Ctx) -> int:
    return (await work.aenqueue()).id
"""


def sessions(forest: Forest) -> Counter[str]:
    rows = forest.db.execute(
        "SELECT application_name FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name LIKE 'pgworkers %'"
    ).fetchall()
    return Counter(name.removeprefix("pgworkers ") for (name,) in rows)


def test_handlers_that_enqueue_share_one_connection_which_closes_when_idle(forest: Forest) -> None:
    forest.app.write_text(forest.app.read_text() + APP)
    forest.start(queues="default:1,other:1")
    own = {"claim": 1, "finish": 1, "listen": 1, "leadership": 1}
    wait_for(lambda: sessions(forest) == own, what="the four of the host")
    for task in ("enqueues", "enqueues_async", "enqueues", "enqueues_async"):
        [job] = forest.enqueue(task)
        forest.until(job, "succeeded")
        wait_for(lambda: sessions(forest) == own | {"client": 1}, what=f"one session after {task}")
    wait_for(lambda: sessions(forest) == own, what="the worker has rested, its session is closed")
    [job] = forest.enqueue("enqueues")  # and is opened again without a word
    forest.until(job, "succeeded")
    forest.until_all_ended()
