"""The reporter as the master sees it: which ends of attempts it gets, and what happens when it hangs or dies.

The master never runs code of the app. It sends the ends of attempts to a process that does (`supervisor/reporter.py`). No
job waits for that process: reports wait in a bounded queue, and what does not fit is dropped and counted. A reporter that
does not finish a report within `report_timeout` is killed. If it dies, the report that it was busy with is dropped, because
it may be the cause, and the others are sent to the next one. So each end is reported at most once.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from pgworkers.clock import monotonic
from pgworkers.events import EventBus, JobRescued, ReporterDied, ReportsDropped, TickFired
from pgworkers.hooks import JobEnd, TickReport
from pgworkers.job.finish import JobFinish, JobRetry
from pgworkers.job.model import JobState, Verdict
from pgworkers.job.sanitize import clean_text
from pgworkers.master.child_process import ChildProcess
from pgworkers.master.finisher import PendingResult
from pgworkers.secret_arguments import hide_secrets_in_json
from pgworkers.settings import Settings
from pgworkers.specs import AppSpec
from pgworkers.supervisor.reporter_messages import (
    Handled,
    ReporterAnswer,
    ReporterBoot,
    ReporterBootFailed,
    ReporterReady,
    TickMessage,
)
from pgworkers.supervisor.restart_budget import RestartBudget

REPORTER_MODULE = "pgworkers.supervisor.reporter"
MAX_QUEUED_REPORTS = 2000
MAX_QUEUED_BYTES = 16 << 20
#: Reports that a reporter has and has not answered. A few, so that it does not wait for the next one.
MAX_REPORTS_IN_HAND = 8
HANG_CHECK_SECONDS = 0.5
#: How long a host that leaves waits for reports; and how long for the reporter to exit.
FINISH_REPORTS_SECONDS = 5.0
REPORTER_EXIT_SECONDS = 2.0
#: Time between two log lines about dropped reports.
DROPPED_LINE_SECONDS = 5.0

#: In the meta of a job that a schedule has made.
_SCHEDULE_KEY = '"schedule"'

_encode = msgspec.json.Encoder().encode
_decode_answer = msgspec.json.Decoder(ReporterAnswer).decode


class _RunningReporter:
    """One reporter process, and the reports that it has not answered, the oldest first."""

    def __init__(
        self,
        boot: ReporterBoot,
        *,
        host_id: str,
        spared: set[int],
        on_answer: Callable[[_RunningReporter, ReporterAnswer], None],
        on_exit: Callable[[_RunningReporter], None],
    ) -> None:
        self.in_hand: deque[bytes] = deque()
        self.is_ready = False
        self.is_retired = False  # newer code: it gets no more reports
        self.boot_error = ""
        self.kill_reason = ""
        self.progressed_at = monotonic()  # when it last answered, or got a report while it had none
        self._on_answer = on_answer
        self.process = ChildProcess(
            REPORTER_MODULE,
            host_id=host_id,
            spared=spared,
            on_message=self._on_message,
            on_exit=lambda _: on_exit(self),
        )
        self.process.send(_encode(boot))

    def report(self, body: bytes) -> None:
        if not self.in_hand:
            self.progressed_at = monotonic()
        self.in_hand.append(body)
        self.process.send(body)

    def kill(self, reason: str) -> None:
        if not self.kill_reason:
            self.kill_reason = reason
            self.process.kill()

    def _on_message(self, body: bytes) -> None:
        try:
            answer = _decode_answer(body)
        except msgspec.DecodeError:
            self.kill("it sent something that is not an answer")
            return
        self.progressed_at = monotonic()
        self._on_answer(self, answer)


class Reporter:
    """Queues reports, keeps one reporter running, and replaces it when it hangs, dies or has old code."""

    def __init__(
        self,
        *,
        host_id: str,
        config: str,
        settings: Settings,
        boot_settings: Callable[[], dict[str, Any]],
        events: EventBus,
        spared: set[int],
    ) -> None:
        """`boot_settings`: what its first message holds, with the address of the database."""
        self._host_id = host_id
        self._config = config
        self._settings = settings
        self._boot_settings = boot_settings
        self._events = events
        self._spared = spared
        self._budget = RestartBudget(
            settings.restart_limit, settings.restart_period, settings.restart_max_delay
        )
        self._verdicts: frozenset[str] = frozenset()
        self._version = ""
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._current: _RunningReporter | None = None
        self._retiring: list[_RunningReporter] = []
        self._is_wanted = False
        self._reports_schedules = False
        self._is_stopping = False
        self._timer: asyncio.TimerHandle | None = None
        self._dropped = 0  # since the last line about it
        self._dropped_line_at = 0.0
        self._changed = asyncio.Event()
        events.subscribe(self._on_rescued, JobRescued)
        events.subscribe(self._on_tick, TickFired)

    def serve_app(self, app: AppSpec) -> None:
        """Report what this app asks for; called at the start and after a reload."""
        self._verdicts = frozenset(app.reported_verdicts)
        self._version = app.version
        self._reports_schedules = app.reports_schedules
        self._is_wanted = bool(app.reported_verdicts or app.reports_schedules)
        old, self._current = self._current, None
        if old is not None:
            old.is_retired = True
            self._retiring.append(old)
            if not old.in_hand:
                old.process.close()
        if self._is_wanted and not self._is_stopping:
            self._start()

    # -- what is reported ---------------------------------------------------------------------------------------------

    def on_results(self, results: Iterable[PendingResult]) -> None:
        """Report the ends of attempts that were just written."""
        if not self._is_wanted:
            return
        for held, result in results:
            job = held.job
            if result.verdict not in self._verdicts and not (
                self._reports_schedules and job.meta is not None and _SCHEDULE_KEY in job.meta
            ):
                continue
            retry = result if isinstance(result, JobRetry) else None
            if isinstance(result, JobFinish):
                state = result.state
            else:
                state = JobState.SCHEDULED if result.delay_seconds > 0 else JobState.READY
            self._report_end(
                JobEnd(
                    job=job.id,
                    task=job.task,
                    queue=job.queue,
                    attempt=job.attempt,
                    max_attempts=job.max_attempts,
                    verdict=str(result.verdict),
                    state=str(state),
                    lease=job.lease,
                    error=result.error,
                    traceback=result.traceback,
                    stack=result.stack,
                    output=result.output,
                    exit_status=result.exit_status,
                    duration=result.duration_seconds,
                    cpu=result.cpu_seconds,
                    peak_rss=result.peak_rss_bytes,
                    retry_in=retry.delay_seconds if retry is not None else None,
                    worker=result.worker,
                    host=socket.gethostname(),
                    ended_at=datetime.now(UTC),
                ),
                args=hide_secrets_in_json(job.args, held.task.secret) if self._settings.log_args else None,
                meta=job.meta,
            )

    def _on_rescued(self, event: JobRescued) -> None:
        """The host of this job is lost, and this host, the leader, has rescued it."""
        if Verdict.HOST_LOST not in self._verdicts:
            return
        self._report_end(
            JobEnd(
                job=event.job,
                task=event.task,
                queue=event.queue,
                attempt=event.attempt,
                max_attempts=event.max_attempts,
                verdict=Verdict.HOST_LOST.value,
                state=str(event.state),
                lease=event.lease,
                error=event.error,
                host=socket.gethostname(),
                ended_at=datetime.now(UTC),
            )
        )

    def _on_tick(self, event: TickFired) -> None:
        if self._is_wanted and self._reports_schedules and event.job is not None:
            tick = TickReport(schedule=event.schedule, scope=event.scope, job=event.job, at=event.at)
            self._add(_encode(TickMessage(tick)))

    def _report_end(self, end: JobEnd, *, args: str | None = None, meta: str | None = None) -> None:
        try:
            body = _encode_end(end, args, meta)
        except (UnicodeEncodeError, ValueError):  # lone surrogates in a text of the handler
            body = _encode_end(_with_clean_texts(end), None, None)
        self._add(body)

    def _add(self, body: bytes) -> None:
        is_full = len(self._queue) >= MAX_QUEUED_REPORTS or self._queued_bytes + len(body) > MAX_QUEUED_BYTES
        if is_full or self._is_stopping:
            self._count_dropped(1)
            return
        self._queue.append(body)
        self._queued_bytes += len(body)
        self._feed()

    def _feed(self) -> None:
        """Give the reporter as many reports as it may have."""
        current = self._current
        if current is None or not current.is_ready:
            return
        while self._queue and len(current.in_hand) < MAX_REPORTS_IN_HAND:
            body = self._queue.popleft()
            self._queued_bytes -= len(body)
            current.report(body)
        if current.in_hand:
            self._watch()

    # -- the process --------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._current = _RunningReporter(
            ReporterBoot(config=self._config, settings=self._boot_settings(), version=self._version),
            host_id=self._host_id,
            spared=self._spared,
            on_answer=self._on_answer,
            on_exit=self._on_exit,
        )
        self._watch()

    def _start_again(self) -> None:
        if self._current is None and self._is_wanted and not self._is_stopping:
            self._start()

    def _on_answer(self, reporter: _RunningReporter, answer: ReporterAnswer) -> None:
        match answer:
            case ReporterReady():
                reporter.is_ready = True
                self._budget.record_ready()
            case ReporterBootFailed():
                reporter.boot_error = answer.error
            case Handled():
                if reporter.in_hand:
                    reporter.in_hand.popleft()
        if reporter.is_retired and not reporter.in_hand:
            reporter.process.close()
        self._feed()
        self._changed.set()

    def _on_exit(self, reporter: _RunningReporter) -> None:
        if reporter in self._retiring:
            self._retiring.remove(reporter)
        if reporter.in_hand:
            reporter.in_hand.popleft()  # the one that it was busy with
            self._count_dropped(1)
            self._queue.extendleft(reversed(reporter.in_hand))
            self._queued_bytes += sum(map(len, reporter.in_hand))
            reporter.in_hand.clear()
        self._changed.set()
        if reporter is not self._current:
            return
        self._current = None
        if self._is_stopping:
            return
        pause = self._budget.record_death(monotonic(), reporter.is_ready)
        why = reporter.boot_error or reporter.kill_reason
        self._events.emit(ReporterDied(reporter.process.pid, reporter.process.status, why, pause))
        asyncio.get_running_loop().call_later(pause, self._start_again)

    def _watch(self) -> None:
        """Look after a while whether the reporter goes on."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(HANG_CHECK_SECONDS, self._check)

    def _check(self) -> None:
        self._timer = None
        for reporter in self._running():
            quiet = monotonic() - reporter.progressed_at
            if not reporter.is_ready and quiet > self._settings.import_timeout:
                reporter.kill("importing the app took too long (import_timeout)")
            elif reporter.in_hand and quiet > self._settings.report_timeout:
                reporter.kill("a hook took too long (report_timeout)")
            if reporter.in_hand or not reporter.is_ready:
                self._watch()
        self._log_dropped()

    def _running(self) -> Iterator[_RunningReporter]:
        yield from [*self._retiring, *([self._current] if self._current is not None else [])]

    def _count_dropped(self, count: int) -> None:
        self._dropped += count
        self._log_dropped()
        if self._dropped:
            self._watch()

    def _log_dropped(self) -> None:
        now = monotonic()
        if self._dropped and now >= self._dropped_line_at:
            self._dropped_line_at = now + DROPPED_LINE_SECONDS
            dropped, self._dropped = self._dropped, 0
            self._events.emit(ReportsDropped(dropped))
        elif self._dropped:
            self._watch()

    # -- the end ------------------------------------------------------------------------------------------------------

    async def finish(self, hurry: asyncio.Event) -> None:
        """Wait for the reports that are left, for a limited time, and end the reporter. The host has no jobs any more."""
        until = time.monotonic() + (REPORTER_EXIT_SECONDS if hurry.is_set() else FINISH_REPORTS_SECONDS)
        while self._has_work() and time.monotonic() < until:
            await self._wait_for_change(until)
        self._is_stopping = True
        left = len(self._queue) + sum(len(reporter.in_hand) for reporter in self._running())
        self._queue.clear()
        for reporter in self._running():
            reporter.process.close()
        until = time.monotonic() + (0.0 if left else REPORTER_EXIT_SECONDS)
        while self._is_running() and time.monotonic() < until:
            await self._wait_for_change(until)
        for reporter in self._running():
            reporter.in_hand.clear()
        self.close()
        self._dropped += left
        self._dropped_line_at = 0.0
        self._log_dropped()

    def close(self) -> None:
        """Kill the reporter: the host ends now."""
        self._is_stopping = True
        if self._timer is not None:
            self._timer.cancel()
        for reporter in self._running():
            reporter.process.close()
            reporter.process.kill()

    def _has_work(self) -> bool:
        """True while a reporter lives that can still handle reports."""
        busy = any(reporter.in_hand for reporter in self._running())
        return busy or bool(self._queue and self._is_wanted)

    def _is_running(self) -> bool:
        return any(reporter.process.process.returncode is None for reporter in self._running())

    async def _wait_for_change(self, until: float) -> None:
        self._changed.clear()
        try:
            async with asyncio.timeout(max(0.0, until - time.monotonic())):
                await self._changed.wait()
        except TimeoutError:
            pass


def _encode_end(end: JobEnd, args: str | None, meta: str | None) -> bytes:
    """An `EndMessage`. Arguments and meta are JSON already and pass through unread."""
    fields = msgspec.structs.asdict(end)
    if args:
        fields["args"] = msgspec.Raw(args.encode())
    if meta:
        fields["meta"] = msgspec.Raw(meta.encode())
    return _encode({"type": "end", "end": fields})


def _with_clean_texts(end: JobEnd) -> JobEnd:
    texts = {
        name: clean_text(value, len(value)) if isinstance(value := getattr(end, name), str) else value
        for name in ("task", "queue", "error", "traceback", "stack", "output", "exit_status", "worker")
    }
    return msgspec.structs.replace(end, **texts)
