"""The part of /metrics that handlers report with prometheus_client: asked from a child process that merges their files.

The child is started at the first scrape after a handler has used prometheus_client. A scrape waits for it for a moment;
if it is late, dies or hangs, the scrape shows its last answer. The rest of the page never depends on it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

import msgspec

from pgworkers.clock import monotonic
from pgworkers.master.child_process import ChildProcess
from pgworkers.master.metrics_directory import has_metric_files, remove_metrics_directory
from pgworkers.observe.handler_prometheus import MergedPage
from pgworkers.supervisor.restart_budget import RestartBudget

MERGER_MODULE = "pgworkers.observe.prometheus_merger"
#: How long a scrape waits. A client of the port has two seconds.
ANSWER_TIMEOUT_SECONDS = 1.5
#: A child that has not answered for this long is killed.
HANG_TIMEOUT_SECONDS = 15.0
MAX_REQUESTS_WAITING = 4
_log = logging.getLogger("pgworkers")


_decode = msgspec.msgpack.Decoder(MergedPage).decode


class _Request:
    """One question to the child."""

    def __init__(self, is_openmetrics: bool) -> None:
        self.is_openmetrics = is_openmetrics
        self.sent_at = monotonic()
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()


class HandlerMetricsPage:
    """Asks the merger, one request after the other."""

    def __init__(
        self,
        directory: str,
        *,
        host_id: str,
        spared: set[int],
        on_capped: Callable[[int], None],
        budget: RestartBudget,
    ) -> None:
        self._directory = directory
        self._host_id = host_id
        self._spared = spared
        self._on_capped = on_capped
        self._budget = budget
        self._child: ChildProcess | None = None
        self._may_start_at = 0.0
        self._has_files = False
        self._is_closed = False
        self._waiting: deque[_Request] = deque()
        self._last_texts: dict[bool, bytes] = {}
        self._last_capped = 0

    def request(self, *, is_openmetrics: bool) -> asyncio.Future[bytes] | None:
        """The text, without the end mark of OpenMetrics. None: no handler has used prometheus_client."""
        if self._is_closed or not self._directory:
            return None
        self._has_files = self._has_files or has_metric_files(self._directory)
        if not self._has_files:
            return None
        for waiting in self._waiting:
            if waiting.is_openmetrics == is_openmetrics:
                self._kill_if_hanging(waiting)
                return waiting.answer
        request = _Request(is_openmetrics)
        child = self._started_child()
        if child is None or len(self._waiting) >= MAX_REQUESTS_WAITING:
            request.answer.set_result(self._last_texts.get(is_openmetrics, b""))
            return request.answer
        self._waiting.append(request)
        child.send(b"openmetrics" if is_openmetrics else b"text")
        asyncio.get_running_loop().call_later(ANSWER_TIMEOUT_SECONDS, self._answer_late, request)
        return request.answer

    def close(self) -> None:
        """End the child and remove the directory, with the host."""
        self._is_closed = True
        if self._child is not None:
            self._child.close()
            self._child.kill()
        remove_metrics_directory(self._directory)

    def _started_child(self) -> ChildProcess | None:
        if self._child is None and monotonic() >= self._may_start_at:
            self._child = ChildProcess(
                MERGER_MODULE,
                host_id=self._host_id,
                spared=self._spared,
                on_message=self._on_page,
                on_exit=self._on_exit,
                arguments=("--directory", self._directory),
            )
        return self._child

    def _on_page(self, body: bytes) -> None:
        try:
            page = _decode(body)
        except msgspec.DecodeError:
            if self._child is not None:
                self._child.kill()
            return
        self._budget.record_ready()
        if not self._waiting:
            return
        request = self._waiting.popleft()
        self._last_texts[request.is_openmetrics] = page.text
        if page.capped > self._last_capped:
            self._on_capped(page.capped - self._last_capped)
        self._last_capped = page.capped
        if page.broken:
            names = ", ".join(page.broken[:5])
            _log.warning("metrics of handlers: %s could not be read and was put aside", names)
        if not request.answer.done():
            request.answer.set_result(page.text)

    def _answer_late(self, request: _Request) -> None:
        """Answer with the last text. The request stays in its place: its page may still come."""
        if not request.answer.done():
            request.answer.set_result(self._last_texts.get(request.is_openmetrics, b""))

    def _kill_if_hanging(self, request: _Request) -> None:
        if self._child is not None and monotonic() - request.sent_at > HANG_TIMEOUT_SECONDS:
            self._child.kill()

    def _on_exit(self, child: ChildProcess) -> None:
        self._child = None
        waiting, self._waiting = self._waiting, deque()
        for request in waiting:
            self._answer_late(request)
        if not self._is_closed:
            pause = self._budget.record_death(monotonic(), was_ready=not waiting)
            self._may_start_at = monotonic() + pause
            _log.warning(
                "the process that merges metrics of handlers ended (%s); it is started again", child.status
            )
