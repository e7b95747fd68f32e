"""An operator in `public` on one of our types: none of our statements calls it, direct or through a pooler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege

from pgworkers.job import cancel, gauges, queries, queues
from pgworkers.job.enqueue import enqueue
from pgworkers.job.model import NewJob
from pgworkers.postgres import connect
from pgworkers.postgres.session import BlockingSession
from pgworkers.postgres.statements import run
from pgworkers.settings import Settings

#: Made by a login that may look at the schema, so that it can name its types.
TRAP = """
CREATE TABLE public.reached (what text, by text DEFAULT current_user);
GRANT INSERT ON public.reached TO PUBLIC;
CREATE FUNCTION public.of_state(pgworkers.job_state, pgworkers.job_state) RETURNS boolean LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO public.reached VALUES ('state'); RETURN true; END $$;
CREATE OPERATOR public.= (LEFTARG = pgworkers.job_state, RIGHTARG = pgworkers.job_state, FUNCTION = public.of_state);
CREATE OPERATOR public.<> (LEFTARG = pgworkers.job_state, RIGHTARG = pgworkers.job_state, FUNCTION = public.of_state);
CREATE FUNCTION public.of_name(pgworkers.queue_name, text) RETURNS boolean LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO public.reached VALUES ('queue'); RETURN true; END $$;
CREATE OPERATOR public.= (LEFTARG = pgworkers.queue_name, RIGHTARG = text, FUNCTION = public.of_name);
CREATE FUNCTION public.of_moment(pgworkers.bounded_timestamp, timestamptz) RETURNS boolean LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO public.reached VALUES ('moment'); RETURN true; END $$;
CREATE OPERATOR public.< (LEFTARG = pgworkers.bounded_timestamp, RIGHTARG = timestamptz, FUNCTION = public.of_moment);
CREATE OPERATOR public.> (LEFTARG = pgworkers.bounded_timestamp, RIGHTARG = timestamptz, FUNCTION = public.of_moment);
CREATE FUNCTION public.min(pgworkers.bounded_timestamp) RETURNS timestamptz LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO public.reached VALUES ('min'); RETURN now(); END $$;
"""


@pytest.fixture
def trapped(admin: psycopg.Connection[Any], viewer: psycopg.Connection[Any]) -> None:
    admin.execute("GRANT CREATE ON SCHEMA public TO viewer")
    viewer.execute(TRAP.encode())
    assert admin.execute("SELECT 'ready'::pgworkers.job_state = 'dead'::pgworkers.job_state").fetchone() == (
        True,
    ), "the trap does not work"
    admin.execute("TRUNCATE public.reached")


def test_only_the_owner_can_create_a_cast_of_our_types(
    viewer: psycopg.Connection[Any], admin: psycopg.Connection[Any]
) -> None:
    """A cast is found by its types, whatever the search_path: only who owns one of them can make it."""
    admin.execute("GRANT CREATE ON SCHEMA public TO viewer")
    viewer.execute(
        "CREATE FUNCTION public.cast_to_integer(pgworkers.job_state) RETURNS integer LANGUAGE sql AS 'SELECT 1'"
    )
    with pytest.raises(InsufficientPrivilege):
        viewer.execute(
            "CREATE CAST (pgworkers.job_state AS integer) WITH FUNCTION public.cast_to_integer AS IMPLICIT"
        )


@pytest.mark.usefixtures("trapped")
@pytest.mark.parametrize("login", ["worker", "operator"])
def test_what_we_say_reaches_nothing_in_public(
    login_dsn: Callable[[str], str], admin: psycopg.Connection[Any], login: str
) -> None:
    admin.execute("INSERT INTO pgworkers.queue (name) VALUES ('q')")
    with connect.connect(Settings(), login_dsn(login), "cli") as conn:
        seat = BlockingSession(conn, "pgworkers")
        made = seat.run(enqueue(NewJob("t", "{}", "q", delay=60.0)))
        other = run(conn, "pgworkers", enqueue(NewJob("t", "{}", "q")))
        queries.find_jobs(lambda query: run(conn, "pgworkers", query), queries.JobFilter())
        run(conn, "pgworkers", queries.list_queues())
        run(conn, "pgworkers", gauges.count_depth(10))
        run(conn, "pgworkers", queues.pause_queue("q"))
        with conn.transaction():
            queries.count_jobs(lambda query: run(conn, "pgworkers", query), queries.JobFilter())
        assert seat.run(cancel.cancel(made.id)) == "cancelled"
        assert seat.run(cancel.cancel(other.id)) == "cancelled"
    assert admin.execute("SELECT what, by FROM public.reached").fetchall() == []
