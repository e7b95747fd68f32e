"""Sentry: what sentry_sdk sends for failed and killed attempts and for schedules, through a transport that writes a file."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.cluster import Cluster, wait_for

APP = """
import json as _json
from sentry_sdk.transport import Transport
from pgworkers.integrations import sentry

class FileTransport(Transport):
    def capture_envelope(self, envelope):
        fd = os.open(os.environ["PGWORKERS_LEDGER"] + ".sentry", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        for item in envelope.items:
            fields = {"kind": item.type, "pid": os.getpid(), **(item.payload.json or {})}
            os.write(fd, (_json.dumps(fields) + "\\n").encode())
        os.close(fd)

sentry.install(
    app, dsn="http://key@127.0.0.1:9/1", transport=FileTransport, environment="test", default_integrations=False
)

@app.task(retries=1, backoff=0.1)
def broken(number: int):
    try:
        int("seven")
    except ValueError as error:
        raise RuntimeError(f"order {number}") from error

@app.task(timeout=0.3, retries=0)
def stuck():
    sum(__import__("itertools").repeat(1))

@app.task(retries=0)
def suicide():
    os.kill(os.getpid(), 9)

@app.schedule("* * * * *", name="Every Minute")
@app.task
def minutely(ctx: Ctx):
    note(ctx, "START")
    note(ctx, "END")
"""


def items(cluster: Cluster, kind: str) -> list[dict[str, Any]]:
    path = cluster.directory / "ledger.sentry"
    complete = path.read_text().rpartition("\n")[0] if path.exists() else ""
    return [
        item for item in map(json.loads, complete.split("\n") if complete else []) if item["kind"] == kind
    ]


def events_of(cluster: Cluster, job: int, count: int = 1) -> list[dict[str, Any]]:
    def found() -> list[dict[str, Any]] | None:
        events = [item for item in items(cluster, "event") if item["tags"]["pgworkers.job"] == str(job)]
        return events if len(events) >= count else None

    return wait_for(found, what=f"{count} events of job {job}")


@pytest.mark.excused("audit", "jobs of this test kill their own worker")
def test_failed_and_killed_attempts_arrive_with_their_stacks(cluster: Cluster) -> None:
    cluster.declare(APP)
    master = cluster.start()
    (error,) = cluster.enqueue("broken", args={"number": 7})
    (timeout,) = cluster.enqueue("stuck")
    (crash,) = cluster.enqueue("suicide")
    first, last = events_of(cluster, error, 2)
    assert (first["level"], last["level"]) == ("warning", "error")
    assert [first["tags"]["pgworkers.attempt"], last["tags"]["pgworkers.attempt"]] == ["1", "2"]
    cause, raised = last["exception"]["values"]
    assert (cause["type"], raised["type"], raised["value"]) == ("ValueError", "RuntimeError", "order 7")
    frame = raised["stacktrace"]["frames"][-1]
    assert frame["function"] == "broken"
    assert frame["context_line"].strip() == 'raise RuntimeError(f"order {number}") from error'
    assert frame["in_app"]
    assert last["fingerprint"] == ["{{ default }}", "broken"]
    assert last["transaction"] == "broken"
    assert last["environment"] == "test"
    assert "args" not in last["extra"], "arguments are sent only on request"
    (killed,) = events_of(cluster, timeout)
    (value,) = killed["exception"]["values"]
    assert value["type"] == "timeout"
    assert value["value"].startswith("stopped at its deadline")
    assert value["stacktrace"]["frames"][-1]["function"] == "stuck", "the dump of the kill"
    assert killed["fingerprint"][:3] == ["pgworkers", "stuck", "timeout"]
    assert killed["contexts"]["job"]["exit status"] == "SIGKILL"
    (crashed,) = events_of(cluster, crash)
    assert crashed["tags"]["pgworkers.verdict"] == "crash"
    (reporter,) = [pid for pid, _ in master.titles("pgworkers: reporter")]
    assert {item["pid"] for item in items(cluster, "event")} == {reporter}, "only the reporter sends"


def test_schedules_are_monitors(cluster: Cluster) -> None:
    cluster.declare(APP)
    cluster.start()
    cluster.db.execute("UPDATE pgworkers.schedule SET next_at = now()")

    def check_ins() -> list[dict[str, Any]] | None:
        found = items(cluster, "check_in")
        return found if len(found) >= 2 else None

    begun, ended = sorted(wait_for(check_ins, timeout=90), key=lambda item: str(item["status"]))[:2]
    assert (begun["status"], ended["status"]) == ("in_progress", "ok")
    assert begun["check_in_id"] == ended["check_in_id"]
    assert begun["monitor_slug"] == "every-minute"
    assert begun["monitor_config"]["schedule"] == {"type": "crontab", "value": "* * * * *"}
    assert ended["duration"] >= 0
