"""What a job may become, in plain Python: the verbs as functions of a dictionary, one at a time, without a database."""

from __future__ import annotations

from dataclasses import dataclass, field

LIVE = ("scheduled", "ready", "running")


@dataclass
class Job:
    id: int
    state: str
    priority: int = 0
    unique: str | None = None
    due: str = "now"  # now, soon (a promote away), later (not in this test), never (it waits for others)
    expired: bool = False
    max_attempts: int = 3
    max_crashes: int = 2
    lease: int = 0
    attempt: int = 0
    crashes: int = 0
    host: str | None = None
    wished: bool = False
    verdict: str | None = None
    waits: dict[int, str] = field(default_factory=dict)  # parent -> on_failed
    unlinked: set[int] = field(default_factory=set)  # of these parents, whose rows do not know of it yet
    linked: bool = False  # its end settles the links to it

    def seen(self) -> tuple[object, ...]:
        """What the tables must show of it."""
        wished = self.wished if self.state == "running" else False
        host = self.host if self.state == "running" else None
        return (self.state, self.lease, self.attempt, self.crashes, self.unique, host, wished, self.verdict)


class Model:
    def __init__(self) -> None:
        self.jobs: dict[int, Job] = {}
        self.attempts: dict[tuple[int, int], tuple[str | None, str]] = {}
        self.hosts: set[str] = set()

    def live_with(self, unique: str | None) -> Job | None:
        if unique is None:
            return None
        return next((j for j in self.jobs.values() if j.unique == unique and j.state in LIVE), None)

    def held(self, id: int, lease: int, host: str) -> Job | None:
        """The job, if this is its valid lease and this host has it."""
        job = self.jobs[id]
        return job if (job.state, job.lease, job.host) == ("running", lease, host) else None

    # -- verbs -------------------------------------------------------------------------------------------------------

    def enqueue(self, job: Job, after: list[int], on_failed: str) -> None:
        self.jobs[job.id] = job
        failed = False
        for parent in after:
            found = self.jobs[parent]
            if found.state in LIVE:
                job.waits[parent] = on_failed
            elif found.state != "succeeded":
                failed = failed or on_failed == "cancel"
                if on_failed == "wait":
                    job.waits[parent] = on_failed
        job.unlinked = set(job.waits)
        if job.waits or failed:
            job.state, job.due, job.linked = "scheduled", "never", True
        if failed:
            self._end(job, "cancelled", "cancelled")

    def link(self) -> None:
        """Settle the new links: a live parent will have its effect later, one that has ended has it now."""
        new = [(j.id, parent) for j in self.jobs.values() for parent in j.unlinked]
        for id, parent_id in sorted(new):
            job, parent = self.jobs[id], self.jobs[parent_id]
            if parent_id not in job.unlinked:  # settled by the end of another one
                continue
            job.unlinked.discard(parent_id)
            on_failed = job.waits[parent_id]
            if parent.state in LIVE or (parent.state != "succeeded" and on_failed == "wait"):
                parent.linked = True
            else:
                self._settle(job, parent)

    def claimable(self, count: int) -> list[Job]:
        ready = [j for j in self.jobs.values() if j.state == "ready" and not j.expired]
        return sorted(ready, key=lambda j: (-j.priority, j.id))[:count]

    def claim(self, job: Job, host: str) -> None:
        job.state, job.host, job.lease, job.attempt = "running", host, job.lease + 1, job.attempt + 1

    def finish(self, id: int, lease: int, host: str, state: str, verdict: str, crash: bool) -> str:
        job = self.held(id, lease, host)
        if job is None:
            job = self.jobs[id]
            same = (job.lease, job.host, job.verdict) == (lease, host, verdict)
            return "already" if job.state not in LIVE and same else "lost"
        if verdict != "succeeded":
            self.attempts[id, lease] = (job.host, verdict)
        job.crashes += crash
        self._end(job, state, verdict)
        return "written"

    def retry(self, id: int, lease: int, host: str, verdict: str, due: str, free: bool, crash: bool) -> str:
        job = self.held(id, lease, host)
        if job is None:
            return "already" if self.attempts.get((id, lease)) == (host, verdict) else "lost"
        self.attempts[id, lease] = (job.host, verdict)
        job.crashes += crash
        if job.wished:
            self._end(job, "cancelled", verdict)
            return "written"
        job.state = "ready" if due == "now" else "scheduled"
        job.due, job.expired, job.host = due, False, None
        job.attempt = max(0, job.attempt - free)
        return "written"

    def release(self, id: int, lease: int, host: str) -> int:
        job = self.held(id, lease, host)
        if job is None:
            return 0
        job.attempt = max(0, job.attempt - 1)
        if job.wished:
            job.host = None  # it never started, so no finish of this lease can be its end
            self._end(job, "cancelled", "cancelled")
        else:
            job.state, job.due, job.host = "ready", "now", None
        return 1

    def cancel(self, id: int) -> str | None:
        job = self.jobs.get(id)
        if job is None or job.state not in LIVE:
            return job.state if job else None
        if job.state == "running":
            job.wished = True
            return "cancelling"
        job.host = None
        self._end(job, "cancelled", "cancelled")
        return "cancelled"

    def discard(self, id: int) -> str | None:
        job = self.jobs.get(id)
        if job is None or job.state not in LIVE:
            return job.state if job else None
        if job.state == "running":
            return "running"
        job.host = None
        self._end(job, "dead", "discarded")
        return "dead"

    def requeue(self, id: int) -> str:
        job = self.jobs.get(id)
        if job is None:
            return "missing"
        if job.state == "scheduled":
            job.state, job.due = "ready", "now"
            return "requeued"
        if job.state in ("ready", "running", "succeeded"):
            return job.state
        if self.live_with(job.unique) is not None:
            return "conflict"
        job.state, job.due, job.expired, job.wished, job.host = "ready", "now", False, False, None
        job.attempt = job.crashes = 0
        job.verdict = None
        return "requeued"

    def rescue(self, asking: str) -> dict[int, str]:
        rescued = {}
        for job in sorted(self.jobs.values(), key=lambda j: j.id):
            if job.state != "running" or job.host == asking or job.host in self.hosts:
                continue
            self.attempts[job.id, job.lease] = (job.host, "host_lost")
            if job.wished:
                rescued[job.id] = "cancelled"
            elif job.attempt >= job.max_attempts:  # which comes before the tenth loss
                rescued[job.id] = "dead"
            else:
                rescued[job.id] = "scheduled"
                job.state, job.due, job.expired, job.host = "scheduled", "later", False, None
        for id, state in rescued.items():
            if state != "scheduled":
                self._end(self.jobs[id], state, "host_lost")
        return rescued

    def promote(self) -> int:
        due = [j for j in self.jobs.values() if j.state == "scheduled" and j.due == "soon"]
        for job in due:
            job.state, job.due = "ready", "now"
        return len(due)

    def expire(self) -> int:
        late = [j for j in self.jobs.values() if j.state in ("scheduled", "ready") and j.expired]
        # all at once: a job that waits for another of them has expired, too, and is not cancelled with it
        for job in late:
            job.state, job.host = "dead", None
        for job in late:
            self._end(job, "dead", "expired")
        return len(late)

    def _end(self, job: Job, state: str, verdict: str) -> None:
        """End a job. Jobs that wait for it, and only those, are released or cancelled with it."""
        job.state, job.verdict = state, verdict
        job.waits.clear()
        job.unlinked.clear()
        if not job.linked:
            return
        for child in sorted(self.jobs.values(), key=lambda j: j.id):
            if job.id in child.waits and child.state in LIVE:
                self._settle(child, job)

    def _settle(self, child: Job, parent: Job) -> None:
        """The link to a parent that has ended has its effect."""
        on_failed = child.waits[parent.id]
        waiting = child.state == "scheduled" and child.due == "never"
        if parent.state != "succeeded" and on_failed == "cancel" and waiting:
            self._end(child, "cancelled", "cancelled")
        elif parent.state == "succeeded" or on_failed != "wait":
            del child.waits[parent.id]
            child.unlinked.discard(parent.id)
            if waiting and not child.waits:
                child.state, child.due = "ready", "now"
