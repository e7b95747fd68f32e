"""What the README shows is what happens."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import msgspec

from pgworkers import Ctx, settings
from pgworkers.cli.reference import commands
from pgworkers.master import boot

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()


def code() -> dict[str, Any]:
    """The Python of the README, run from the top to the bottom."""
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 3
    space: dict[str, Any] = {"__name__": "readme", "draw": lambda page: None}
    for block in blocks:
        exec(block.replace("app = App()", 'app = App()\napp.queue("reports")'), space)
    return space


def test_its_tasks_can_be_called_and_their_results_kept() -> None:
    space = code()
    assert space["primes"](None, 100) == 25
    assert space["render"](None, 7) == {"url": "/reports/7.pdf"}
    result = space["render"](Ctx.for_test(checkpoint={"page": 498}), 7)
    assert json.loads(space["render"].encode_result(result, 16 << 10)) == {"url": "/reports/7.pdf"}
    assert [task.name for task in space["app"].describe().tasks] == ["primes", "render", "nightly"]
    assert [one.cron for one in space["app"].describe().schedules] == ["0 3 * * *"]


def test_its_start_is_the_start_of_a_host() -> None:
    app = msgspec.structs.replace(code()["app"].describe(), name="app.py", version="3f2c81a9d0")
    plan = boot.Plan(
        app=app,
        loaded=settings.load(environ={}),
        dsn="",
        queues={queue.name: queue for queue in app.queues if queue.name == "default"},
        database="Postgres 18, embedded server in /home/you/.pgworkers/data",
        schema="pgworkers, up to date",
        server=None,
    )
    lines = boot.banner(plan, "http://127.0.0.1:9911/metrics")
    lines[0] = lines[0].replace(boot.VERSION, "0.1.0")
    assert "\n".join(lines).replace(f"-TERM {os.getpid()}:", "-TERM 4711:") in README


def test_its_commands_exist() -> None:
    known = {name for name, _, _ in commands()}
    for line in re.findall(r"^\$ (pgworkers [^\n#]*)", README, re.MULTILINE):
        words = line.split()
        assert " ".join(words[:2]) in known, line
    for group, verbs in re.findall(r"`(?:pgworkers )?(jobs|queues|migrate|pg) ([a-z|]+)`", README):
        for verb in verbs.split("|"):
            assert f"pgworkers {group} {verb}" in known
