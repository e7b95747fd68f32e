"""Records of Python's `logging` as our log lines.

A worker passes `bind` a function that finds the job it runs. Every record then has the job: our own lines end with it,
and a format of the app can use it (`%(job)s %(task)s %(queue)s %(attempt)s %(host)s`). What the app has configured is
kept. Our format is used only if the app has no handler, or one that writes to the screen in a default format. Records of
libraries in the master become lines of its log.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pgworkers.observe.escape import encode_json_line, escape_line, printable
from pgworkers.observe.log import Log, json_record
from pgworkers.secret_arguments import scrub

MAX_MESSAGE_CHARACTERS = 16 << 10
#: What `logging` itself puts into a record; everything else came with `extra=`.
_STANDARD_ATTRIBUTES = frozenset(logging.makeLogRecord({}).__dict__) | {
    "message",
    "asctime",
    "taskName",
    "job_origin",
}
_JOB_ATTRIBUTES = ("job", "task", "queue", "attempt", "host")


class JobOrigin(NamedTuple):
    """The job that ran when a record was made."""

    job: int | None = None
    task: str | None = None
    queue: str | None = None
    attempt: int | None = None
    host: str = ""


_find_current_job: Callable[[], tuple[int, str, str, int] | None] | None = None  # that runs here now


class JobLogRecord(logging.LogRecord):
    """A record with the job that it belongs to.

    The names are put into its dictionary only when it is formatted: before that `logging` refuses an `extra=` of the same
    name, and a handler that logs `extra={"host": ...}` must not fail for it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.job_origin = _current_origin()

    def getMessage(self) -> str:
        for name, value in zip(_JOB_ATTRIBUTES, self.job_origin, strict=True):
            self.__dict__.setdefault(name, value)
        return super().getMessage()


def install_record_factory() -> None:
    """Give records fields for their job. Called before the app is imported, so that its formats can use them."""
    logging.setLogRecordFactory(JobLogRecord)


def set_current_job_source(find: Callable[[], tuple[int, str, str, int] | None]) -> None:
    """Set the function that returns the job of a worker."""
    global _find_current_job
    _find_current_job = find


_find_secrets: Callable[[], Sequence[str]] | None = None  # texts that no line of this process may show


def set_secret_source(find: Callable[[], Sequence[str]]) -> None:
    """Set the function that returns the texts of the secret arguments of a worker's job."""
    global _find_secrets
    _find_secrets = find


def _current_origin() -> JobOrigin:
    if _find_current_job is None:
        return JobOrigin()
    job = _find_current_job()
    host = socket.gethostname()
    return JobOrigin(host=host) if job is None else JobOrigin(*job, host)


def configure_root_logger(style: str, level: str) -> None:
    """Give the root logger a handler if the app has configured none, after its import or its start hooks."""
    root = logging.getLogger()
    if not root.handlers:
        screen = StderrHandler()
        screen.setFormatter(JobLogFormatter(style))
        root.addHandler(screen)
        if root.level == logging.WARNING:  # the default: no other level was set
            root.setLevel(level.upper())
        return
    for handler in root.handlers:
        to_screen = isinstance(handler, logging.StreamHandler) and handler.stream in (sys.stdout, sys.stderr)
        if to_screen and _is_default_format(handler.formatter):
            handler.setFormatter(JobLogFormatter(style))


def _is_default_format(formatter: logging.Formatter | None) -> bool:
    if formatter is None:
        return True
    if type(formatter) is not logging.Formatter or formatter.datefmt is not None:
        return False
    probe = logging.LogRecord("probe", logging.WARNING, "", 0, "text", (), None)
    try:
        return formatter.format(probe) in ("WARNING:probe:text", "text")
    except Exception:  # its format has a key that only the records of the app have
        return False


class StderrHandler(logging.Handler):
    """Writes to the current sys.stderr: user code may have replaced or closed it."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
        except Exception:
            self.handleError(record)


class JobLogFormatter(logging.Formatter):
    """`12:04:11 #1042 render INFO shop.pdf: page 7 drawn [reports, attempt 1, web-1]`, or the same as JSON.

    A traceback follows in lines of its own that begin with a bar: nothing an exception says can pass for another line.
    Secret arguments of the job are replaced: HTTP clients, for example, log the URLs that they call.
    """

    def __init__(self, format: str = "text") -> None:
        super().__init__()
        self._json = format == "json"

    def format(self, record: logging.LogRecord) -> str:
        text = self._format_line(record)
        secrets = _find_secrets() if _find_secrets is not None else ()
        return scrub(text, secrets) or "" if secrets else text

    def _format_line(self, record: logging.LogRecord) -> str:
        message = _message(record)
        at = getattr(record, "job_origin", None) or JobOrigin(host=socket.gethostname())
        if self._json:
            return self._as_json(record, at, message)
        job = f"#{at.job} {escape_line(at.task or '')} " if at.job is not None else ""
        logger = "" if record.name.startswith("pgworkers.job.") else f"{escape_line(record.name, 80)}: "
        queue = f"{at.queue}, attempt {at.attempt}, " if at.job is not None else ""
        text = f"{time.strftime('%H:%M:%S', time.localtime(record.created))} {job}{record.levelname} {logger}"
        text += f"{escape_line(message, MAX_MESSAGE_CHARACTERS)} [{queue}{at.host}]"
        return "\n".join(
            [text, *(f"  | {printable(line)}" for line in _traceback_text(self, record).splitlines())]
        )

    def _as_json(self, found: logging.LogRecord, at: JobOrigin, message: str) -> str:
        data: dict[str, Any] = {"logger": found.name}
        trace = _traceback_text(self, found)
        if trace:
            data["traceback"] = trace
        for name, value in found.__dict__.items():
            if name not in _STANDARD_ATTRIBUTES and name not in _JOB_ATTRIBUTES:
                data[name] = value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)
        line = json_record(
            level=found.levelname.lower(),
            host=at.host,
            pid=found.process or os.getpid(),
            event="log",
            message=message[:MAX_MESSAGE_CHARACTERS],
            job=at.job,
            task=at.task,
            queue=at.queue,
            attempt=at.attempt,
            data=data,
        )
        return encode_json_line(line)


def _message(record: logging.LogRecord) -> str:
    """A format that does not fit its arguments is still a message."""
    try:
        return record.getMessage()
    except Exception as error:
        return f"{record.msg} ({type(error).__name__} in its arguments)"


def _traceback_text(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = []
    if record.exc_info:
        parts.append(formatter.formatException(record.exc_info))
    if record.stack_info:
        parts.append(record.stack_info)
    return "\n".join(parts)


class MasterLogHandler(logging.Handler):
    """What asyncio, psycopg and our own code log in the master, through its writer: stderr might block."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        trace = _traceback_text(logging.Formatter(), record)
        last = trace.strip().rpartition("\n")[2]
        text = f"{record.name}: {escape_line(_message(record), 600)}" + (
            f": {escape_line(last, 600)}" if last else ""
        )
        data = {"logger": record.name} | ({"traceback": trace} if trace else {})
        self._log.write(record.levelname.lower(), "log", text, data)
