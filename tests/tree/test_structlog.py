"""structlog in handlers, set up as docs/how-to/add-hooks.md shows: each line has the job."""

from __future__ import annotations

import json
import re
from pathlib import Path

from support.cluster import Cluster, wait_for

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "add-hooks.md"
TASKS = """
@app.task
def render(ctx: Ctx, report_id: int):
    note(ctx, "START")
    structlog.get_logger().info("page drawn", report_id=report_id)
    note(ctx, "END")

@app.task
async def mail(ctx: Ctx):
    note(ctx, "START")
    structlog.get_logger().warning("sent")
    note(ctx, "END")
"""


def test_lines_of_structlog_name_their_job(cluster: Cluster) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (setup,) = [block for block in blocks if "import structlog" in block]
    cluster.declare(setup + TASKS)
    master = cluster.start(queues="default:1")
    jobs = [
        *cluster.enqueue("render", args={"report_id": 7}),
        *cluster.enqueue("mail"),
        *cluster.enqueue("render", args={"report_id": 8}),
    ]
    cluster.until_all_ended()

    def lines() -> list[dict[str, object]] | None:
        found = [
            json.loads(line)
            for line in master.log().splitlines()
            if line.startswith('{"') and '"event"' in line
        ]
        return found if len(found) == 3 else None

    first, second, third = wait_for(lines, what="three lines")
    assert (first["event"], first["report_id"], first["job"], first["task"]) == (
        "page drawn",
        7,
        jobs[0],
        "render",
    )
    assert (second["event"], second["job"], second["level"]) == ("sent", jobs[1], "warning")
    assert (third["job"], third["attempt"]) == (jobs[2], 1)
