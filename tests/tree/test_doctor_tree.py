"""The doctor next to real masters: no findings for a healthy one, and the findings for one that is not."""

from __future__ import annotations

from typing import Any

from support.cluster import FAST, Cluster, wait_for
from support.command import Command
from support.doctor_findings import examined

from pgworkers.doctor.findings import Thresholds


def test_a_life_as_the_doctor_sees_it(cluster: Cluster) -> None:
    master = cluster.start()
    wait_for(lambda: "this host leads" in master.log())
    cli = Command(cluster.directory, PGWORKERS_DSN=cluster.dsn, APP_QUEUES="default:2", **FAST)

    def well() -> dict[str, str] | None:
        """What it says if it has nothing to complain of; of a round trip that was slow for a moment it may, nothing else.

        Which account runs the tests, and its core limit, are not the question here (tests/security/test_hardening.py).
        """
        rows: list[dict[str, Any]] = cli("doctor", "-o", "json", code=None).json()
        rows = [row for row in rows if row["check"] not in ("account", "core dumps")]
        bad = [row for row in rows if row["level"] in ("warn", "fail")]
        assert {row["check"] for row in bad} <= {"database"}, bad
        return None if bad else {row["check"]: row["what"] for row in rows}

    healthy = wait_for(well, what="a host of which the doctor has nothing to say")
    assert f"the master (pid {master.pid})" in healthy["limits"]
    assert healthy["hosts"] == "1 running"

    def finding_texts(check: str, patience: float) -> str:
        found = examined(cluster.dsn, Thresholds(warn_after_seconds=patience))[check]
        return "\n".join(f"{finding.level}: {finding.what}: {finding.why}" for finding in found)

    job, _ = cluster.enqueue("hang", 2)
    wait_for(
        lambda: (
            cluster.db.execute("SELECT count(*) FROM pgworkers.worker WHERE job_id IS NOT NULL").fetchone()
            == (2,)
        )
    )
    cluster.enqueue("work", 50)
    wait_for(lambda: f"warn: #{job} hang on " in finding_texts("stuck", 0.01))
    wait_for(lambda: "all its 2 workers are busy: 2x hang (up to " in finding_texts("backlog", 0.01))
    cli("jobs", "suspend", str(job))
    wait_for(
        lambda: any(
            f"#{job} hang" in line and "suspended" in line
            for line in finding_texts("stuck", 0.01).splitlines()
        )
    )

    master.process.kill()
    master.wait()
    wait_for(
        lambda: (
            cluster.db.execute("SELECT renewed_at < now() - lease FROM pgworkers.host").fetchone() == (True,)
        )
    )
    lost = finding_texts("hosts", 0.01)
    assert f"(pid {master.pid}) has not renewed for " in lost
    assert "and still holds" in lost
    assert "fail: no host is running" in lost
    assert finding_texts("leader", 0.01).startswith("skip: ")
