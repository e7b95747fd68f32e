"""Load statements from `.sql` files, put the configured schema in, and run them.

The functions of `job/` return a `Query`: the statement, its parameters and how its rows are read. It is run by `run` on a
blocking connection, by `arun` on an async one, and by the classes of `session` on connections that only we use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import psycopg
from psycopg import sql
from psycopg.rows import BaseRowFactory, class_row, tuple_row

T = TypeVar("T")
R = TypeVar("R")

#: What the files are written for. Everything else is rendered from it.
SCHEMA_IN_FILES = "pgworkers"

_SCHEMA_REFERENCE = re.compile(
    r"(?P<prefix>\bpgworkers\.)|(?P<schema>\bSCHEMA\s+pgworkers\b)|'(?P<literal>pgworkers(?:_done)?)'"
)
_COMMENT_LINES = re.compile(r"^\s*--[^\n]*\n", re.MULTILINE)
_INDENTS = re.compile(r"\n +")
_PARAMETER = re.compile(r"%\((\w+)\)s|%%")
#: `/* include: x.fragment.sql */` stands for the text of that file in the same directory.
_INCLUDE = re.compile(r"/\* include: (\w+\.fragment\.sql) \*/")


def read_sql(path: Path) -> str:
    """Read a statement with the fragments that it includes. A fragment includes no other.

    Fragments hold what several statements have in common and must not differ in, such as a list of columns.
    """

    def fragment(match: re.Match[str]) -> str:
        return _COMMENT_LINES.sub("", path.with_name(match[1]).read_text(encoding="utf-8")).strip()

    return _INCLUDE.sub(fragment, path.read_text(encoding="utf-8"))


def with_schema(text: str, schema: str) -> str:
    """The text with the configured schema in the place of `pgworkers`: as a prefix, after SCHEMA, and as a channel."""
    name = sql.Identifier(schema).as_string(None)

    def put(match: re.Match[str]) -> str:
        if match["prefix"]:
            return f"{name}."
        if match["schema"]:
            return f"SCHEMA {name}"
        return sql.Literal(schema + match["literal"].removeprefix(SCHEMA_IN_FILES)).as_string(None)

    return _SCHEMA_REFERENCE.sub(put, text)


@dataclass(frozen=True, slots=True, eq=False)
class Statement:
    """The text of one `.sql` file, which can be rendered for any schema."""

    name: str
    text: str
    _rendered_by_schema: dict[str, bytes] = field(default_factory=dict, repr=False)
    _numbered_by_schema: dict[str, tuple[bytes, tuple[str, ...]]] = field(default_factory=dict, repr=False)

    @classmethod
    def from_file(cls, file: str, name: str) -> Statement:
        """Load a file next to the module: `Statement.from_file(__file__, "claim")` loads claim.sql."""
        return cls(name, read_sql(Path(file).with_name(f"{name}.sql")))

    def render(self, schema: str) -> bytes:
        """The text that is sent, without comments and indents: psycopg does not cache the parsed form of long statements."""
        rendered = self._rendered_by_schema.get(schema)
        if rendered is None:
            text = _INDENTS.sub("\n", _COMMENT_LINES.sub("", self.text)).strip().rstrip(";")
            rendered = with_schema(text, schema).encode()
            self._rendered_by_schema[schema] = rendered
        return rendered

    def numbered(self, schema: str) -> tuple[bytes, tuple[str, ...]]:
        """The text with $1, $2 and so on, as the server reads it, and the names of these parameters."""
        numbered = self._numbered_by_schema.get(schema)
        if numbered is None:
            names: dict[str, int] = {}

            def put(match: re.Match[str]) -> str:
                name = match[1]
                return "%" if name is None else f"${names.setdefault(name, len(names) + 1)}"

            text = _PARAMETER.sub(put, self.render(schema).decode())
            numbered = self._numbered_by_schema[schema] = text.encode(), tuple(names)
        return numbered


class Query(
    msgspec.Struct, Generic[T], frozen=True
):  # made for every enqueue: a dataclass takes ten times as long
    """A statement with its parameters, and how to read its rows."""

    statement: Statement
    params: Mapping[str, Any]
    read: Callable[[list[Any]], T]
    #: Many rows of numbers, texts and arrays: in the binary format neither side makes texts of numbers.
    is_binary: bool = False
    #: Instead of `params`: the values in the order in which the statement names them, as texts for the server, without
    #: NUL. For what is asked so often that choosing a format for each value would be felt.
    encoded_params: tuple[bytes, ...] | None = None
    #: A dataclass or NamedTuple with the names of the columns: `read` gets instances of it instead of tuples.
    record: type[Any] | None = None

    def params_by_name(self, schema: str) -> Mapping[str, Any]:
        """The values by name, for a cursor."""
        if self.encoded_params is None:
            return self.params
        _, names = self.statement.numbered(schema)
        return {name: value.decode() for name, value in zip(names, self.encoded_params, strict=True)}


def query_records(
    statement: Statement, record: type[R], params: Mapping[str, Any] | None = None
) -> Query[list[R]]:
    """A query that returns each row as a record, built by column names."""
    return Query(statement, params or {}, list, record=record)


def run(conn: psycopg.Connection[Any], schema: str, query: Query[T]) -> T:
    """Run a query on a blocking connection."""
    with conn.cursor(row_factory=_row_factory(query), binary=query.is_binary) as cursor:
        cursor.execute(query.statement.render(schema), query.params_by_name(schema))
        return query.read(cursor.fetchall())


async def arun(conn: psycopg.AsyncConnection[Any], schema: str, query: Query[T]) -> T:
    """Run a query on an async connection."""
    async with conn.cursor(row_factory=_row_factory(query), binary=query.is_binary) as cursor:
        await cursor.execute(query.statement.render(schema), query.params_by_name(schema))
        return query.read(await cursor.fetchall())


def _row_factory(query: Query[Any]) -> BaseRowFactory[Any]:
    return tuple_row if query.record is None else class_row(query.record)
