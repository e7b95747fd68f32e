"""Logs of a real host: JSON lines, logging of handlers, and an output that is full or closed."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from typing import Any

from support.cluster import Cluster, wait_for

from pgworkers.observe.log import JSON_KEYS

HOSTILE = '\x1b[2J\u202e\r\n{"event": "AttemptEnded", "job": 1}\n12:00:00 #1 forged'


def test_json_lines_of_a_host_and_of_its_handlers(cluster: Cluster) -> None:
    reader, writer = os.pipe()
    master = cluster.start("--log", "json", queues="default:1", stdout=writer)
    os.close(writer)
    [talk] = cluster.enqueue("talk", args={"text": HOSTILE})
    [fail] = cluster.enqueue("fail", args={"text": HOSTILE}, max_attempts=1)
    [dead] = cluster.enqueue("die", args={"how": "segv"}, max_attempts=1)
    cluster.until_all_ended()
    assert master.terminate() == 0
    lines: list[dict[str, Any]] = []
    with open(reader, encoding="utf-8", newline="\n") as stream:
        for line in stream:
            assert line.rstrip("\n").isprintable(), line
            lines.append(json.loads(line))
    assert {tuple(line) for line in lines} == {JSON_KEYS}
    host = socket.gethostname()
    assert {(line["host"], line["pid"]) for line in lines} == {(host, master.pid)}
    ends = {line["job"]: line for line in lines if line["event"] == "AttemptEnded"}
    assert {job: (line["level"], line["data"]["state"]) for job, line in ends.items()} == {
        talk: ("info", "succeeded"),
        fail: ("error", "dead"),
        dead: ("error", "dead"),
    }
    [death] = [line for line in lines if line["event"] == "WorkerDied" and line["job"] == dead]
    assert (death["task"], death["queue"], death["attempt"]) == ("die", "default", 1)

    said = master.log()
    own = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert [(one["data"]["logger"], one["message"]) for one in own] == [
        ("pgworkers.job.talk", f"ctx {HOSTILE}"),
        ("shop.pdf", f"library {HOSTILE}"),
        ("shop.pdf", f"caught {HOSTILE}"),
    ]
    for one in own:
        assert tuple(one) == JSON_KEYS
        told = one["job"], one["task"], one["queue"], one["attempt"], one["host"]
        assert told == (talk, "talk", "default", 1, host)
    assert own[0]["data"]["page"] == 7
    assert "inner" in own[2]["data"]["traceback"]
    assert f"printed {HOSTILE!r}" in said, "what a handler prints stays as it is"


def test_an_unread_output_stops_nothing(cluster: Cluster) -> None:
    """FAULTS 75. Pipe and buffer are full; the host goes on, and says so when the reader is back."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    master = cluster.start(
        "--log", "json", stdout=writer, PGWORKERS_LOG_RATE_LIMIT="0", PGWORKERS_LOG_BUFFER_SIZE="20KB"
    )
    os.close(writer)
    jobs = cluster.enqueue("work", 200)
    assert cluster.until_all_ended() == {"succeeded": len(jobs)}
    [last] = cluster.enqueue("work")
    cluster.until(last, "succeeded")
    renewed = cluster.db.execute("SELECT renewed_at FROM pgworkers.host").fetchone()
    wait_for(lambda: cluster.db.execute("SELECT renewed_at FROM pgworkers.host").fetchone() != renewed)
    os.set_blocking(reader, False)
    seen = bytearray()

    def dropped_lines() -> list[dict[str, Any]]:
        """The complete lines about dropped records so far."""
        try:
            while more := os.read(reader, 1 << 20):
                seen.extend(more)
        except BlockingIOError:
            pass
        lines = seen[: seen.rfind(b"\n") + 1].splitlines()
        return [json.loads(line)["data"] for line in lines if b'"LogLinesDropped"' in line]

    def counted() -> bool:
        return sum(data["count"] for data in dropped_lines()) > len(jobs) / 2

    wait_for(lambda: counted() or cluster.enqueue("work", 2) == [], what="the drops are dropped_lines")
    assert {data["why"] for data in dropped_lines()} == {"the output was not read"}
    os.close(reader)
    cluster.until_all_ended()
    assert master.terminate() == 0, "and now nobody reads at all"


def test_a_closed_output_and_a_full_disk_stop_nothing(cluster: Cluster) -> None:
    """FAULTS 76 and 77."""
    reader, writer = os.pipe()
    os.close(reader)
    full = os.open("/dev/full", os.O_WRONLY)
    masters = [cluster.start(queues="default:1", stdout=output, wait=False) for output in (writer, full)]
    os.close(writer)
    os.close(full)
    wait_for(lambda: all(master.titles("idle") for master in masters))
    cluster.enqueue("work", 100)
    assert cluster.until_all_ended() == {"succeeded": 100}
    assert [master.terminate() for master in masters] == [0, 0]
