"""Who is connected to the embedded server without being one of its users: anybody who was given its address.

A session of this very process does not count, whoever opened it: it ends with the process that lets the server go.
"""

from __future__ import annotations

import os
import socket
import stat
import time
from contextlib import closing
from pathlib import Path

import psycopg

from pgworkers.postgres.embedded_cluster import enter
from pgworkers.postgres.embedded_place import PORT

#: A backend whose client has just left, or was just killed with its host, is gone within this time.
PATIENCE = 2.0
STEP = 0.02
_OTHERS = (
    "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
)


def strangers(socket_dir: Path) -> int:
    """How many sessions of others there are, once those that are about to end have ended. 0 if it does not answer."""
    own = _own(socket_dir)
    give_up = time.monotonic() + PATIENCE
    try:
        with closing(enter(socket_dir)) as conn:
            conn.execute("SET statement_timeout = '5s'")
            while True:
                row = conn.execute(_OTHERS).fetchone()
                left = (row[0] if row else 0) - own
                if left <= 0 or time.monotonic() > give_up:
                    return max(0, left)
                time.sleep(STEP)
    except psycopg.Error:
        return 0


def _own(socket_dir: Path) -> int:
    """How many sessions this process has: sockets whose other end is the server's."""
    theirs = os.fsencode(socket_dir / f".s.PGSQL.{PORT}")
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            status = os.fstat(int(name))
            if not stat.S_ISSOCK(status.st_mode):  # a copy of a lock's descriptor would keep the lock
                continue
            with socket.socket(fileno=os.dup(int(name))) as end:
                if end.family == socket.AF_UNIX and os.fsencode(end.getpeername()) == theirs:
                    found.add(status.st_ino)
        except OSError:  # not connected, or closed meanwhile
            continue
    return len(found)
