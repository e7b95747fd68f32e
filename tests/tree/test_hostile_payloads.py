"""Payloads, results and exceptions that no database likes: each ends, none leaves a job running."""

from __future__ import annotations

import pytest
from support.cluster import Cluster
from support.ledger import audit

CASES = [
    "return nul",
    "return surrogate",
    "return nan",
    "return big",
    "return deep",
    "return huge int",
    "return object",
    "raise nul",
    "raise surrogate",
    "raise big",
    "raise nasty",
    "raise interrupt",
    "raise generator exit",
    "print",
    "return fine",
]


def test_whatever_a_handler_leaves_its_job_ends_at_the_first_try(cluster: Cluster) -> None:
    master = cluster.start(queues="default:2")
    jobs = {}
    for case in CASES:
        [jobs[case]] = cluster.enqueue("hostile", args={"what": case}, max_attempts=1)
    cluster.until_all_ended()
    rows = {case: cluster.row(job) for case, job in jobs.items()}
    assert rows["return fine"]["state"] == "succeeded"
    for case in CASES:
        if case.startswith(("raise", "print")) or case in (
            "return nan",
            "return big",
            "return deep",
            "return object",
        ):
            assert rows[case]["state"] == "dead", case
            assert rows[case]["verdict"] == ("bad_result" if case.startswith("return") else "error"), case
            assert rows[case]["error"], case
    assert "a" in rows["raise nul"]["error"]
    assert len(rows["raise big"]["error"]) < 20_000
    [printed] = cluster.attempts(jobs["print"])
    assert 0 < len(printed["output"]) <= 16_384
    assert len(master.worker_pids()) == 2
    assert audit(cluster.db, cluster.ledger, jobs.values()) == []


@pytest.mark.excused("I5", "its handler cannot be called")
def test_arguments_that_do_not_fit_the_task_end_with_a_clear_error(cluster: Cluster) -> None:
    cluster.start(queues="default:1")
    [job] = cluster.enqueue("work", args={"seconds": "soon", "no_such": 1}, max_attempts=1)
    row = cluster.until(job, "dead")
    assert "work" in row["error"]
