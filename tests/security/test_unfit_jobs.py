"""One row whose data makes a claim fail stops no other job: it is found, and dead with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.cluster import UNHURRIED, Cluster, Master, wait_for
from support.logins import NEWEST_ONLY, LoginDatabase

from pgworkers.job.claim import end_oversized_jobs, end_unclaimable_jobs, is_data_error
from pgworkers.postgres import migrate
from pgworkers.postgres.statements import run

LOUD = "jsonb_build_object('value', (SELECT jsonb_agg(1e131071::numeric) FROM generate_series(1, {})))"
#: What is dropped first, and what is then written past the functions. The last is what the error says.
BYPASSED = {
    "a long key": (
        "ALTER DOMAIN pgworkers.concurrency_key_text DROP CONSTRAINT job_concurrency_key_fits",
        "concurrency_key = (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 125) i)",
        "exceeds",
    ),
    "arguments that print 275 MB": (
        "ALTER DOMAIN pgworkers.arguments DROP CONSTRAINT job_args_fit",
        f"args = {LOUD.format(2100)}",
        "larger than",
    ),
    "a lease at its end": ("SELECT", "lease = 2147483647", "integer out of range"),
}


def _enqueue(conn: psycopg.Connection[Any], count: int = 1, queue: str = "default") -> list[int]:
    rows = conn.execute(
        "SELECT (pgworkers.enqueue('work', '{\"value\": 1}', queue => %s)).id FROM generate_series(1, %s)",
        [queue, count],
    ).fetchall()
    return [row[0] for row in rows]


@pytest.mark.excused("I5", "the bad row is ended before it runs")
def test_the_others_run_and_the_bad_row_is_dead_with_the_reason(
    running_host: Master, cluster: Cluster, admin: psycopg.Connection[Any]
) -> None:
    """A statement may take one second here, and printing 275 MB takes longer: the claim is too late."""
    for bypass in BYPASSED:
        is_set_aside(cluster, admin, bypass)


@NEWEST_ONLY
@pytest.mark.excused("I5", "the bad row is ended before it runs")
def test_an_order_that_no_frame_can_hold_is_dead_with_the_reason(
    age: str, database: LoginDatabase, cluster: Cluster
) -> None:
    """A host with time enough to be sent 275 MB: the order is refused before it reaches a worker."""
    cluster.start(dsn=database.dsn("worker"), **UNHURRIED)
    is_set_aside(cluster, cluster.db, "arguments that print 275 MB")


def is_set_aside(cluster: Cluster, admin: psycopg.Connection[Any], bypass: str) -> None:
    drop, change, said = BYPASSED[bypass]
    admin.execute(drop.encode())
    admin.execute("UPDATE pgworkers.queue SET paused = true")
    before = _enqueue(admin, 20)
    bad = _enqueue(admin)[0]
    after = _enqueue(admin, 20)
    admin.execute(f"UPDATE pgworkers.job SET {change} WHERE id = {bad}".encode())
    admin.execute("UPDATE pgworkers.queue SET paused = false")
    for job in (*before, *after):
        cluster.until(job, "succeeded")
    wait_for(lambda: cluster.state(bad) == "dead")
    # Not the whole row: Python refuses to read numbers with that many digits.
    row = admin.execute("SELECT verdict, error FROM pgworkers.jobs WHERE id = %s", [bad]).fetchone()
    assert row is not None
    assert row[0] == "unfit"
    assert said in row[1]
    later = _enqueue(admin)[0]
    cluster.until(later, "succeeded")


@pytest.fixture
def waiting(admin: psycopg.Connection[Any]) -> list[int]:
    return _enqueue(admin, 1000, queue="q")


def test_every_bad_row_is_found_and_no_other_is_touched(
    admin: psycopg.Connection[Any], waiting: list[int]
) -> None:
    bad = {waiting[0], waiting[1], waiting[500], waiting[999]}
    admin.execute("UPDATE pgworkers.job SET lease = 2147483647 WHERE id = ANY (%s)", [list(bad)])
    admin.execute("UPDATE pgworkers.job SET concurrency_key = 'k' WHERE id = ANY (%s)", [waiting[400:600]])
    found = run(admin, "pgworkers", end_unclaimable_jobs(["q"], ["work"]))
    assert {one.id for one in found} == bad
    assert all("integer out of range" in one.reason for one in found)
    states = admin.execute(
        "SELECT state::text, count(*) FROM pgworkers.jobs GROUP BY 1 ORDER BY 1"
    ).fetchall()
    assert states == [("dead", 4), ("ready", 996)]
    assert admin.execute("SELECT max(lease), max(attempt) FROM pgworkers.job").fetchone() == (0, 0)
    assert run(admin, "pgworkers", end_unclaimable_jobs(["q"], ["work"])) == []


@pytest.mark.parametrize("count", [1, 2, 5])
def test_bad_rows_without_a_good_one_are_found(admin: psycopg.Connection[Any], count: int) -> None:
    bad = set(_enqueue(admin, count, queue="q"))
    admin.execute("UPDATE pgworkers.job SET lease = 2147483647")
    found = run(admin, "pgworkers", end_unclaimable_jobs(["q"], ["work"]))
    assert {one.id for one in found} == bad
    states = admin.execute("SELECT state::text, count(*) FROM pgworkers.jobs GROUP BY 1").fetchall()
    assert states == [("dead", count)], "the job that was made for the trial is gone"


def test_a_job_is_not_ended_for_a_constraint_on_its_queue(admin: psycopg.Connection[Any]) -> None:
    [bad] = _enqueue(admin, queue="q")
    frozen = _enqueue(admin, 2, queue="frozen")
    admin.execute("UPDATE pgworkers.job SET lease = 2147483647 WHERE id = %s", [bad])
    admin.execute("ALTER TABLE pgworkers.job ADD CHECK (queue <> 'frozen' OR state <> 'running')")
    found = run(admin, "pgworkers", end_unclaimable_jobs(["q", "frozen"], ["work"]))
    assert [one.id for one in found] == [bad]
    assert admin.execute("SELECT array_agg(id ORDER BY id) FROM pgworkers.job").fetchone() == (frozen,)


@pytest.mark.parametrize("count", [1, 3])
def test_bad_rows_are_found_by_a_constraint_that_others_satisfy(
    admin: psycopg.Connection[Any], count: int
) -> None:
    bad = set(_enqueue(admin, count, queue="q"))
    statement = f"ALTER TABLE pgworkers.job ADD CHECK (state <> 'running' OR id > {max(bad)})"
    admin.execute(statement.encode())
    assert {one.id for one in run(admin, "pgworkers", end_unclaimable_jobs(["q"], ["work"]))} == bad


def test_what_takes_too_long_to_print_is_found_without_printing_it(
    admin: psycopg.Connection[Any], waiting: list[int]
) -> None:
    for domain, constraint in (
        ("arguments", "job_args_fit"),
        ("checkpoint_or_progress", "checkpoint_or_progress_fits"),
    ):
        admin.execute(f"ALTER DOMAIN pgworkers.{domain} DROP CONSTRAINT {constraint}".encode())
    for nth, change in ((3, f"args = {LOUD.format(3000)}"), (7, f"checkpoint = {LOUD.format(50)}")):
        admin.execute(f"UPDATE pgworkers.job SET {change} WHERE id = {waiting[nth]}".encode())
    admin.execute(f"UPDATE pgworkers.job SET args = {LOUD.format(20)} WHERE id = {waiting[8]}".encode())
    admin.execute("SET statement_timeout = '20s'")
    found = run(admin, "pgworkers", end_oversized_jobs(["q"], ["work"]))
    assert {one.id for one in found} == {waiting[3], waiting[7]}, "what has 2.6 MB is let through"
    kept = admin.execute(
        "SELECT args::text, errors FROM pgworkers.history WHERE id = %s", [waiting[3]]
    ).fetchone()
    assert kept is not None
    assert (kept[0], "larger than 4MB" in kept[1][0]) == ("{}", True)


def test_a_trigger_of_the_users_that_fails_costs_no_job(
    admin: psycopg.Connection[Any], waiting: list[int]
) -> None:
    """It fails for every row, by an error that a row's data could cause, too."""
    admin.execute(
        "CREATE FUNCTION public.broken() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM 1 / (random() * 0)::integer; RETURN NEW; END $$;"
        "CREATE TRIGGER broken BEFORE UPDATE ON pgworkers.job FOR EACH ROW EXECUTE FUNCTION public.broken()"
    )
    with pytest.raises(psycopg.errors.DivisionByZero):
        run(admin, "pgworkers", end_unclaimable_jobs(["q"], ["work"]))
    assert admin.execute("SELECT count(*) FROM pgworkers.job").fetchone() == (1000,)


def test_a_bad_row_in_a_batch_completes_it(admin: psycopg.Connection[Any]) -> None:
    """Jobs and batches that wait for the job learn of its end."""
    parent = _enqueue(admin, queue="q")[0]
    child = admin.execute(
        "SELECT (pgworkers.enqueue('work', queue => 'q', after => ARRAY[%s::bigint])).id", [parent]
    ).fetchone()
    admin.execute("SELECT pgworkers.link_dependencies(10)")
    admin.execute("UPDATE pgworkers.job SET lease = 2147483647 WHERE id = %s", [parent])
    run(admin, "pgworkers", end_unclaimable_jobs(["q"], ["work"]))
    assert child is not None
    assert admin.execute("SELECT state::text FROM pgworkers.jobs WHERE id = %s", child).fetchone() == (
        "cancelled",
    )


#: What makes every claim fail, whatever the job holds, and the error.
EVERY_CLAIM = {
    "a foreign key": (
        "CREATE TABLE public.known (id uuid PRIMARY KEY);"
        "ALTER TABLE pgworkers.job ADD FOREIGN KEY (host) REFERENCES public.known",
        psycopg.errors.ForeignKeyViolation,
    ),
    "a check": (
        "ALTER TABLE pgworkers.job ADD CHECK (state <> 'running')",
        psycopg.errors.CheckViolation,
    ),
    "an expression of an index": (
        "CREATE INDEX ON pgworkers.job ((1 / (CASE WHEN host IS NULL THEN 1 ELSE 0 END)))",
        psycopg.errors.DivisionByZero,
    ),
}


@pytest.mark.parametrize("cause", EVERY_CLAIM)
def test_no_job_is_ended_when_every_claim_fails(
    admin: psycopg.Connection[Any], waiting: list[int], cause: str
) -> None:
    statement, error = EVERY_CLAIM[cause]
    admin.execute(statement.encode())
    with pytest.raises(error):
        run(admin, "pgworkers", end_unclaimable_jobs(["q"], ["work"]))
    assert admin.execute("SELECT count(*) FROM pgworkers.job").fetchone() == (len(waiting),)


@pytest.mark.parametrize("cause", ["a foreign key", "a check"])
def test_a_job_that_is_alone_is_not_ended_for_a_constraint(
    admin: psycopg.Connection[Any], cause: str
) -> None:
    _enqueue(admin, queue="q")
    statement, error = EVERY_CLAIM[cause]
    admin.execute(statement.encode())
    with pytest.raises(error):
        run(admin, "pgworkers", end_unclaimable_jobs(["q"], ["work"]))
    assert admin.execute("SELECT count(*) FROM pgworkers.job").fetchone() == (1,)


def test_damage_in_the_server_costs_no_job(admin: psycopg.Connection[Any], waiting: list[int]) -> None:
    """A function that the catalog has lost: class XX, for one row only."""
    admin.execute(
        "CREATE FUNCTION public.fine(bigint) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RETURN true; END';"
        f"ALTER TABLE pgworkers.job ADD CHECK (state <> 'running' OR id <> {waiting[5]} OR public.fine(id));"
        "SET allow_system_table_mods = on; DELETE FROM pg_proc WHERE proname = 'fine'".encode()
    )
    with pytest.raises(psycopg.errors.InternalError_):
        run(admin, "pgworkers", end_unclaimable_jobs(["q"], ["work"]))
    assert admin.execute("SELECT count(*) FROM pgworkers.job").fetchone() == (len(waiting),)
    assert not is_data_error("XX001")


def test_a_trigger_is_known_in_every_language() -> None:
    """The server translates the word after PL/pgSQL in the context of an error, so nothing may look for it."""
    schema = (Path(migrate.__file__).parents[1] / "schema" / "0001_initial.sql").read_text()
    assert "string_to_array(context, 'PL/pgSQL')" in schema
