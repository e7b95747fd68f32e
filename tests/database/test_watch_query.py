"""Watching all hosts and their workers."""

from __future__ import annotations

import json

from support.database_host import DatabaseHost

from pgworkers.job.hosts import renew_lease
from pgworkers.job.queries import overview


def test_hosts_workers_and_what_their_jobs_say(host: DatabaseHost) -> None:
    job = host.enqueue_and_claim()
    host.conn.execute(
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
    host.execute(renew_lease(host.id, [job.fence], "running", json.dumps(told), 1.5, 8))
    hosts, workers = host.execute(overview(10, should_notify_hosts=False))
    [shown] = [one for one in hosts if one.id == host.id]
    assert (shown.state, shown.load, shown.cores, shown.lost) == ("running", 1.5, 8, False)
    mine = [one for one in workers if one.host == host.id]
    assert [(one.slot, one.job, one.cpu, one.left, one.progress) for one in mine] == [
        (0, job.id, 12.5, 3.5, {"done": 1, "total": 4}),
        (1, None, None, None, None),
    ]
    assert len(host.execute(overview(1, should_notify_hosts=False))[1]) == 1


def test_hosts_are_notified_of_a_watching_session(host: DatabaseHost) -> None:
    host.listen()
    host.execute(overview(10, should_notify_hosts=False))
    assert host.notifications() == []
    host.execute(overview(10, should_notify_hosts=True))
    assert host.notifications() == [("pgworkers", "watch:")]
