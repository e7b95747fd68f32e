"""One living host for all tests of a file: starting one costs more than most of what is played against it."""

from __future__ import annotations

from typing import Any

from support import leftover_processes
from support.cluster import Cluster, Master, wait_for
from support.logins import LoginDatabase


class SharedHost:
    """A database, the cluster on it, and `pgworkers run` as the login `worker`."""

    def __init__(
        self, database: LoginDatabase, cluster: Cluster, excuses: dict[str, str], options: dict[str, Any]
    ) -> None:
        self.database, self.cluster, self.excuses = database, cluster, excuses
        self._options = options
        self._master: Master | None = None

    def living(self) -> Master:
        """The host; another one if a test has ended it."""
        if self._master is None or self._master.process.poll() is not None:
            self._master = self.cluster.start(dsn=self.database.dsn("worker"), **self._options)
            leftover_processes.SPARED_TREES.add(self._master.marker)
        return self._master

    def settle(self) -> None:
        """Let the jobs end that still run after a test, and close the gate for the next one."""
        self.cluster.open_gate()
        wait_for(
            lambda: (
                self.cluster.db.execute(
                    "SELECT FROM pgworkers.job WHERE state = 'running' LIMIT 1"
                ).fetchone()
                is None
            ),
            what="no job runs",
        )
        self.cluster.close_gate()
