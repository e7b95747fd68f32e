"""Firing: missed ticks, overlap, exactly once, and what one bad schedule may not do to the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import psycopg
import pytest
from support.schedule_leader import Leader

from pgworkers.doctor import cluster
from pgworkers.events import ScheduleFailed, TickFired, TicksMissed
from pgworkers.job import maintenance
from pgworkers.schedule import definitions, fire
from pgworkers.schedule.plan import plan_ticks
from pgworkers.specs import ScheduleSpec

Db = psycopg.Connection[Any]
NewLeader = Callable[[], Leader]


@pytest.fixture
def new_leader(dsn: str) -> Iterator[NewLeader]:
    made: list[Leader] = []

    def make() -> Leader:
        made.append(Leader(dsn))
        return made[-1]

    yield make
    for leader in made:
        leader.close()


@pytest.fixture
def leader(new_leader: NewLeader) -> Leader:
    return new_leader()


def back(db: Db, name: str, away: str, scope: str = "") -> None:
    """As if no host had run for that long."""
    db.execute(
        """UPDATE pgworkers.schedule SET planned_until = now() - %s::interval, due_at = '-infinity'
            WHERE (name, scope) = (%s, %s)""",
        [away, name, scope],
    )


def clock(db: Db) -> datetime:
    row = db.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None
    found: datetime = row[0]
    return found


def considered(db: Db) -> datetime:
    row = db.execute("SELECT planned_until FROM pgworkers.schedule").fetchone()
    assert row is not None
    found: datetime = row[0]
    return found


def jobs(db: Db) -> list[tuple[str, datetime]]:
    """(schedule, tick) of every live job, in the order in which they will be claimed."""
    rows = db.execute("SELECT meta ->> 'schedule', meta ->> 'tick' FROM pgworkers.job ORDER BY id").fetchall()
    return [(name, datetime.fromisoformat(at).astimezone(UTC)) for name, at in rows]


def minutely(db: Db, name: str = "m", **more: Any) -> ScheduleSpec:
    """Every minute, and last twenty seconds ago: late, and far from the next, whenever the test runs."""
    row = db.execute("SELECT extract(second FROM now() - interval '20 s')::integer % 60").fetchone()
    assert row is not None
    return ScheduleSpec(name, "t", cron=f"{row[0]} * * * * *", **more)


@pytest.mark.parametrize(("missed", "expected"), [("all", 10), ("latest", 1), ("skip", 0)])
def test_ten_minutes_away(db: Db, leader: Leader, missed: str, expected: int) -> None:
    leader.sync(minutely(db, "m", missed=missed))
    assert leader.fire() == 0, "the first registration counts from its creation"
    back(db, "m", "10 minutes")
    assert leader.fire() == expected
    assert leader.fire() == 0
    row = db.execute("SELECT planned_until FROM pgworkers.schedule").fetchone()
    assert row is not None
    newest_first = [("m", row[0] - timedelta(minutes=n)) for n in range(expected)]
    assert jobs(db) == newest_first[::-1]
    skipped = sum(fact.count for fact in leader.facts(TicksMissed))
    assert skipped == 10 - expected
    assert db.execute("SELECT skipped FROM pgworkers.schedule").fetchone() == (skipped,)


def test_three_years_of_seconds_are_one_job(db: Db, leader: Leader) -> None:
    leader.sync(ScheduleSpec("s", "t", cron="* * * * * *"))
    leader.fire()
    db.execute("DELETE FROM pgworkers.job")
    db.execute("DELETE FROM pgworkers.tick")  # of this very second, if one began since the sync
    before = clock(db)
    back(db, "s", "1095 days")
    assert leader.fire() == 1
    after = clock(db)
    (skipped,) = leader.facts(TicksMissed)[-1:]
    assert abs(skipped.count - 1095 * 86400) <= 1 + (after - before).total_seconds()
    row = db.execute("SELECT planned_until, next_at FROM pgworkers.schedule").fetchone()
    assert row is not None
    assert before - timedelta(seconds=2) < row[0] <= after
    assert before < row[1] < after + timedelta(seconds=2)


def test_all_is_bounded_by_the_window_and_by_the_pass(db: Db, leader: Leader) -> None:
    leader.sync(minutely(db, "s", missed="all", missed_window=4 * 3600.0))
    leader.fire()
    back(db, "s", "3 days")
    assert [leader.fire(), leader.fire()] == [100, 100]
    assert [leader.fire(), leader.fire()] == [40, 0]
    found = [at for _, at in jobs(db)]
    assert found == sorted(found)
    assert len(set(found)) == len(found)
    assert sum(fact.count for fact in leader.facts(TicksMissed)) == 3 * 24 * 60 - 4 * 60


def test_ticks_on_time_are_all_fired_even_if_a_pass_is_slow(db: Db, leader: Leader) -> None:
    leader.sync(ScheduleSpec("s", "t", cron="* * * * * *", missed="latest"))
    quick = False
    while not quick:  # on a busy machine the test itself may be later than "on time" allows: then once more
        db.execute("DELETE FROM pgworkers.tick")
        before = clock(db)
        back(db, "s", "3.5 seconds")
        since, made, until = considered(db), leader.fire(), considered(db)
        quick = clock(db) - before < timedelta(seconds=1.4)
    ticks = int(until.timestamp()) - int(since.timestamp())
    assert made == ticks >= 3


def test_three_sessions_without_any_lock_fire_each_tick_once(db: Db, new_leader: NewLeader) -> None:
    leaders = [new_leader() for _ in range(3)]
    leaders[0].sync(
        minutely(db, "s", missed="all"),
        ScheduleSpec("e", "t", every=60.0, missed="all"),
    )
    for _ in range(5):
        for name in ("s", "e"):
            back(db, name, "30 minutes")
        start = threading.Barrier(3)
        made: list[int] = []

        def work(leader: Leader, start: threading.Barrier = start, made: list[int] = made) -> None:
            start.wait()
            made.append(leader.fire())

        threads = [threading.Thread(target=work, args=[leader]) for leader in leaders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    rows = db.execute(
        "SELECT meta ->> 'schedule', meta ->> 'tick', count(*) FROM pgworkers.job GROUP BY 1, 2"
    ).fetchall()
    assert {row[2] for row in rows} == {1}
    assert len(rows) in range(60, 66)
    assert db.execute("SELECT count(*) FROM pgworkers.tick").fetchone() == (len(rows),)


def planned(leader: Leader) -> list[fire.Firing]:
    found = leader.execute(fire.due_schedules(10))
    return [fire.Firing.of(due, plan_ticks(due.timing, due.planned_until, due.now)) for due in found]


def test_a_stale_plan_does_nothing_and_neither_would_it_without_the_revision(
    db: Db, new_leader: NewLeader
) -> None:
    """The primary key alone keeps a tick from making two jobs: the guard's twin is broken and it still holds."""
    one, two = new_leader(), new_leader()
    one.sync(minutely(db))
    back(db, "m", "1 minute")
    mine, theirs = planned(one), planned(two)
    assert len(one.execute(fire.fire_schedules(mine)).ticks) == 1
    assert two.execute(fire.fire_schedules(theirs)) == fire.FireResult({}, [])
    row = db.execute("SELECT revision FROM pgworkers.schedule").fetchone()
    assert row is not None
    forged = [
        fire.Firing("m", "", row[0], theirs[0].ticks, (0.0,), theirs[0].planned_until, theirs[0].next_tick)
    ]
    assert two.execute(fire.fire_schedules(forged)).ticks == []
    assert len(jobs(db)) == 1
    db.execute("ALTER TABLE pgworkers.tick DROP CONSTRAINT tick_pkey")
    again = [
        fire.Firing(
            "m", "", row[0] + 1, theirs[0].ticks, (0.0,), theirs[0].planned_until, theirs[0].next_tick
        )
    ]
    assert len(two.execute(fire.fire_schedules(again)).ticks) == 1, (
        "without the key the same tick makes a second job"
    )
    assert len(jobs(db)) == 2


CHANGES: dict[str, Callable[[Leader, ScheduleSpec], Any]] = {
    "paused": lambda leader, _: leader.execute(definitions.pause_schedule("m")),
    "removed": lambda leader, _: leader.execute(definitions.remove_schedule("m")),
    "changed": lambda leader, _: leader.sync(ScheduleSpec("m", "t", cron="0 0 1 1 *")),
    "other arguments": lambda leader, spec: leader.sync(msgspec.structs.replace(spec, args={"a": 1})),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_between_plan_and_fire_is_not_fired(db: Db, new_leader: NewLeader, change: str) -> None:
    one, two = new_leader(), new_leader()
    spec = minutely(db)
    one.sync(spec)
    back(db, "m", "10 minutes")
    mine = planned(one)
    assert len(mine[0].ticks) == 1
    CHANGES[change](two, spec)
    assert one.execute(fire.fire_schedules(mine)) == fire.FireResult({}, [])
    assert jobs(db) == []
    # what is due stays due; a new calendar counts from the change
    assert one.fire() == (1 if change == "other arguments" else 0)


def test_a_change_that_waits_for_the_row_wins_over_the_firing_that_comes_after(
    dsn: str, db: Db, new_leader: NewLeader
) -> None:
    """The pause is not committed when the firing starts: the row is locked, so it is passed by, now and later."""
    leader = new_leader()
    leader.sync(minutely(db), minutely(db, "other"))
    for name in ("m", "other"):
        back(db, name, "10 minutes")
    with psycopg.connect(dsn) as operator:
        operator.execute(
            "UPDATE pgworkers.schedule SET paused = true, revision = revision + 1 WHERE name = 'm'"
        )
        assert leader.fire() == 1, "the other one is not held up"
        operator.commit()
    assert leader.fire() == 0
    assert [name for name, _ in jobs(db)] == ["other"]


def test_a_new_calendar_counts_from_the_change(db: Db, leader: Leader) -> None:
    leader.sync(ScheduleSpec("m", "t", cron="0 0 1 1 *"))
    back(db, "m", "1 hour")
    assert leader.sync(minutely(db)) == ["m"]
    row = db.execute("SELECT now() - planned_until < interval '1 minute' FROM pgworkers.schedule").fetchone()
    assert row == (True,)
    made = leader.fire()
    considered = db.execute("SELECT changed_at FROM pgworkers.schedule").fetchone()
    assert considered is not None
    assert all(at > considered[0] for _, at in jobs(db))
    assert made == len(jobs(db))


def test_the_clock_of_the_database_jumps_back(db: Db, leader: Leader) -> None:
    """As if it were ten minutes earlier: nothing is repeated."""
    leader.sync(minutely(db))
    back(db, "m", "1 minute")
    assert leader.fire() == 1
    db.execute(
        "UPDATE pgworkers.schedule SET planned_until = planned_until + interval '10 min', due_at = '-infinity'"
    )
    assert leader.fire() == 0
    assert db.execute("SELECT due_at > now() + interval '9 min' FROM pgworkers.schedule").fetchone() == (
        True,
    )


def hold(db: Db) -> int:
    """The newest job runs on a host that is alive."""
    db.execute(
        """INSERT INTO pgworkers.host (id, name, pid, app, version, queues, lease)
           VALUES ('00000000-0000-0000-0000-000000000001', 'box', 1, 'app.py', '1', '{}', '1 h') ON CONFLICT DO NOTHING"""
    )
    row = db.execute(
        """UPDATE pgworkers.job SET state = 'running', host = '00000000-0000-0000-0000-000000000001', lease = 1, attempt = 1
            WHERE id = (SELECT max(id) FROM pgworkers.job) RETURNING id"""
    ).fetchone()
    assert row is not None
    found: int = row[0]
    return found


def test_overlap_skip(db: Db, leader: Leader) -> None:
    leader.sync(minutely(db, "m", overlap="skip", missed="all"))
    back(db, "m", "3 minutes")
    assert leader.fire() == 1, "the oldest makes a job and the others find it live"
    assert [fact.reason for fact in leader.facts(TickFired)] == [None, "overlap", "overlap"]
    db.execute("DELETE FROM pgworkers.tick")
    back(db, "m", "1 minute")
    assert leader.fire() == 0
    assert db.execute("SELECT outcome, reason FROM pgworkers.ticks").fetchall() == [("skipped", "overlap")]
    db.execute("DELETE FROM pgworkers.job")
    db.execute("DELETE FROM pgworkers.tick")
    back(db, "m", "1 minute")
    assert leader.fire() == 1


def test_overlap_replace(db: Db, leader: Leader) -> None:
    leader.sync(minutely(db, "m", overlap="replace", missed="all"))
    back(db, "m", "2 minutes")
    assert leader.fire() == 1
    waiting = db.execute("SELECT id FROM pgworkers.job").fetchall()
    db.execute("DELETE FROM pgworkers.tick")
    back(db, "m", "1 minute")
    assert leader.fire() == 1
    assert db.execute("SELECT id, state::text FROM pgworkers.history").fetchall() == [
        (waiting[0][0], "cancelled")
    ]
    running = hold(db)
    db.execute("DELETE FROM pgworkers.tick")
    back(db, "m", "1 minute")
    assert leader.fire() == 1
    rows = db.execute(
        "SELECT id, state::text, cancel_at IS NOT NULL FROM pgworkers.job ORDER BY id"
    ).fetchall()
    assert rows[0] == (running, "running", True)
    assert rows[1][1:] == ("ready", False)


def test_overlap_allow(db: Db, leader: Leader) -> None:
    leader.sync(minutely(db))
    for _ in range(2):
        db.execute("DELETE FROM pgworkers.tick")
        back(db, "m", "1 minute")
        assert leader.fire() == 1
    assert len(jobs(db)) == 2


def test_scopes_have_their_own_ticks(db: Db, leader: Leader) -> None:
    spec = minutely(
        db,
        "m",
        scope_kind="tenant",
        args={"x": 1},
        scopes={"a": {"who": "a"}, "b": {"who": "b"}},
    )
    leader.sync(spec)
    db.execute("SELECT pgworkers.add_scope('m', 'c', '{\"who\": \"c\", \"x\": 2}')")
    for scope in ("", "a", "b", "c"):
        back(db, "m", "1 minute", scope)
    db.execute("UPDATE pgworkers.schedule SET due_at = pgworkers.far_future() WHERE scope = ''")
    assert leader.execute(definitions.pause_schedule("m", "b")) == [("m", "b")]
    assert leader.fire() == 2
    rows = db.execute("SELECT args, meta - 'tick' FROM pgworkers.job ORDER BY meta ->> 'scope'").fetchall()
    assert rows == [
        ({"x": 1, "who": "a"}, {"schedule": "m", "scope": "a", "scope_kind": "tenant"}),
        ({"x": 2, "who": "c"}, {"schedule": "m", "scope": "c", "scope_kind": "tenant"}),
    ]
    assert db.execute("SELECT scope FROM pgworkers.tick ORDER BY 1").fetchall() == [("a",), ("c",)]
    assert db.execute("SELECT pgworkers.remove_scope('m', 'c')").fetchone() == (True,)
    db.execute("DELETE FROM pgworkers.tick")
    for scope in ("a", "b"):
        back(db, "m", "5 minutes", scope)
    assert leader.fire() == 1, "a only: b is paused and c is gone"


def test_one_bad_schedule_never_blocks_the_others(db: Db, leader: Leader) -> None:
    names = ["cron", "zone", "args", "good"]
    leader.sync(*(minutely(db, name) for name in names))
    db.execute("UPDATE pgworkers.schedule SET cron = '99 * * * *' WHERE name = 'cron'")
    db.execute("UPDATE pgworkers.schedule SET tz = 'Mars/Olympus' WHERE name = 'zone'")
    db.execute("UPDATE pgworkers.schedule SET options = '{\"priority\": \"high\"}' WHERE name = 'args'")
    for name in names:
        back(db, name, "1 minute")
    assert leader.fire() == 1
    assert [name for name, _ in jobs(db)] == ["good"]
    seen = {view.name: view for view in leader.execute(definitions.list_schedules())}
    assert {name: view.state for name, view in seen.items()} == {
        "cron": "failing",
        "zone": "failing",
        "args": "failing",
        "good": "active",
    }
    assert "99" in (seen["cron"].error or "")
    assert "Mars/Olympus" in (seen["zone"].error or "")
    assert "high" in (seen["args"].error or "")
    assert len(leader.facts(ScheduleFailed)) == 3
    leader.fire()
    assert len(leader.facts(ScheduleFailed)) == 3, "not again at once"
    leader.sync(minutely(db, "cron"))
    back(db, "cron", "1 minute")
    db.execute("DELETE FROM pgworkers.tick")
    assert leader.fire() == 1
    assert {view.name: view.error for view in leader.execute(definitions.list_schedules())}["cron"] is None


def test_jitter_moves_the_job_and_not_the_tick(db: Db, leader: Leader) -> None:
    leader.sync(minutely(db, "m", jitter=3600.0))
    back(db, "m", "1 minute")
    assert leader.fire() == 1
    row = db.execute(
        """SELECT t.at = date_trunc('second', t.at), j.run_at >= t.at, j.run_at < t.at + interval '1 h', j.run_at,
                  (j.state = 'scheduled') = (j.run_at > t.fired_at)
             FROM pgworkers.tick t JOIN pgworkers.job j ON j.id = t.job_id"""
    ).fetchone()
    assert row is not None
    assert row[:3] == (True, True, True)
    assert row[4]


def test_start_and_end(db: Db, leader: Leader) -> None:
    now = datetime.now(UTC)
    leader.sync(
        minutely(db, "later", start=now + timedelta(days=1)),
        minutely(db, "over", end=now - timedelta(minutes=5), missed="all"),
    )
    for name in ("later", "over"):
        back(db, name, "10 minutes")
    made = leader.fire()
    assert made == len(jobs(db))
    assert {name for name, _ in jobs(db)} == {"over"}
    assert all(at < now - timedelta(minutes=5) for _, at in jobs(db))
    seen = {view.name: view for view in leader.execute(definitions.list_schedules())}
    assert (seen["later"].state, seen["over"].state) == ("active", "ended")
    assert seen["later"].next_at is not None
    assert seen["later"].next_at >= now + timedelta(days=1)


def test_a_schedule_that_never_fires_again_is_due_at_no_time(db: Db, leader: Leader) -> None:
    ended = minutely(db, "ended", end=datetime.now(UTC) - timedelta(minutes=5), missed="skip")
    leader.sync(ended, minutely(db, "scoped", scope_kind="tenant"))
    leader.fire()
    for name in ("ended", "scoped"):
        assert leader.execute(definitions.pause_schedule(name)) == [(name, "")]
        assert leader.execute(definitions.resume_schedule(name)) == [(name, "")]
    leader.fire()
    never = db.execute("SELECT name FROM pgworkers.schedule WHERE due_at = pgworkers.far_future() ORDER BY 1")
    assert never.fetchall() == [("ended",), ("scoped",)]
    assert leader.execute(maintenance.due_duties())["fire_schedules"] is None, "the leader sleeps"
    assert [one.next_tick_at for one in leader.execute(definitions.schedule_times(10))] == [None, None]
    assert [view.next_at for view in leader.execute(definitions.list_schedules())] == [None, None]
    assert [one.name for one in leader.execute(cluster.schedule_status()) if one.overdue_seconds < 0] == [
        "ended"
    ]


def test_the_job_has_what_the_task_and_the_schedule_say(db: Db, leader: Leader) -> None:
    db.execute("INSERT INTO pgworkers.task VALUES ('t', 'reports', 5, 7, 4)")
    leader.sync(
        minutely(db, "plain"),
        minutely(db, "own", queue="q", priority=9, expires=60.0, deadline=600.0, reentrant=False),
    )
    for name in ("plain", "own"):
        back(db, name, "1 minute")
    db.execute("LISTEN pgworkers")
    assert leader.fire() == 2
    rows = db.execute(
        """SELECT queue, priority, max_attempts, max_crashes, expires_at - run_at, deadline_at - run_at
             FROM pgworkers.job ORDER BY queue"""
    ).fetchall()
    assert rows == [
        ("q", 9, 1, 1, timedelta(minutes=1), timedelta(minutes=10)),
        ("reports", 5, 7, 4, None, None),
    ]
    assert {note.payload for note in db.notifies(timeout=0)} == {"ready:q", "ready:reports"}


def test_many_due_at_once(db: Db, leader: Leader) -> None:
    leader.sync(minutely(db, "m", scope_kind="tenant", scopes={f"s{n}": {} for n in range(1234)}))
    db.execute(
        "UPDATE pgworkers.schedule SET planned_until = now() - interval '1 min', due_at = '-infinity' WHERE scope <> ''"
    )
    assert leader.fire() == 1234
    row = db.execute("SELECT count(DISTINCT scope), count(*) FROM pgworkers.tick").fetchone()
    assert row == (1234, 1234)
