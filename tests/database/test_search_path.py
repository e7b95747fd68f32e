"""A hostile schema in front of pg_catalog, and hostile temporary objects: nothing of ours looks there."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest
from support.database_host import DatabaseHost

from pgworkers.job.copy import copy_jobs
from pgworkers.job.model import JobState, NewJob
from pgworkers.postgres import connect
from pgworkers.settings import Settings

#: What our functions use without a schema. Each of these would do something else, and says that it was reached.
TRAP = """
CREATE SCHEMA evil;
CREATE TABLE evil.reached (what text);
CREATE FUNCTION evil.now() RETURNS timestamptz LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO evil.reached VALUES ('now'); RETURN 'epoch'; END $$;
CREATE FUNCTION evil.md5(text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RETURN repeat('0', 32); END $$;
CREATE FUNCTION evil.substr(text, integer, integer) RETURNS text LANGUAGE plpgsql IMMUTABLE AS
    $$ BEGIN RETURN '0000000000000000'; END $$;
CREATE FUNCTION evil.chr(integer) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RETURN 'x'; END $$;
CREATE FUNCTION evil.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO evil.reached VALUES ('pg_notify'); END $$;
CREATE FUNCTION evil.jsonb_typeof(jsonb) RETURNS text LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO evil.reached VALUES ('jsonb_typeof'); RETURN 'object'; END $$;
CREATE FUNCTION evil.pg_column_size("any") RETURNS integer LANGUAGE internal AS 'pg_column_size';
CREATE FUNCTION evil.hashtextextended(text, bigint) RETURNS bigint LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO evil.reached VALUES ('hash'); RETURN 0; END $$;
CREATE FUNCTION evil.concat(text, text) RETURNS text LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO evil.reached VALUES ('concat'); RETURN 'evil'; END $$;
CREATE FUNCTION evil.joined(text, text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RETURN 'evil'; END $$;
CREATE OPERATOR evil.|| (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.joined);
CREATE FUNCTION evil.equal(text, text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RETURN true; END $$;
CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.equal);
CREATE TABLE evil.job (LIKE pgworkers.job);
CREATE TABLE evil.task (LIKE pgworkers.task);
"""
TEMPORARY = """
CREATE TEMPORARY TABLE job (LIKE pgworkers.job);
CREATE TEMPORARY TABLE pg_class (oid oid);
CREATE FUNCTION pg_temp.now() RETURNS timestamptz LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO evil.reached VALUES ('temp now'); RETURN 'epoch'; END $$;
"""


@pytest.fixture
def trapped(db: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    """A session whose search_path begins with the trap, even before pg_catalog."""
    db.execute(TRAP.encode())
    db.execute(TEMPORARY.encode())
    db.execute("SET search_path = evil, pg_temp, pg_catalog, public")
    assert str(db.execute("SELECT now()").fetchone()[0]).startswith("1970"), "the trap does not work"
    db.execute("TRUNCATE evil.reached")
    return db


def _reached(db: psycopg.Connection[Any]) -> list[Any]:
    return db.execute("SELECT DISTINCT what FROM evil.reached").fetchall()


def test_the_functions_of_the_schema_look_nowhere_else(trapped: psycopg.Connection[Any]) -> None:
    one = "SELECT (pgworkers.enqueue('t', '{\"a\": 1}', 'a', concurrency_key => 'k', unique_key => 'u')).id"
    first = trapped.execute(one.encode()).fetchone()
    again = trapped.execute(one.encode()).fetchone()
    assert first == again, "the unique key counts"
    other = trapped.execute(
        "SELECT (pgworkers.enqueue('t', after => %s, delay => NULL)).id", [list(first)]
    ).fetchone()
    assert trapped.execute("SELECT pgworkers.cancel(%s)", other).fetchone() == ("cancelled",)
    assert trapped.execute("SELECT pgworkers.discard(%s)", first).fetchone() == ("dead",)
    assert trapped.execute("SELECT pgworkers.make_partitions(1)").fetchone() is not None
    assert trapped.execute("SELECT pgworkers.throttle_queue('a', 1, 1, 1, 1, 1)").fetchone() == ("missing",)
    assert _reached(trapped) == []


def test_enqueue_plain_says_of_every_name_where_it_is_from(
    trapped: psycopg.Connection[Any], dsn: str
) -> None:
    """It has no search_path of its own. A host that sleeps for `b` is notified of `b` only, with the right payload."""
    with connect.connect(Settings(), dsn, "test") as clean:
        host = DatabaseHost(clean, "pgworkers")
        host.register()
        clean.execute("INSERT INTO pgworkers.idle_host SELECT 'b', id FROM pgworkers.host")
        clean.execute("LISTEN pgworkers")
        clean.execute(f'LISTEN "{host.id}"')
        for queue in "ab":
            trapped.execute(
                "SELECT pgworkers.enqueue_plain('t', '{\"a\": 1}', %s, 0::integer, 1::integer, 1::integer, true)",
                [queue],
            )
        told = [notice.payload for notice in clean.notifies(timeout=1, stop_after=2)]
        assert told == [f"one:b:{host.id}"]
        assert clean.execute("SELECT count(*) FROM pgworkers.job WHERE created_at > 'epoch'").fetchone() == (
            2,
        )
    assert _reached(trapped) == []


def test_rows_written_by_a_trapped_session_are_found_by_others(
    trapped: psycopg.Connection[Any], dsn: str
) -> None:
    """COPY on the user's own connection: an index on a function must hold what every other session computes."""
    jobs = [NewJob(task="t", args_json="{}", queue="a", concurrency_key=f"k{nth}") for nth in range(3)]
    assert copy_jobs(trapped, "pgworkers", jobs) == 3
    with connect.connect(Settings(), dsn, "test") as clean:
        host = DatabaseHost(clean, "pgworkers")
        host.register()
        assert len(host.claim(10)) == 3, "three keys, three lanes"


def test_our_own_connections_set_their_path(dsn: str, trapped: psycopg.Connection[Any]) -> None:
    """Whatever the role or the database has as its default."""
    name = trapped.info.dbname
    trapped.execute(f'ALTER DATABASE "{name}" SET search_path = evil, pg_catalog'.encode())
    with connect.connect(Settings(), dsn, "test") as conn:
        assert conn.execute("SHOW search_path").fetchone() == ("pg_catalog,pg_temp",)
        host = DatabaseHost(conn, "pgworkers")
        host.register()
        host.enqueue()
        (job,) = host.claim()
        assert host.finish_job(job, JobState.SUCCEEDED) == "written"
    assert _reached(trapped) == []


#: Words before a bracket that are grammar and no functions.
GRAMMAR = {
    "all", "and", "any", "array", "as", "bit", "case", "coalesce", "exists", "from", "greatest", "if", "in", "job",
    "lateral", "least", "not", "or", "over", "select", "then", "u", "values", "when", "where",
}  # fmt: skip


def unqualified(body: str) -> list[str]:
    """The operators and the calls in a function's body that do not say where they are from."""
    text = re.sub(r"--[^\n]*|'(?:[^']|'')*'|#variable_conflict \w+", " ", body)
    text = re.sub(r"OPERATOR\(pg_catalog\.[^)\s]+\)|::|=>|:=|\(\*\)", " ", text)
    calls = re.findall(r"(?<![\w.])([a-z_]\w*)\s*\(", text, re.IGNORECASE)
    columns = re.findall(r"\b(?:AS|INTO)\s+(?:[\w.]+\s+AS\s+)?(\w+)\s*\(", text)  # AS u (x, y)
    found = [name for name in calls if name.lower() not in GRAMMAR and name not in columns]
    return re.findall(r"[-+*/<>=~!@#%^&|`?]+", text) + found


def test_each_function_sets_its_path_or_says_of_every_name_where_it_is_from(
    db: psycopg.Connection[Any],
) -> None:
    assert unqualified("SELECT a + lower(b) FROM c WHERE d = 'x=y'") == ["+", "=", "lower"]
    rows = db.execute(
        "SELECT p.proname, p.prosrc FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang"
        " WHERE p.pronamespace = 'pgworkers'::regnamespace AND l.lanname IN ('sql', 'plpgsql')"
        " AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (p.proconfig), false)"
    ).fetchall()
    found = {name: unqualified(body) for name, body in rows}
    assert {name: names for name, names in found.items() if names} == {}
    assert set(found) == {
        "add_histograms",
        "concurrency_group",
        "enqueue_plain",
        "first_limited_jobs",
        "free_slots_of_key",
        "free_slots_of_task",
        "limit_mutex",
        "limited_jobs",
        "lost_host_ranges",
        "far_future",
        "notify",
        "notify_ready",
    }


def test_an_operator_in_public_is_not_used_by_the_view_of_statistics(db: psycopg.Connection[Any]) -> None:
    """float8 * numeric does not exist in pg_catalog, so one in public would fit best."""
    db.execute(
        "CREATE FUNCTION public.reached(double precision, numeric) RETURNS double precision LANGUAGE plpgsql IMMUTABLE AS"
        " $$ BEGIN RAISE 'reached'; END $$;"
        "CREATE OPERATOR public.* (LEFTARG = double precision, RIGHTARG = numeric, FUNCTION = public.reached)"
    )
    db.execute("SET search_path = public")
    db.execute(
        "INSERT INTO pgworkers.minute_statistics VALUES (now(), 'q', 't', 'started', 1, 1, 1, '{0,1}'),"
        " (now(), 'q', 't', 'error', 1, 1, 1, '{1}')"
    )
    assert db.execute("SELECT wait_p50 IS NOT NULL FROM pgworkers.statistics").fetchone() == (True,)
