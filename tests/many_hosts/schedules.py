"""Schedules: each tick makes one job, whichever host leads; and the policies for ticks that were due while no host ran."""

from __future__ import annotations

import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

from support.cluster import wait_for
from support.ledger import read
from support.schedule_leader import Leader

from many_hosts.environment import PACKAGE, Finding, ProofCluster, ProofServer

SECOND = timedelta(seconds=1)
EVERY = 5.0  # a leader is killed so often
BEAT = 'app.schedule("* * * * * *", name="beat", missed="all")(work)'
#: Replaces leader_try.sql: every host gets a term, without the lock and the row of `leader`. Same columns as the original.
EVERY_HOST_LEADS = """WITH flagged AS (
    UPDATE pgworkers.host h SET leader = true WHERE h.id = %(host)s::uuid RETURNING h.id
)
SELECT 1::bigint, true, false, NULL::integer, NULL::timestamptz, false, (SELECT count(*) FROM flagged)
"""
#: Replaces leader_renew.sql: no host loses its term.
EVERY_TERM_IS_RENEWED = """WITH flagged AS (
    UPDATE pgworkers.host h SET leader = true WHERE h.id = %(host)s::uuid AND NOT h.leader RETURNING h.id
)
SELECT true, (SELECT count(*) FROM flagged)
"""
#: Adds a pause between the read of due schedules and the fire, so that two hosts fire at the same time.
LATE = (" WHERE NOT s.paused", " CROSS JOIN (SELECT pg_sleep(0.3)) late\n WHERE NOT s.paused")
GUARDS = (" AND s.revision = a.revision", " AND s.revision = h.revision")


def ticks(server: ProofServer, *, quick: bool) -> list[Finding]:
    period = 20.0 if quick else 120.0
    found = []
    with server.cluster() as cluster:
        claim = f"a tick each second, the leader of three killed every 5 s for {period:g} s"
        found += _each_once(cluster, claim, period, PACKAGE)
    with server.cluster() as cluster:
        claim = f"the same for {period:g} s with no lock (all lead; 0.3 s from looking to firing), one killed every 5 s"
        found += _each_once(cluster, claim, period, mutant(cluster.directory, guards=True))
    with server.cluster() as cluster:
        found.append(_broken_twin(cluster, 20.0))
    return found


def mutant(directory: Path, *, guards: bool) -> Path:
    """A copy of the package without the leader's lock; without `guards` also without the guard of each tick."""
    package = directory / "mutant" / "pgworkers"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in (("leader_try.sql", EVERY_HOST_LEADS), ("leader_renew.sql", EVERY_TERM_IS_RENEWED)):
        assert (package / "job" / name).exists(), name
        (package / "job" / name).write_text(text)
    due = package / "schedule" / "fire_due.sql"
    assert LATE[0] in due.read_text(), due
    due.write_text(due.read_text().replace(*LATE))
    if not guards:
        fire = package / "schedule" / "fire.sql"
        text = fire.read_text()
        for guard in GUARDS:
            assert guard in text, guard
            text = text.replace(guard, "")
        fire.write_text(text)
    return package


def _each_once(cluster: ProofCluster, claim: str, period: float, package: Path) -> list[Finding]:
    draw = random.Random(4)
    cluster.declare(BEAT)
    cluster.log_statements()
    for _ in range(3):
        cluster.host("default:1", package=package)
    wait_for(lambda: cluster.one("SELECT count(*) FROM pgworkers.tick"), timeout=60, what="the first tick")
    kills, most_leaders, began = 0, 0, time.monotonic()
    while (kills + 1) * EVERY <= period:
        time.sleep(max(0.05, began + (kills + 1) * EVERY - time.monotonic()))
        leading = {r[0] for r in cluster.db.execute("SELECT pid FROM pgworkers.host WHERE leader").fetchall()}
        there = [master for master in cluster.living() if master.pid in leading]
        most_leaders = max(most_leaders, len(there))
        if not there:
            assert time.monotonic() < began + 3 * period, "no host leads"
            continue  # between two leaders: there is no leader to kill
        victim = draw.choice(there)
        victim.signal(signal.SIGKILL)
        victim.wait()
        kills += 1
        cluster.host("default:1", package=package, wait=False)
    time.sleep(EVERY)
    cluster.command("schedules", "pause", "beat")
    paused = datetime.now(UTC)
    cluster.until_all_ended(timeout=150)
    wrong, expected = _compare(cluster, paused)
    ran = {entry.job for entry in read(cluster.ledger) if entry.kind == "END"}
    made = {row[0] for row in cluster.db.execute("SELECT id FROM pgworkers.jobs").fetchall()}
    sessions = len({session for _, session in cluster.duties()})
    note = (
        f"{kills} leaders killed; at most {most_leaders} hosts led at once; {sessions} sessions sent duties; "
        f"{len(ran)} of {len(made)} jobs ran to their end"
    )
    ok = not wrong and kills > 1 and ran == made
    return [
        Finding(
            f"{claim}: each tick exactly one job", "0 wrong", f"{len(wrong)} of {expected} wrong", ok, note
        )
    ]


def _compare(cluster: ProofCluster, paused: datetime) -> tuple[list[str], int]:
    """Against a calendar that only counts seconds. The last one or two before the pause may be still unfired."""
    created: datetime = cluster.one("SELECT created_at FROM pgworkers.schedule")
    found = Counter(
        datetime.fromisoformat(row[0])
        for row in cluster.db.execute(
            "SELECT meta ->> 'tick' FROM pgworkers.jobs WHERE meta ->> 'schedule' = 'beat'"
        )
    )
    last = max(found)
    first = datetime.fromtimestamp(int(created.timestamp()) + 1, UTC)
    expected = [first + n * SECOND for n in range(int((last - first).total_seconds()) + 1)]
    wrong = [f"{at}: {found[at]} jobs" for at in expected if found[at] != 1]
    wrong += [f"{at}: not in the calendar" for at in found.keys() - set(expected)]
    if last < paused - 5 * SECOND:
        wrong.append(f"nothing after {last}, paused at {paused}")
    return wrong, len(expected)


def _broken_twin(cluster: ProofCluster, period: float) -> Finding:
    """Without lock, revision and primary key the same check must find double ticks, or it proves nothing."""
    cluster.declare(BEAT)
    cluster.db.execute("ALTER TABLE pgworkers.tick DROP CONSTRAINT tick_pkey")
    package = mutant(cluster.directory, guards=False)
    for _ in range(3):
        cluster.host("default:1", package=package)
    time.sleep(period)
    cluster.command("schedules", "pause", "beat")
    wrong, expected = _compare(cluster, datetime.now(UTC))
    return Finding(
        "broken twin: without lock and guards the check finds double ticks",
        "> 0 wrong",
        f"{len(wrong)} of {expected} wrong",
        len(wrong) > 0,
    )


def downtime(server: ProofServer, *, quick: bool) -> list[Finding]:
    with server.cluster() as cluster:
        found = [_ten_minutes(cluster)]
    with server.cluster() as cluster:
        found += _three_years(cluster, 5.0 if quick else 20.0)
    return found


def _ten_minutes(cluster: ProofCluster) -> Finding:
    """Minute ticks, the last of them twenty seconds before the hosts come back."""
    second = int(cluster.one("SELECT extract(second FROM now() - interval '20 s')::integer")) % 60
    for policy in ("all", "latest", "skip"):
        cluster.declare(
            f'app.schedule("{second} * * * * *", name="{policy}", missed="{policy}", paused=True)(work)'
        )
    first = cluster.host("default:1")
    wait_for(lambda: cluster.one("SELECT count(*) FROM pgworkers.schedule") == 3, what="declared")
    first.terminate()
    cluster.db.execute(
        "UPDATE pgworkers.schedule SET paused = false, planned_until = now() - interval '10 min', due_at = '-infinity'"
    )
    cluster.host("default:1")
    wait_for(
        lambda: cluster.one("SELECT count(*) FROM pgworkers.schedule WHERE due_at > now()") == 3,
        what="all fired",
    )
    cluster.until_all_ended()
    started = [entry.job for entry in read(cluster.ledger) if entry.kind == "START"]
    ticked: dict[str, list[tuple[datetime, int]]] = {"all": [], "latest": [], "skip": []}
    for name, at, job in cluster.db.execute(
        "SELECT schedule, at, job_id FROM pgworkers.tick ORDER BY job_id"
    ).fetchall():
        ticked[name].append((at, job))
    order = [job for job in started if job in {job for _, job in ticked["all"]}]
    minutes = [at for at, _ in ticked["all"]]
    in_order = order == [job for _, job in ticked["all"]] and minutes == [
        minutes[0] + n * 60 * SECOND for n in range(len(minutes))
    ]
    counts = {name: len(found) for name, found in ticked.items()}
    return Finding(
        "no host for 10 minutes of minute ticks: all in order, latest, skip",
        "10, 1, 0",
        f"{counts['all']}{' in order' if in_order else ' NOT in order'}, {counts['latest']}, {counts['skip']}",
        in_order and counts == {"all": 10, "latest": 1, "skip": 0},
        "the schedules' planned_until was set back by 10 minutes while no host ran",
    )


def _three_years(cluster: ProofCluster, period: float) -> list[Finding]:
    for policy in ("all", "latest", "skip"):
        cluster.declare(f'app.schedule("* * * * * *", name="{policy}", missed="{policy}", paused=True)(work)')
    first = cluster.host("default:2")
    wait_for(lambda: cluster.one("SELECT count(*) FROM pgworkers.schedule") == 3, what="declared")
    idle = _cpu_of(first.pid, period)
    first.terminate()
    back = (
        "UPDATE pgworkers.schedule SET paused = false, planned_until = now() - interval '3 years', due_at = '-infinity',"
        " revision = revision + 1"
    )
    found = []
    leader = Leader(cluster.dsn)
    try:
        leader.fire()  # connected, and every module read
        cluster.db.execute(back)
        began = time.process_time()
        made = leader.fire()
        spent = time.process_time() - began
    finally:
        leader.close()
    skipped = cluster.one("SELECT max(skipped) FROM pgworkers.schedule")
    found.append(
        Finding(
            "3 years of a tick each second: CPU of one pass over three such schedules",
            "0.1 s",
            f"{spent * 1000:.1f} ms",
            spent < 0.1 and made <= 102 + 12 and skipped > 90_000_000,
            f"{made} jobs made (100 a pass of the day that `all` goes back), {skipped:,} ticks counted, not walked",
        )
    )
    cluster.db.execute("UPDATE pgworkers.schedule SET paused = name = 'all'")
    cluster.db.execute("DELETE FROM pgworkers.job")
    cluster.db.execute(back.replace("paused = false, ", "") + " WHERE name <> 'all'")
    master = cluster.host("default:2")
    busy = _cpu_of(master.pid, period)
    for name in ("latest", "skip"):
        cluster.command("schedules", "pause", name)
    found.append(
        Finding(
            f"the same in a master: its CPU over {period:g} s (an idle one: {idle:.2f} s)",
            "idle + 1 s",
            f"{busy:.2f} s",
            busy < idle + 1.0,
            "latest and skip, which then fire every second",
        )
    )
    return found


def _cpu_of(pid: int, period: float) -> float:
    def spent() -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100.0

    before = spent()
    time.sleep(period)
    return spent() - before


def nights(server: ProofServer, *, quick: bool) -> list[Finding]:
    """The table of both nights is a unit test; it is run here so that the page is whole."""
    del server, quick
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "tests/unit/test_schedule_zones.py"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    passed = re.search(r"(\d+) passed", done.stdout)
    return [
        Finding(
            "both nights in Berlin, New York, Lord Howe, Apia against an independent calendar",
            "all",
            f"{passed[1] if passed else 0} cases equal",
            done.returncode == 0,
            "tests/unit/test_schedule_zones.py",
        )
    ]
