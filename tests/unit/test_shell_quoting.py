"""Commands that pgworkers prints for people to paste, with names that an enqueuer chose."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.hostile_names import HOSTILE_NAMES

from pgworkers.doctor import cluster, jobs
from pgworkers.doctor.findings import Finding, Thresholds, psql_command, quote_identifier
from pgworkers.events import QueueDepth
from pgworkers.job.burst import LeftBehind
from pgworkers.job.gauges import UnknownTask
from pgworkers.master import burst
from pgworkers.observe.escape import shell_command


def depth(queue: str, **more: bool) -> QueueDepth:
    flags = {"is_paused": False, "is_throttled": False, **more}
    return QueueDepth(
        queue=queue,
        ready=1,
        scheduled=0,
        running=0,
        oldest=9999.0,
        limit=None,
        is_paused=flags["is_paused"],
        is_throttled=flags["is_throttled"],
    )


def fixes(name: str) -> Iterator[str]:
    """Every command with the name of a queue or a task that the doctor and a burst print."""
    found: list[Finding] = []
    found += cluster.check_unserved_queues([depth(name)], [], Thresholds())
    found += cluster.check_unknown_tasks([UnknownTask("default", name, 1, 5.0)])
    found += cluster.check_paused_queues([cluster.PausedQueue(name, True, 99.0)], [], Thresholds())
    found += cluster.check_paused_queues([cluster.PausedQueue(name, False, 99.0)], [], Thresholds())
    busy = jobs.WorkerGroup(name, "busy", "render", 1, 5.0)
    idle = jobs.WorkerGroup(name, "idle", None, 1, 0.0)
    for queue, members in (
        (depth(name, is_paused=True), []),
        (depth(name), []),
        (depth(name), [busy]),
        (depth(name), [idle]),
    ):
        found += jobs.check_backlog([queue], members, [], Thresholds())
    for finding in found:
        yield from finding.fix
    for reason in ("paused", "no workers"):
        yield (
            burst.burst_end_lines([LeftBehind(name, "render", reason, 1, None)])[1]
            .split("; ", 1)[1]
            .rsplit(" lets", 1)[0]
            .rsplit(" undoes", 1)[0]
        )


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_pasted_command_runs_nothing_but_pgworkers(tmp_path: Path, name: str) -> None:
    shown = [text[text.index("pgworkers ") :] for text in fixes(name) if "pgworkers " in text]
    assert len(shown) > 10
    script = 'pgworkers() { printf "%s\\0" "$@"; }\n' + "\n".join(shown)
    done = subprocess.run(["sh"], input=script.encode(), cwd=tmp_path, capture_output=True, check=False)
    assert done.stderr == b""
    assert list(tmp_path.iterdir()) == []
    arrived = done.stdout.split(b"\0")
    literal = name.encode("unicode_escape") if "\n" in name else name.encode()
    assert arrived.count(literal) >= 10


def test_operands_that_look_like_options_stay_operands() -> None:
    assert shell_command("queues resume", "--all") == "pgworkers queues resume -- --all"
    assert shell_command("queues scale", "-x", default=True) == "pgworkers queues scale --default -- -x"
    assert (
        shell_command("jobs list", queue="a b", state="ready")
        == "pgworkers jobs list --queue 'a b' --state ready"
    )


def test_names_in_statements_are_quoted() -> None:
    assert quote_identifier("job_ready") == "job_ready"
    assert quote_identifier('a"; drop table x; --') == '"a""; drop table x; --"'
    assert psql_command("SELECT 'x'").startswith("psql -c ")
