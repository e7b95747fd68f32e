"""Payloads, results and exceptions that no database likes: each ends, none leaves a job running."""

from __future__ import annotations

import pytest
from support.cluster import Forest
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


def test_whatever_a_handler_leaves_its_job_ends_at_the_first_try(forest: Forest) -> None:
    master = forest.start(queues="default:2")
    jobs = {}
    for case in CASES:
        [jobs[case]] = forest.enqueue("hostile", args={"what": case}, max_attempts=1)
    forest.until_all_ended()
    rows = {case: forest.row(job) for case, job in jobs.items()}
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
    [printed] = forest.attempts(jobs["print"])
    assert 0 < len(printed["output"]) <= 16_384
    assert len(master.worker_pids()) == 2
    assert audit(forest.db, forest.ledger, jobs.values()) == []


@pytest.mark.excused("I5", "its handler cannot be called")
def test_arguments_that_do_not_fit_the_task_end_with_a_clear_error(forest: Forest) -> None:
    forest.start(queues="default:1")
    [job] = forest.enqueue("work", args={"seconds": "soon", "no_such": 1}, max_attempts=1)
    row = forest.until(job, "dead")
    assert "work" in row["error"]
