"""The row "low": a handler that writes into its worker's channel: that worker dies, and the host goes on."""

from __future__ import annotations

from support.attacked_host import begins
from support.cluster import Cluster
from support.logins import LoginDatabase

#: Forged frames are written into every socket of the worker that is connected to the master.
FORGER = """
import socket, struct

def forge(data: bytes) -> None:
    for number in sorted(int(n) for n in os.listdir("/proc/self/fd")):
        try: target = os.readlink(f"/proc/self/fd/{number}")
        except OSError: continue
        if target.startswith("socket:"):
            os.write(number, data)

def frame(kind: int, job: int, lease: int, body: bytes, length: int | None = None) -> bytes:
    return struct.pack("<IBxxxqi", len(body) if length is None else length, kind, job, lease) + body

@app.task
def forger(ctx: Ctx, how: str) -> None:
    note(ctx, "START")
    job, lease = ctx.job, ctx.lease
    forge({
        "garbage": b"\\xff" * 4096,
        "text": b"GET / HTTP/1.1\\r\\nHost: example\\r\\n\\r\\n" * 10,
        "too long": frame(3, job, lease, b"", 0xFFFFFFFF),
        "unknown kind": frame(99, job, lease, b"{}"),
        "report": frame(3, job, lease, b"{not json"),
        "report of another shape": frame(3, job, lease, b'{"outcome": 7}'),
        "done": frame(5, job, lease, b"short"),
        "done of another job": frame(5, job + 1000, lease, b"short"),
        "progress": frame(4, job, lease, b"["),
        "metrics": frame(6, job, lease, b"["),
    }[how])
    while how != "metrics": time.sleep(1)
    note(ctx, "END")
"""
WAYS = (
    *("garbage", "text", "too long", "unknown kind", "report", "report of another shape"),
    *("done", "done of another job", "progress"),
)


def test_a_bad_frame_is_the_death_of_that_worker_only(cluster: Cluster, database: LoginDatabase) -> None:
    cluster.declare(FORGER)
    master = cluster.start(queues="default:2,images:1", dsn=database.dsn("worker"))
    bystander = begins(cluster, queue="images")
    for how in WAYS:
        [job] = cluster.enqueue("forger", args={"how": how}, max_attempts=1)
        row = cluster.until(job, "dead")
        [attempt] = cluster.attempts(job)
        assert attempt["verdict"] == "crash", (how, attempt)
        assert "carried what no worker sends" in attempt["error"], (how, attempt["error"])
        assert row["crashes"] == 1
        assert master.process.poll() is None, master.log()
    [job] = cluster.enqueue("forger", args={"how": "metrics"})
    assert cluster.until(job, "succeeded")["attempt"] == 1, "what cannot be read of metrics is passed over"
    assert master.process.poll() is None, master.log()
    [after] = cluster.enqueue("work", args={"value": 7})
    assert cluster.until(after, "succeeded")["result"] == 7
    cluster.open_gate()
    assert cluster.until(bystander, "succeeded")["attempt"] == 1
