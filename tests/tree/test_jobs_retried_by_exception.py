"""Exceptions that a task retries, gives up or fails by, with real workers."""

from __future__ import annotations

from support.cluster import Cluster

APP = """
@app.task(retry_on=(ConnectionError,), discard_on=(FileNotFoundError,), backoff="0.1s", retries=3)
def fetch(ctx: Ctx, what: str) -> str:
    note(ctx, "START")
    note(ctx, "END")
    if what == "gone":
        raise FileNotFoundError("no such page")
    if what == "wrong":
        raise ValueError("not a number")
    if what == "down" and ctx.attempt < 3:
        raise ConnectionResetError("peer went away")
    return "ok"
"""


def test_exceptions_decide_whether_a_job_is_tried_again(cluster: Cluster) -> None:
    cluster.declare(APP)
    cluster.start(queues="default:1")
    [gone] = cluster.enqueue("fetch", args={"what": "gone"})
    [wrong] = cluster.enqueue("fetch", args={"what": "wrong"})
    [down] = cluster.enqueue("fetch", args={"what": "down"})
    row = cluster.until(gone, "dead")
    assert (row["verdict"], row["attempt"]) == ("discarded", 1)
    assert row["error"] == "FileNotFoundError: no such page; not tried again (discard_on)"
    row = cluster.until(wrong, "dead")
    assert (row["verdict"], row["attempt"]) == ("error", 1)
    assert row["error"] == "ValueError: not a number; not tried again: retry_on does not name it"
    row = cluster.until(down, "succeeded")
    assert (row["attempt"], row["result"]) == (3, "ok")
