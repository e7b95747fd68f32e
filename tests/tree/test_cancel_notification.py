"""A cancel reaches its host by its notification. Forged ones are in tests/security/test_forged_notifications.py."""

from __future__ import annotations

import time

from support.attacked_host import begins
from support.cluster import Cluster


def test_a_cancel_arrives_by_notification_before_the_next_renewal(cluster: Cluster) -> None:
    cluster.start(queues="default:1", PGWORKERS_RENEW_INTERVAL="600s", PGWORKERS_LEASE_DURATION="3600s")
    job = begins(cluster)
    time.sleep(0.1)  # a young host renews every second; this makes it likely that one is not just under way
    cluster.db.execute("SELECT pgworkers.cancel(%s)", [job])
    cluster.until(job, "cancelled")
