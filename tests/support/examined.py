"""The doctor's findings without its command line."""

from __future__ import annotations

from pgworkers.doctor.examine import Patient, examine
from pgworkers.doctor.finding import Finding, Tolerance
from pgworkers.postgres.connect import connect
from pgworkers.settings import Settings


def examined(
    dsn: str, tolerance: Tolerance | None = None, settings: Settings | None = None, schema: str = "pgworkers"
) -> dict[str, list[Finding]]:
    """What every check found."""
    settings = settings or Settings()
    found: dict[str, list[Finding]] = {}
    with connect(settings, dsn, "doctor") as conn:
        patient = Patient(
            conn, schema, settings, lambda: connect(settings, dsn, "doctor"), tolerance or Tolerance()
        )
        for finding in examine(patient):
            found.setdefault(finding.check, []).append(finding)
    return found
