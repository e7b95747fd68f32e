"""`TestHost`: a real tree of processes for a test. The fixture `pgworkers_host` starts one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import psycopg
from psycopg import sql

from pgworkers.app import App
from pgworkers.errors import PgworkersError, UsageError
from pgworkers.options.values import Duration, read_duration

POLL_INTERVAL_SECONDS = 0.05
STOP_TIMEOUT_SECONDS = 30.0
MAX_LISTED_JOBS = 10
LOG_TAIL_CHARACTERS = 20_000
#: Variables of the test run that a host must not have.
_PYTEST_VARIABLES = ("PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER", "PYTEST_ADDOPTS", "PYTEST_PLUGINS")


class HostFailed(PgworkersError):
    """The host of a test ended, or its queues did not become empty in time."""


class TestHost:
    """`pgworkers run` for one app and one database. It ends with the test."""

    __test__ = False  # for pytest: not a class of tests

    def __init__(
        self,
        config: str,
        dsn: str,
        log_file: Path,
        *,
        schema: str = "pgworkers",
        arguments: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.config = config
        self.dsn = dsn
        self.log_file = log_file
        self._schema = schema
        self._arguments = tuple(arguments)
        self._environ = dict(environ or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id of the master."""
        return self._running().pid

    @property
    def is_running(self) -> bool:
        """True if the master lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """What the host has printed so far."""
        try:
            return self.log_file.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def start(self) -> None:
        """Start the host. It does not wait until it is ready: `drain` and `job.result()` wait for the jobs."""
        if self.is_running:
            return
        self._output = self.log_file.open("ab")
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "pgworkers.testing.host_process", str(os.getpid())),
                *("--config", self.config, "run", "--metrics", "off", *self._arguments),
            ],
            env=self._host_environ(),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )

    def drain(self, timeout: Duration = "1m") -> None:
        """Wait until no live job is left, retries and delays included. HostFailed if that takes longer."""
        seconds = read_duration(timeout, what="timeout")
        until = time.monotonic() + (seconds or 0.0)
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            while left := self._live_jobs(conn):
                if not self.is_running:
                    raise HostFailed(f"the host has ended; {left}\n{self.log_tail()}")
                if time.monotonic() > until:
                    raise HostFailed(f"the queues are not empty after {timeout}; {left}\n{self.log_tail()}")
                time.sleep(POLL_INTERVAL_SECONDS)

    def stop(self) -> None:
        """Let running jobs end, as on SIGTERM, and wait for the end of the host."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the master with SIGKILL. Its processes follow within two seconds."""
        self._end(signal.SIGKILL)

    def log_tail(self) -> str:
        """The end of the log, and where it is, for messages."""
        return f"log of the host ({self.log_file}):\n{self.log[-LOG_TAIL_CHARACTERS:]}"

    def _end(self, signum: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.send_signal(signum)
        try:
            process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if self._output is not None:
            self._output.close()
            self._output = None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise UsageError("the host does not run; call start()")
        return self._process

    def _live_jobs(self, conn: psycopg.Connection[Any]) -> str:
        """What is left, for a message; empty if nothing is."""
        statement = sql.SQL(
            "SELECT id, task, state::text, errors[cardinality(errors)] FROM {} ORDER BY id LIMIT %s"
        )
        table = sql.Identifier(self._schema, "job")
        rows = conn.execute(statement.format(table), [MAX_LISTED_JOBS]).fetchall()
        if not rows:
            return ""
        jobs = [
            f"#{job} {task} is {state}" + (f" ({error})" if error else "") for job, task, state, error in rows
        ]
        return "left: " + ", ".join(jobs)

    def _host_environ(self) -> dict[str, str]:
        environ = {name: value for name, value in os.environ.items() if name not in _PYTEST_VARIABLES}
        for name in ("DATABASE_URL", "PGWORKERS_DSN_FILE", "PGWORKERS_DIRECT_DSN"):
            environ.pop(name, None)
        own = [path for path in sys.path if path and not path.startswith((sys.prefix, sys.base_prefix))]
        paths = [*own, *filter(None, [environ.get("PYTHONPATH", "")])]
        return environ | {
            "PGWORKERS_DSN": self.dsn,
            "PGWORKERS_SCHEMA": self._schema,
            "PYTHONPATH": os.pathsep.join(paths),
            **self._environ,
        }


def find_config(app: App) -> str:
    """What `pgworkers run --config` needs for this app: the file and the name of the variable that holds it."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None) if isinstance(module, ModuleType) else None
        if file is None or Path(file).resolve() != app.source_file:
            continue
        for name, value in vars(module).items():
            if value is app:
                return f"{app.source_file}:{name}"
    raise UsageError(
        f"pgworkers_host: no module variable holds {app!r}, so a host cannot import it; nothing was started. "
        'Name the app in the pytest settings: pgworkers_app = "shop.jobs:app"'
    )
