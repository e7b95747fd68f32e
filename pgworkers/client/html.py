"""`Job` and `Batch` as HTML, for notebooks. Every value is escaped: task names, notes and errors come from the database."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from pgworkers.job.changes import progress_fraction

if TYPE_CHECKING:
    from pgworkers.job.batches import BatchCounts
    from pgworkers.job.queries import JobView

MAX_TEXT_CHARACTERS = 500


def job_html(job_id: int, view: JobView | None, problem: str = "") -> str:
    """A job as a small table. Without a view: its number, and why nothing more is known."""
    title = f"Job #{job_id}"
    if view is None:
        return _table(title, [("", problem)] if problem else [])
    rows = [("task", view.task), ("queue", view.queue), ("state", str(view.state))]
    if view.attempt:
        rows.append(("attempt", f"{view.attempt} of {view.max_attempts}"))
    if view.verdict is not None:
        rows.append(("verdict", view.verdict))
    if view.worker is not None:
        rows.append(("worker", view.worker))
    if view.error is not None:
        rows.append(("error", view.error))
    progress = view.progress if isinstance(view.progress, dict) else None
    note = str(progress.get("note") or "") if progress else ""
    return _table(title, rows, _bar(progress_fraction(progress), note) if progress else "")


def batch_html(batch_id: int, counts: BatchCounts | None, problem: str = "") -> str:
    title = f"Batch #{batch_id}"
    if counts is None:
        return _table(title, [("", problem)] if problem else [])
    rows = [(name, f"{getattr(counts, name):,}") for name in ("total", "live", "succeeded", "failed")]
    ended = counts.total - counts.live
    return _table(title, rows, _bar(ended / counts.total, "") if counts.total else "")


def _table(title: str, rows: list[tuple[str, str]], bar: str = "") -> str:
    lines = "".join(f"<tr><th>{escape(name)}</th><td>{_text(value)}</td></tr>" for name, value in rows)
    return f"<table><caption>{escape(title)}</caption>{lines}{bar}</table>"


def _bar(fraction: float | None, note: str) -> str:
    shown = "" if fraction is None else f'<progress value="{fraction:.4f}"></progress> {fraction:.0%} '
    return f"<tr><th>progress</th><td>{shown}{_text(note)}</td></tr>"


def _text(value: str) -> str:
    return escape(value if len(value) <= MAX_TEXT_CHARACTERS else value[:MAX_TEXT_CHARACTERS] + "…")
