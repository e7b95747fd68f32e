"""The doctor's findings without its command line."""

from __future__ import annotations

from pgworkers.doctor.checks import DatabaseFacts, run_checks
from pgworkers.doctor.findings import Finding, Thresholds
from pgworkers.postgres.connect import connect
from pgworkers.settings import Settings


def examined(
    dsn: str, tolerance: Thresholds | None = None, settings: Settings | None = None, schema: str = "pgworkers"
) -> dict[str, list[Finding]]:
    """What every check found."""
    settings = settings or Settings()
    found: dict[str, list[Finding]] = {}
    with connect(settings, dsn, "doctor") as conn:
        patient = DatabaseFacts(
            conn, schema, settings, lambda: connect(settings, dsn, "doctor"), tolerance or Thresholds()
        )
        for finding in run_checks(patient):
            found.setdefault(finding.check, []).append(finding)
    return found
