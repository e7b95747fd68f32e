"""Watching all hosts and their workers."""

from __future__ import annotations

import json

from support.database_host import Desk

from pgworkers.job.hosts import renew_lease
from pgworkers.job.queries import overview


def test_hosts_workers_and_what_their_jobs_say(desk: Desk) -> None:
    job = desk.run_one()
    desk.conn.execute(
        'UPDATE pgworkers.job SET progress = \'{"done": 1, "total": 4}\' WHERE id = %s', (job.id,)
    )
    told = [
        {
            "queue": "a",
            "slot": 0,
            "pid": 7,
            "state": "busy",
            "job_id": job.id,
            "task": "t",
            "cpu": 12.5,
            "seconds_left": 3.5,
        },
        {"queue": "a", "slot": 1, "pid": 8, "state": "idle"},
    ]
    desk.execute(renew_lease(desk.host, [job.fence], "running", json.dumps(told), 1.5, 8))
    hosts, workers = desk.execute(overview(10, should_notify_hosts=False))
    [host] = [one for one in hosts if one.id == desk.host]
    assert (host.state, host.load, host.cores, host.is_lost) == ("running", 1.5, 8, False)
    mine = [one for one in workers if one.host == desk.host]
    assert [(one.slot, one.job, one.cpu, one.left, one.progress) for one in mine] == [
        (0, job.id, 12.5, 3.5, {"done": 1, "total": 4}),
        (1, None, None, None, None),
    ]
    assert len(desk.execute(overview(1, should_notify_hosts=False))[1]) == 1


def test_hosts_hear_that_somebody_looks(desk: Desk) -> None:
    desk.listen()
    desk.execute(overview(10, should_notify_hosts=False))
    assert desk.notices() == []
    desk.execute(overview(10, should_notify_hosts=True))
    assert desk.notices() == [("pgworkers", "watch:")]
