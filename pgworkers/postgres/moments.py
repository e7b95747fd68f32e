"""Times that Python's datetime cannot hold: a reader gets the nearest one that it can.

Postgres knows infinite times and the years after 9999. The tables refuse them (`pgworkers.moment`), but one such row must
not hide all the others from a reader.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.types.datetime import TimestamptzBinaryLoader

from pgworkers.bounds import MOMENT_MAX, MOMENT_MIN

_OID = psycopg.adapters.types["timestamptz"].oid


class _TextLoader(Loader):
    """Reads ISO. psycopg's own goes by the DateStyle that the server last told, which is not that of a SET LOCAL."""

    def load(self, data: Buffer) -> datetime:
        text = bytes(data).decode()
        try:
            return datetime.fromisoformat(text)
        except ValueError:
            return MOMENT_MIN if text.startswith("-") or text.endswith("BC") else MOMENT_MAX


class _BinaryLoader(TimestamptzBinaryLoader):
    def load(self, data: Buffer) -> datetime:
        try:
            return super().load(data)
        except psycopg.DataError:
            return MOMENT_MIN if bytes(data)[0] & 0x80 else MOMENT_MAX


def read_any_moment(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Let this connection read every timestamptz."""
    loaders: tuple[type[Loader], ...] = (_TextLoader, _BinaryLoader)
    for loader in loaders:
        conn.adapters.register_loader(_OID, loader)
