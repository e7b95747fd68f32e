"""Each check of the doctor against the real situation, and a healthy database without a finding."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from support.command import ForkedCommand
from support.database_host import until
from support.doctor_findings import examined
from support.later_version import later_migrations
from support.server import OwnServer, migrated

from pgworkers.doctor.checks import SCHEMA_CHECKS, SERVER_CHECKS, DatabaseFacts, run_checks
from pgworkers.doctor.findings import Finding, Level, Thresholds
from pgworkers.doctor.storage import TableStatistics, recent_dead_rows
from pgworkers.postgres import migrate
from pgworkers.postgres.connect import connect
from pgworkers.postgres.statements import Query, Statement, run
from pgworkers.settings import Settings

Db = psycopg.Connection[Any]
AT_ONCE = Thresholds(warn_after_seconds=0.0)


def only(found: dict[str, list[Finding]], check: str, level: Level) -> Finding:
    assert [finding.level for finding in found[check]] == [level], found[check]
    return found[check][0]


@contextmanager
def login(db: Db, name: str, dsn: str) -> Iterator[str]:
    """A role that may connect and nothing else."""
    db.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))
    try:
        yield make_conninfo(dsn, user=name)
    finally:
        db.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(name)))
        db.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def alive(
    db: Db, name: str = "alpha", *, queues: str = "{default}", leader: bool = True, **more: Any
) -> None:
    """The row of a host that has just renewed."""
    values = {
        "name": name, "pid": 70, "app": "app.py", "version": "v1", "queues": queues, "lease": "1 h",
        "leader": leader, **more
    }  # fmt: skip
    names = sql.SQL(", ").join(map(sql.Identifier, values))
    marks = sql.SQL(", ").join(map(sql.Placeholder, values))
    db.execute(
        sql.SQL("INSERT INTO pgworkers.host (id, {}) VALUES (gen_random_uuid(), {})").format(names, marks),
        values,
    )


LOCK = "SELECT pg_advisory_lock((1885828967::bigint << 32) | 'pgworkers'::regnamespace::oid::bigint)"


def leading(db: Db, host: str, seconds: float = 3600.0) -> None:
    """This host has the term of leadership."""
    db.execute(
        "INSERT INTO pgworkers.leader (host, pid, session_start, locked, valid_until)"
        " SELECT id, 0, now(), false, now() + make_interval(secs => %s) FROM pgworkers.host WHERE name = %s"
        " ON CONFLICT (id) DO UPDATE SET host = excluded.host, valid_until = excluded.valid_until",
        [seconds, host],
    )


@pytest.fixture
def leads(db: Db) -> None:
    """A host leads, whose row is not there."""
    db.execute(
        "INSERT INTO pgworkers.leader (host, pid, session_start, locked, valid_until)"
        " SELECT gen_random_uuid(), 0, now(), false, now() + interval '1 h'"
    )


def test_a_healthy_database_has_no_finding(dsn: str, db: Db, leads: None) -> None:
    alive(db)
    leading(db, "alpha")
    found = examined(
        dsn, Thresholds(slow_round_trip_seconds=30.0)
    )  # how busy the machine is is not the question
    assert set(found) == set(SERVER_CHECKS) | set(SCHEMA_CHECKS)
    assert [f for findings in found.values() for f in findings if f.level != Level.OK] == []
    assert found["database"][0].what.startswith("Postgres ")
    assert found["leader"][0].what == "alpha leads"


def test_nothing_is_written(dsn: str, db: Db) -> None:
    alive(db)
    db.execute("SELECT pgworkers.enqueue('render')")

    def state() -> Any:
        return db.execute(
            "SELECT (SELECT json_agg(j) FROM pgworkers.job j)::text, (SELECT json_agg(h) FROM pgworkers.host h)::text,"
            " (SELECT sum(pg_stat_get_xact_tuples_inserted(c.oid)) FROM pg_class c)"
        ).fetchone()

    before = state()
    examined(dsn)
    assert state() == before
    with connect(Settings(), dsn, "doctor") as conn:
        patient = DatabaseFacts(conn, "pgworkers", Settings(), lambda: connect(Settings(), dsn, "doctor"))
        list(run_checks(patient))
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):  # a check that tried would be refused
            patient.query(Query(Statement("writes", "DELETE FROM pgworkers.job"), {}, lambda rows: rows))


def test_a_role_with_few_rights_learns_what_it_cannot_see(dsn: str, db: Db) -> None:
    with login(db, "passer_by", dsn) as theirs, psycopg.connect(dsn) as other:
        other.execute("SELECT 1")
        found = examined(theirs)
        assert only(found, "database", Level.OK)
        assert "may not look into" in only(found, "transactions", Level.SKIP).what
        hint = only(found, "schema", Level.FAIL)
        assert "the schema pgworkers is there, but the login passer_by may not use it" in hint.what
        assert hint.fix[0] == """psql -c 'GRANT pgworkers_viewer TO passer_by'"""
        assert {f.level for check in SCHEMA_CHECKS for f in found[check]} == {Level.SKIP}
        db.execute("GRANT USAGE ON SCHEMA pgworkers TO passer_by")
        db.execute("GRANT SELECT ON pgworkers.migration TO passer_by")
        found = examined(theirs)
        assert only(found, "schema", Level.OK)
        assert only(found, "autovacuum", Level.OK)  # every role may read the catalogue
        assert "permission denied" in only(found, "hosts", Level.SKIP).what


def test_a_missing_an_old_a_new_and_a_changed_schema(
    dsn: str, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = examined(dsn, schema="elsewhere")
    assert only(missing, "schema", Level.FAIL).fix == ("pgworkers migrate up",)
    assert only(missing, "hosts", Level.SKIP)
    newest = "(SELECT max(version) FROM pgworkers.migration)"
    db.execute(f"CREATE TABLE kept AS SELECT * FROM pgworkers.migration WHERE version = {newest}")
    db.execute(f"UPDATE pgworkers.migration SET checksum = 'other' WHERE version = {newest}")
    assert "made by another version" in only(examined(dsn), "schema", Level.FAIL).what
    db.execute(
        "UPDATE pgworkers.migration m SET checksum = k.checksum FROM kept k WHERE k.version = m.version"
    )
    known = [*migrate.known_migrations(), *later_migrations(colour="CREATE TABLE pgworkers.colour ();")]
    with monkeypatch.context() as patched:
        patched.setattr(migrate, "known_migrations", lambda: known)
        old = only(examined(dsn), "schema", Level.FAIL)
    assert "is older than this pgworkers" in old.what
    assert old.fix == ("pgworkers migrate up",)
    db.execute("INSERT INTO pgworkers.migration VALUES (9999, '9999_future', 'x', 9999)")
    assert "does not know 9999_future" in only(examined(dsn), "schema", Level.FAIL).what
    db.execute("UPDATE pgworkers.migration SET serves = 1 WHERE version = 9999")
    found = examined(dsn)
    assert (
        "newer than this pgworkers (9999_future), which it still serves"
        in only(found, "schema", Level.OK).what
    )
    assert only(found, "autovacuum", Level.OK), "the tables are looked at"


def test_a_transaction_that_pins_the_horizon_is_named(dsn: str, db: Db) -> None:
    with psycopg.connect(dsn, application_name="nightly report") as pinned:
        pinned.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        pinned.execute("SELECT 'canary-s3cret', count(*) FROM pgworkers.job")
        finding = only(examined(dsn, AT_ONCE), "transactions", Level.FAIL)
        pid = pinned.info.backend_pid
        assert finding.what.startswith(
            f"pid {pid} (user postgres, nightly report, idle in transaction) has been in a"
        )
        assert "holds back vacuum" in finding.what
        assert "SELECT '…', count(*) FROM pgworkers.job" in finding.what
        assert "canary" not in str(finding)
        assert finding.fix == (f"psql -c 'SELECT pg_terminate_backend({pid})'",)
        assert only(examined(dsn), "transactions", Level.OK)  # young enough


def test_a_handlers_own_transaction_names_its_job(dsn: str) -> None:
    with psycopg.connect(dsn, application_name="pgworkers job 42 lease 3") as pinned:
        pinned.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        pinned.execute("SELECT 1 FROM pg_class LIMIT 1")
        finding = only(examined(dsn, AT_ONCE), "transactions", Level.FAIL)
        assert finding.fix[0].startswith("pgworkers jobs cancel 42 ")


def test_prepared_transactions_and_slots(own_server: OwnServer) -> None:
    with psycopg.connect(own_server.dsn, autocommit=True) as conn:
        conn.execute("ALTER SYSTEM SET max_prepared_transactions = 5")
        conn.execute("ALTER SYSTEM SET wal_level = 'logical'")
        conn.execute("ALTER SYSTEM SET autovacuum = off")
    own_server.stop()
    own_server.start()
    dsn = own_server.dsn
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(
            "SELECT pg_create_logical_replication_slot('lazy', 'pgoutput')"
        )  # first: it waits for the others
        conn.execute("BEGIN")
        conn.execute("INSERT INTO pgworkers.queue (name) VALUES ('later')")
        conn.execute("PREPARE TRANSACTION 'it''s ours'")
        conn.execute("SELECT pgworkers.enqueue('render')")
    found = examined(dsn, Thresholds(warn_after_seconds=0.0, held_back_transactions=0))
    told = {
        finding.what.split(" transaction")[0].split(" holds")[0]: finding for finding in found["transactions"]
    }
    assert "ROLLBACK PREPARED" in told["the prepared"].fix[0]
    assert "it''s ours" in told["the prepared"].fix[0].replace("'\"'\"'", "'")
    assert "pg_drop_replication_slot" in told["the inactive replication slot lazy"].fix[0]
    assert "is off on this server" in only(found, "autovacuum", Level.FAIL).what
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("SELECT pg_drop_replication_slot('lazy')")
        conn.execute("ROLLBACK PREPARED 'it''s ours'")


@pytest.mark.long
def test_dead_rows_that_vacuum_cannot_remove(dsn: str, db: Db) -> None:
    db.execute("ALTER TABLE pgworkers.job SET (autovacuum_enabled = off)")
    db.execute(
        "INSERT INTO pgworkers.job (queue, task) SELECT 'default', 'render' FROM generate_series(1, 2000)"
    )
    with psycopg.connect(dsn) as pinned:  # an open snapshot: no dead row can be removed
        pinned.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        pinned.execute("SELECT count(*) FROM pgworkers.job")
        for _ in range(3):
            db.execute("UPDATE pgworkers.job SET progress = '1'")
        finding = _once(
            lambda: [
                f
                for f in examined(dsn, Thresholds(dead_rows=5000, dead_ratio=1))["dead rows"]
                if f.level != "ok"
            ]
        )
    assert finding.what.startswith("job has 6,000 dead rows")
    assert finding.fix == ("psql -c 'VACUUM (VERBOSE, ANALYZE) pgworkers.job'",)
    off = only(examined(dsn), "autovacuum", Level.FAIL)
    assert off.fix == ("psql -c 'ALTER TABLE pgworkers.job RESET (autovacuum_enabled)'",)


def test_autovacuum_need_not_have_come_seconds_after_a_burst(dsn: str, db: Db) -> None:
    db.execute("ALTER TABLE pgworkers.job SET (autovacuum_enabled = off)")
    db.execute(
        "INSERT INTO pgworkers.job (queue, task) SELECT 'default', 'render' FROM generate_series(1, 300)"
    )
    db.execute("UPDATE pgworkers.job SET progress = '1'")
    db.execute("SELECT pgworkers.cancel(id) FROM pgworkers.job")
    dead = "SELECT pg_stat_get_dead_tuples('pgworkers.job'::regclass)"
    until(lambda: db.execute(dead).fetchone()[0] >= 300)  # two of each job, if no page was pruned meanwhile
    tolerance = Thresholds(dead_rows=100, dead_ratio=0.1)
    assert only(examined(dsn, tolerance), "dead rows", Level.OK)
    db.execute(
        "UPDATE pgworkers.history SET finished_at = finished_at - 3 * current_setting('autovacuum_naptime')::interval"
    )
    old = next(found for found in examined(dsn, tolerance)["dead rows"] if found.facts.get("table") == "job")
    assert old.level is Level.WARN
    assert "dead rows and 0 live ones" in old.what


def test_rows_that_were_pruned_while_it_looked_make_the_others_no_older(db: Db) -> None:
    db.execute(
        "INSERT INTO pgworkers.job (queue, task) SELECT 'default', 'render' FROM generate_series(1, 300)"
    )
    db.execute("SELECT pgworkers.cancel(id) FROM pgworkers.job")
    db.execute("SELECT pg_stat_reset_single_table_counters('pgworkers.job'::regclass)")
    seen = TableStatistics(
        "job",
        live_rows=0,
        dead_rows=600,
        autovacuum_threshold=50.0,
        is_autovacuum_enabled=True,
        seconds_since_vacuum=None,
        is_autovacuum_running=True,
    )
    assert run(db, "pgworkers", recent_dead_rows([seen])) == 600


def _once(look: Callable[[], list[Finding]]) -> Finding:
    """Statistics of a session reach the others within a second."""
    give_up = time.monotonic() + 20
    while time.monotonic() < give_up:
        if found := look():
            return found[0]
        time.sleep(0.05)
    raise AssertionError("nothing was found")


@pytest.mark.long
def test_indexes_bloated_unused_missing_and_broken(dsn: str, db: Db) -> None:
    db.execute("ALTER TABLE pgworkers.job SET (autovacuum_enabled = off)")
    db.execute("CREATE INDEX mine ON pgworkers.job (created_at)")
    db.execute(
        "INSERT INTO pgworkers.job (queue, task) SELECT 'default', 'render' FROM generate_series(1, 30000)"
    )
    db.execute("DELETE FROM pgworkers.job")
    db.execute("VACUUM (INDEX_CLEANUP on, TRUNCATE off) pgworkers.job")
    db.execute("DROP INDEX pgworkers.job_expires")
    tolerance = Thresholds(bloat_bytes=1 << 20, bloat_ratio=1.0)
    unused = _once(
        lambda: [f for f in examined(dsn, tolerance)["indexes"] if "mine on job is not ours" in f.what]
    )
    assert unused.fix == ("psql -c 'DROP INDEX CONCURRENTLY pgworkers.mine'",)
    found = examined(dsn, tolerance)["indexes"]
    assert any(f.what == "the index job_expires is missing" and f.level == "fail" for f in found), found
    bloated = next(f for f in found if f.what.startswith("job_ready takes "))
    assert bloated.fix == ("psql -c 'REINDEX INDEX CONCURRENTLY pgworkers.job_ready'",)
    db.execute("SELECT pgworkers.enqueue('render') FROM generate_series(1, 2)")
    with pytest.raises(psycopg.errors.UniqueViolation):
        db.execute("CREATE UNIQUE INDEX CONCURRENTLY broken ON pgworkers.job (task)")
    assert any(f.what == "the index broken is not valid" for f in examined(dsn)["indexes"])


def test_an_index_that_has_just_grown_is_not_bloated(dsn: str, db: Db) -> None:
    """What the planner knows of a table is from before the jobs came: it says nothing about their index."""
    db.execute("ALTER TABLE pgworkers.job SET (autovacuum_enabled = off)")
    rows = "SELECT pg_stat_get_live_tuples('pgworkers.job'::regclass)"
    for before in ("SELECT", "VACUUM ANALYZE pgworkers.job"):  # never analyzed; analyzed while it was empty
        db.execute(before)
        db.execute(
            "INSERT INTO pgworkers.job (queue, task) SELECT 'default', 'render' FROM generate_series(1, 30000)"
        )
        until(lambda: db.execute(rows).fetchone() == (30_000,))
        found = examined(dsn, Thresholds(bloat_bytes=1 << 20, bloat_ratio=1.0))["indexes"]
        assert not [f for f in found if "entries" in f.what], found
        db.execute("TRUNCATE pgworkers.job CASCADE")


def test_few_connections_are_left(dsn: str, db: Db) -> None:
    def of(theirs: str, level: Level) -> Finding:
        """Once the sessions of the last examination are gone: they count until then."""
        gone = "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE usename = 'crowded')"
        until(lambda: db.execute(gone).fetchone() == (True,))
        return only(examined(theirs), "connections", level)

    with login(db, "crowded", dsn) as theirs:
        assert of(theirs, Level.OK)
        db.execute("ALTER ROLE crowded CONNECTION LIMIT 8")
        assert "for the role crowded" in of(theirs, Level.WARN).what
        db.execute("ALTER ROLE crowded CONNECTION LIMIT 3")
        assert of(theirs, Level.FAIL).what.startswith("2 left of 3")


def test_a_server_that_does_not_answer_in_time_is_a_finding_and_the_next_check_goes_on(dsn: str) -> None:
    with psycopg.connect(dsn) as locks:
        locks.execute("LOCK pgworkers.host IN ACCESS EXCLUSIVE MODE")
        for limit in (0.2, 2.0, 20.0):  # a busy machine may need more for the others
            found = examined(dsn, settings=Settings(statement_timeout=limit))
            assert only(found, "hosts", Level.WARN).what == f"no answer within {limit:g}s"
            if found["paused"][0].level == Level.OK:
                break
    assert only(found, "paused", Level.OK)


def test_hosts_that_are_lost(dsn: str, db: Db, leads: None) -> None:
    assert only(examined(dsn), "hosts", Level.WARN).what == "no host is running"
    db.execute("SELECT pgworkers.enqueue('render')")
    assert only(examined(dsn), "hosts", Level.FAIL).what == "no host is running, and 1 job waits"
    alive(db)
    alive(db, "omega", leader=False)
    db.execute(
        "UPDATE pgworkers.host SET lease = '30 s', renewed_at = now() - interval '40 s' WHERE name = 'omega'"
    )
    assert only(examined(dsn), "hosts", Level.WARN).what.startswith("omega (pid 70) has not renewed for ")
    db.execute(
        "UPDATE pgworkers.job SET state = 'running', claimed_at = now(),"
        " host = (SELECT id FROM pgworkers.host WHERE name = 'omega')"
    )
    assert only(examined(dsn), "hosts", Level.WARN).what.endswith("and still holds a job")
    db.execute("UPDATE pgworkers.host SET renewed_at = now() - interval '1 h' WHERE name = 'omega'")
    late = only(examined(dsn), "hosts", Level.FAIL)
    assert late.fix == ("pgworkers duties run rescue",)


def test_no_host_leads_or_one_does(dsn: str, db: Db) -> None:
    alive(db, leader=False)
    assert "none yet" in only(examined(dsn), "leader", Level.OK).what
    db.execute("UPDATE pgworkers.host SET started_at = now() - interval '1 h'")
    assert only(examined(dsn), "leader", Level.FAIL).what == "no host leads"
    leading(db, "alpha", -60.0)
    assert "the last term ran out 1m" in only(examined(dsn), "leader", Level.FAIL).what
    leading(db, "alpha")
    assert only(examined(dsn), "leader", Level.OK).what == "alpha leads"
    db.execute("DELETE FROM pgworkers.host")
    alive(db, "beta")
    assert "which has no row, leads" in only(examined(dsn), "leader", Level.OK).what


def test_a_session_that_holds_the_leaders_lock_and_does_not_lead_is_named(dsn: str, db: Db) -> None:
    alive(db)
    leading(db, "alpha")
    with psycopg.connect(dsn, autocommit=True, application_name="psql of a stranger") as conn:
        conn.execute(LOCK)
        found = only(examined(dsn), "leader", Level.WARN)
        assert f"pid {conn.info.backend_pid}, role {conn.info.user}" in found.what
        assert "psql of a stranger" in found.what
        db.execute("UPDATE pgworkers.leader SET pid = %s", [conn.info.backend_pid])
        assert only(examined(dsn), "leader", Level.OK).what == "alpha leads"


def test_queues_without_a_host_and_unknown_tasks(dsn: str, db: Db, leads: None) -> None:
    alive(db)
    db.execute("SELECT pgworkers.enqueue('rendr', queue => 'defualt') FROM generate_series(1, 3)")
    found = examined(dsn)
    unserved = only(found, "queues", Level.FAIL)
    assert unserved.what == "no host serves the queue defualt, which has 3 ready and 0 scheduled jobs"
    assert unserved.fix[0] == "pgworkers run -Q defualt"
    stranger = only(found, "tasks", Level.FAIL)
    assert stranger.facts == {"task": "rendr", "jobs": 3}


def test_a_task_that_the_running_code_no_longer_has(dsn: str, db: Db, leads: None) -> None:
    alive(db, tasks="{mail}")
    db.execute("INSERT INTO pgworkers.task VALUES ('render', 'default', 0, 10, 3)")
    db.execute("SELECT pgworkers.enqueue('render'), pgworkers.enqueue('mail')")
    assert only(examined(dsn), "tasks", Level.FAIL).facts == {"task": "render", "jobs": 1}
    alive(db, "elsewhere", queues="{other}", tasks="{render}", leader=False)
    assert only(examined(dsn), "tasks", Level.FAIL).facts == {"task": "render", "jobs": 1}
    alive(db, "older", tasks="{mail,render}", leader=False)
    only(examined(dsn), "tasks", Level.OK)


def test_a_paused_queue_and_one_without_workers(dsn: str, db: Db, leads: None) -> None:
    alive(db, queues="{default,api}")
    db.execute(
        "INSERT INTO pgworkers.queue (name, paused, workers) VALUES ('default', true, NULL), ('api', false, 0)"
    )
    db.execute("SELECT pgworkers.enqueue('render') FROM generate_series(1, 2)")
    assert only(examined(dsn), "paused", Level.OK).what == "2 for less than 1m", "the patience is not over"
    api, default = examined(dsn, AT_ONCE)["paused"]
    assert (api.fix, default.fix) == (("pgworkers queues scale api 1",), ("pgworkers queues resume default",))
    assert default.what.endswith("; 2 jobs wait")
    assert (api.level, default.level) == (Level.WARN, Level.FAIL), "nobody waits behind api"
    db.execute("UPDATE pgworkers.queue SET updated_at = now() - interval '2m'")
    assert {one.level for one in examined(dsn)["paused"]} == {Level.WARN}


def test_schedules(dsn: str, db: Db, leads: None) -> None:
    alive(db)
    db.execute("INSERT INTO pgworkers.task VALUES ('report', 'default', 0, 10, 3)")
    db.execute(
        """INSERT INTO pgworkers.schedule (name, task, cron, paused, error, due_at) VALUES
           ('good', 'report', '0 3 * * *', false, NULL, now() + interval '1 h'),
           ('late', 'report', '0 3 * * *', false, NULL, now() - interval '1 h'),
           ('lost', 'unknown', '0 3 * * *', false, NULL, now() + interval '1 h'),
           ('odd', 'report', '0 3 * * *', false, 'unknown time zone', now() + interval '1 h'),
           ('rest', 'report', '0 3 * * *', true, NULL, now() - interval '1 h')"""
    )
    found = {f.what.split(" ")[0]: f for f in examined(dsn)["schedules"]}
    assert {name: str(f.level) for name, f in found.items()} == {
        "late": "fail", "lost": "fail", "odd": "fail", "rest": "warn"
    }  # fmt: skip
    assert found["late"].what == "late is overdue: the leader should have looked at it 1h ago"
    assert found["rest"].fix == ("pgworkers schedules resume rest",)


def test_a_tick_that_was_passed_by_because_its_last_job_still_runs(dsn: str, db: Db, leads: None) -> None:
    alive(db)
    db.execute("INSERT INTO pgworkers.task VALUES ('report', 'default', 0, 10, 3)")
    job = db.execute("SELECT (pgworkers.enqueue('report')).id").fetchone()[0]
    db.execute(
        "UPDATE pgworkers.job SET state = 'running', claimed_at = now(), host = (SELECT id FROM pgworkers.host)"
    )
    db.execute(
        "INSERT INTO pgworkers.schedule (name, task, cron, overlap, due_at, last_job)"
        " VALUES ('nightly', 'report', '0 3 * * *', 'skip', now() + interval '1 h', %s)",
        [job],
    )
    db.execute(
        "INSERT INTO pgworkers.tick (schedule, scope, at, reason) VALUES ('nightly', '', now(), 'overlap')"
    )
    finding = only(examined(dsn), "schedules", Level.WARN)
    assert f"its job #{job} still runs" in finding.what
    assert finding.fix[0] == f"pgworkers jobs stack {job}"


WORKER = (
    '{{"queue": "default", "slot": 0, "pid": 71, "state": "{}", "job_id": {}, "task": "render", "since": {}}}'
)


def test_jobs_that_are_stuck(dsn: str, db: Db, leads: None) -> None:
    alive(db)
    job = db.execute("SELECT (pgworkers.enqueue('render')).id").fetchone()[0]
    db.execute(
        "UPDATE pgworkers.job SET state = 'running', claimed_at = now(), host = (SELECT id FROM pgworkers.host)"
    )

    def runs(state: str, since: float, **columns: str) -> Finding:
        text = f"[{WORKER.format(state, job, since)}]"
        db.execute("UPDATE pgworkers.host SET workers = %s, renewed_at = now()", [text])
        db.execute(
            "UPDATE pgworkers.job SET cancel_at = now() - %s::interval, deadline_at = now() - %s::interval",
            [columns.get("cancelled"), columns.get("over")],
        )
        (found,) = examined(dsn)["stuck"]
        return found

    assert runs("busy", 5).level == Level.OK
    assert runs("busy", 3000).level == Level.OK  # nothing to compare with, and not so long
    assert "has run for 2h" in runs("busy", 7200).what
    db.execute(
        "INSERT INTO pgworkers.minute_statistics"
        " VALUES (date_trunc('minute', now()), 'default', 'render', 'succeeded', 10, 12, 1, '{}')"
    )
    hangs = runs("busy", 600)
    assert (hangs.level, hangs.fix[0]) == (Level.WARN, f"pgworkers jobs stack {job}")
    assert "its kind usually takes 1.2s" in hangs.what
    assert "suspended for 1" in runs("suspended", 600).what
    assert "is stalled" in runs("stalled", 20).what
    late = runs("busy", 60, over="1 h")
    assert (late.level, "1h past its deadline" in late.what) == (Level.FAIL, True)
    gone = runs("busy", 60, cancelled="1 min")
    assert (gone.level, gone.fix[1]) == (Level.FAIL, "kill -9 71  # on alpha")


def test_a_backlog_names_its_reason(dsn: str, db: Db, leads: None) -> None:
    alive(db)
    db.execute("INSERT INTO pgworkers.task VALUES ('render', 'default', 0, 10, 3)")
    db.execute("INSERT INTO pgworkers.queue (name) VALUES ('default')")
    db.execute("SELECT pgworkers.enqueue('render') FROM generate_series(1, 7)")
    db.execute("UPDATE pgworkers.job SET run_at = now() - interval '3 h'")

    def why(text: str, patience: float = 60.0) -> Finding:
        db.execute("UPDATE pgworkers.host SET workers = %s, renewed_at = now()", [f"[{text}]"])
        return examined(dsn, Thresholds(warn_after_seconds=patience))["backlog"][0]

    busy = why(WORKER.format("busy", 99, 7200), patience=3600)
    assert busy.level == Level.WARN
    assert busy.what == "7 jobs wait in default, the oldest for 3h; in 5m 0 ended and 7 more came"
    assert busy.why == "its only worker is busy: 1x render (up to 2h)"
    assert "pgworkers queues scale default 2" in busy.fix
    assert "its only worker does nothing" in why(WORKER.format("idle", "null", 300)).why
    assert why("").why == "the queue has no worker"
    db.execute("UPDATE pgworkers.queue SET throttled_until = now() + interval '1 h'")
    assert "cools down" in why("").why
    db.execute("UPDATE pgworkers.queue SET paused = true")
    assert why("").why == "the queue is paused"
    db.execute("UPDATE pgworkers.queue SET paused = false, throttled_until = NULL")
    assert why(WORKER.format("busy", 99, 300)).level == Level.FAIL


def test_a_statement_is_shown_with_what_reaches_the_database(dsn: str, db: Db) -> None:
    db.execute("ALTER TABLE pgworkers.job SET (autovacuum_enabled = off)")
    settings = Settings()
    with connect(settings, dsn, "doctor") as conn:
        patient = DatabaseFacts(
            conn, "pgworkers", settings, lambda: connect(settings, dsn, "x"), psql="pgworkers pg psql"
        )
        (off,) = (finding for finding in run_checks(patient) if finding.check == "autovacuum")
    assert off.fix == ("pgworkers pg psql -c 'ALTER TABLE pgworkers.job RESET (autovacuum_enabled)'",)


def test_hostile_names_cannot_paint_or_break_out(dsn: str, db: Db, tmp_path: Path) -> None:
    for name in ("queue_name", "task_name"):  # such rows cannot be written any more; readers survive them
        db.execute(f"ALTER DOMAIN pgworkers.{name} DROP CONSTRAINT job_names_are_plain".encode())
    db.execute("SELECT pgworkers.enqueue(E'bad\\x1b[31m', queue => E'q\\n; rm -rf /')")
    said = ForkedCommand(tmp_path, DATABASE_URL=dsn)("doctor", code=1)
    assert "\x1b" not in said.out
    assert "q\\n; rm -rf /" in said.out


def test_the_command(tmp_path: Path, dsn: str, db: Db, leads: None) -> None:
    cli = ForkedCommand(tmp_path, DATABASE_URL=dsn)
    warned = cli("doctor")  # no host: a warning
    assert "warn  hosts         no host is running\n" in warned.out
    assert "fix: pgworkers run" in warned.out
    assert "warn" in warned.err.splitlines()[-1]
    rows = cli("doctor", "--strict", "-o", "json", code=1).json()
    assert {row["level"] for row in rows} == {"ok", "skip", "warn"}
    db.execute("SELECT pgworkers.enqueue('render', queue => 'nowhere')")
    (tmp_path / "app.py").write_text("raise RuntimeError('broken on purpose')")
    bad = [line for line in cli("doctor", "-q", code=1).lines() if line[0] != " "]
    assert [line.split()[1] for line in bad] == ["app", "hosts", "queues", "tasks"]
    assert "broken on purpose" in bad[0]


def test_a_database_that_cannot_be_reached(tmp_path: Path) -> None:
    cli = ForkedCommand(tmp_path, DATABASE_URL="postgresql://me:canary-s3cret@127.0.0.1:1/nowhere")
    said = cli("doctor", code=4)
    assert "ok    limits" in said.out or "warn  limits" in said.out
    assert "fail  database      cannot connect to postgresql://me@127.0.0.1:1/nowhere" in said.out
    assert "canary" not in said.out + said.err


def test_another_schema_name_is_used_everywhere(empty_dsn: str) -> None:
    migrated(empty_dsn, "jobs")
    found = examined(empty_dsn, schema="jobs", settings=Settings(schema="jobs"))
    assert only(found, "schema", Level.OK)
    assert only(found, "hosts", Level.WARN)
    assert {f.level for check in SCHEMA_CHECKS for f in found[check]} <= {Level.OK, Level.WARN, Level.SKIP}


def test_missing_rows_of_the_mutex_are_reported_with_the_fix(dsn: str, db: Db) -> None:
    db.execute("DELETE FROM pgworkers.mutex WHERE id < 3")
    found = only(examined(dsn), "mutexes", Level.FAIL)
    assert found.what.startswith("3 of 2,048 rows are missing")
    (fix,) = found.fix
    db.execute(shlex.split(fix)[-1].encode())
    assert only(examined(dsn), "mutexes", Level.OK)


def test_a_grant_of_a_role_that_does_not_exist_is_reported(dsn: str, db: Db) -> None:
    with login(db, "granted_here", dsn):
        db.execute("INSERT INTO pgworkers.enqueue_grant (role, queue) VALUES ('granted_here', 'a')")
        assert only(examined(dsn), "grants", Level.OK)
        db.execute("ALTER ROLE granted_here RENAME TO renamed_here")
        try:
            found = only(examined(dsn), "grants", Level.WARN)
        finally:
            db.execute("ALTER ROLE renamed_here RENAME TO granted_here")
    assert "the role granted_here has enqueue grants (1) and does not exist" in found.what
    assert "pgworkers grants remove 1" in found.fix[0]
