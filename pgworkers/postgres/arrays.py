"""Lists as array parameters in the binary format, for batches. psycopg would choose a format for each element.

A list is wrapped where the parameters are made (`Bigints(ids)`); the SQL still has the cast `::bigint[]`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from struct import Struct, pack
from typing import Any, ClassVar

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format


class Bigints(list[int]):
    """bigint[]; no element is None."""


class Integers(list[int]):
    """integer[]; no element is None."""


class Timestamps(list[int]):
    """timestamptz[], in microseconds since 1970; no element is None. Exact, which a float would not be."""


class Doubles(list[float]):
    """double precision[]; no element is None."""


class Texts(list[str | None]):
    """text[]"""


#: The epoch of Postgres, 2000-01-01, in microseconds since 1970.
_SERVER_EPOCH_MICROSECONDS = 946_684_800_000_000


class _FixedSizeDumper(Dumper):
    """An array with one dimension and no NULLs. Each element follows its length."""

    format = Format.BINARY
    element: ClassVar[tuple[int, int, str]]  # oid, bytes, and how `struct` calls it

    def dump(self, obj: Any) -> bytes:
        oid, size, code = self.element
        count = len(obj)
        if not count:
            return pack("!iiI", 0, 0, oid)
        pack_element = Struct(f"!i{code}").pack
        elements = [pack_element(size, value) for value in obj]
        return pack("!iiIii", 1, 0, oid, count, 1) + b"".join(elements)


class _BigintsDumper(_FixedSizeDumper):
    oid = 1016
    element = (20, 8, "q")


class _IntegersDumper(_FixedSizeDumper):
    oid = 1007
    element = (23, 4, "i")


class _DoublesDumper(_FixedSizeDumper):
    oid = 1022
    element = (701, 8, "d")


def _encode_text(value: str | None) -> bytes:
    if value is None:
        return b"\xff\xff\xff\xff"
    data = value.encode()
    return pack("!i", len(data)) + data


class _TimestampsDumper(_FixedSizeDumper):
    oid = 1185
    element = (1184, 8, "q")

    def dump(self, obj: Any) -> bytes:
        return super().dump([moment - _SERVER_EPOCH_MICROSECONDS for moment in obj])


class _TimestampsTextDumper(Dumper):
    """As text, for statements that go through a pooler with their parameters written into them."""

    format = Format.TEXT
    oid = 1185

    def dump(self, obj: Any) -> bytes:
        epoch = datetime(1970, 1, 1, tzinfo=UTC)
        texts = [(epoch + timedelta(microseconds=moment)).isoformat() for moment in obj]
        return ("{" + ",".join(f'"{text}"' for text in texts) + "}").encode()


class _TextsDumper(Dumper):
    format = Format.BINARY
    oid = 1009

    def dump(self, obj: Any) -> bytes:
        if not obj:
            return pack("!iiI", 0, 0, 25)
        known = {value: _encode_text(value) for value in set(obj)}  # most values are equal: a queue, a task
        parts = [pack("!iiIii", 1, int(None in known), 25, len(obj), 1)]
        parts += [known[value] for value in obj]
        return b"".join(parts)


for _kind, _dumper in (
    (Bigints, _BigintsDumper),
    (Integers, _IntegersDumper),
    (Doubles, _DoublesDumper),
    (Timestamps, _TimestampsTextDumper),
    (Timestamps, _TimestampsDumper),  # the last one is the preferred one
    (Texts, _TextsDumper),
):
    psycopg.adapters.register_dumper(_kind, _dumper)
