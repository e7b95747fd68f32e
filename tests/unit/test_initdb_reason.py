"""The error of a failed initdb names its reason and not the rest of its output. Pure; the texts are from Postgres 15."""

from __future__ import annotations

import pytest

from pgworkers.embedded.cluster import MAX_INITDB_ERROR_CHARACTERS, initdb_error

CHATTER = """\
The files belonging to this database system will be owned by user "nobody".
This user must also own the server process.

The database cluster will be initialized with locale "C".
The default text search configuration will be set to "english".

Data page checksums are disabled.

"""
FULL = """\
fixing permissions on existing directory /srv/fs ... ok
selecting default time zone ... Etc/UTC
running bootstrap script ... 2026-11-17 11:38:25 UTC [15] FATAL:  could not write to file "pg_wal/xlogtemp": File too large
child process exited with exit code 1
initdb: removing contents of data directory "/srv/fs"
"""


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            CHATTER + 'initdb: error: directory "/srv" exists but is not empty\ninitdb: hint: empty it.\n',
            'error: directory "/srv" exists but is not empty; hint: empty it.',
        ),
        (CHATTER + FULL, 'FATAL:  could not write to file "pg_wal/xlogtemp": File too large'),
        ("one\ntwo\nthree\nKilled\n", "two; three; Killed"),
        ("", "initdb did not say why"),
    ],
)
def test_the_error_has_the_reason_and_not_the_rest_of_the_output(said: str, told: str) -> None:
    assert initdb_error(said) == told


def test_however_much_it_says_the_end_is_kept() -> None:
    told = initdb_error(CHATTER + "".join(f"FATAL:  number {n}\n" for n in range(1000)))
    assert told.endswith("FATAL:  number 999")
    assert len(told) == MAX_INITDB_ERROR_CHARACTERS
