"""Three hosts, one leader, killed, frozen or cut off: the time without a leader, and that the old one stays deposed."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from support.cluster import Master, wait_for

from many_hosts.environment import Finding, ProofCluster, ProofServer, within
from many_hosts.network import Network
from pgworkers.settings import Settings

KILLED, SILENT = 5.0, 15.0
PATIENCE = 60.0


def leaders(server: ProofServer, network: Network | None, why: str, *, quick: bool) -> list[Finding]:
    with server.cluster() as cluster:
        cluster.log_statements()
        for _ in range(3):
            cluster.host("default:1")
        killed = [_killed(cluster) for _ in range(2 if quick else 6)]
        frozen = [_frozen(cluster) for _ in range(1 if quick else 4)]
        found = [
            within("kill -9 of the leader of three: another leads within", KILLED, killed),
            within("SIGSTOP of the leader: another leads within", SILENT, frozen),
            _never_again(cluster, "killed, frozen and woken leaders: duties after the session was lost"),
        ]
    claim = "network of the leader cut silently (router namespace): another leads within"
    if network is None:
        return [*found, Finding(claim, f"{SILENT:g} s", None, False, why)]
    with server.cluster() as cluster:
        cluster.log_statements()
        _admit(cluster, server, network)
        cut = [_cut(cluster, network) for _ in range(1 if quick else 3)]
        return [
            *found,
            within(claim, SILENT, cut),
            _never_again(cluster, "cut off and healed leaders: duties after the session was lost"),
        ]


def _killed(cluster: ProofCluster) -> float:
    old = _leader(cluster)
    took = _takeover(cluster, old, lambda: old.signal(signal.SIGKILL))
    old.wait()
    cluster.host("default:1")
    return took


def _frozen(cluster: ProofCluster) -> float:
    old = _leader(cluster)
    took = _takeover(cluster, old, lambda: old.signal(signal.SIGSTOP))
    old.signal(signal.SIGCONT)
    _stays_deposed(cluster, old)
    return took


def _cut(cluster: ProofCluster, network: Network) -> float:
    dsn = f"postgresql://postgres@{network.address}:{cluster.db.info.port}/{cluster.db.info.dbname}"
    far = cluster.host("default:1", enter=network.enter, dsn=dsn)
    wait_for(lambda: cluster.leader() is far, timeout=PATIENCE, what="the far host leads")
    near = [cluster.host("default:1") for _ in range(2)]
    time.sleep(Settings().renew_interval)  # nothing has just begun
    took = _takeover(cluster, far, network.cut)
    network.heal()
    _stays_deposed(cluster, far)
    for master in (*near, far):
        master.signal(signal.SIGTERM)
    for master in (*near, far):
        master.wait()
    return took


def _admit(cluster: ProofCluster, server: ProofServer, network: Network) -> None:
    """The server lets the far host in."""
    hba = server.data / "pg_hba.conf"
    hba.write_text(f"{hba.read_text()}host all all {network.network} trust\n")
    cluster.db.execute("SELECT pg_reload_conf()")


def _leader(cluster: ProofCluster) -> Master:
    found = wait_for(cluster.leader, timeout=PATIENCE, what="somebody leads")
    assert found is not None
    return found


def _takeover(cluster: ProofCluster, old: Master, fault: Callable[[], None]) -> float:
    """Seconds from the fault until another session holds the lock and another host says that it leads."""
    [session] = cluster.holders()
    began = time.monotonic()
    fault()
    wait_for(
        lambda: cluster.holders() not in ([], [session]),
        timeout=PATIENCE,
        what="another session has the lock",
    )
    wait_for(lambda: cluster.leader() not in (None, old), timeout=PATIENCE, what="another host leads")
    took = time.monotonic() - began
    assert not cluster.one("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", session), (
        "the session is gone"
    )
    return took


def _stays_deposed(cluster: ProofCluster, old: Master) -> None:
    """The old leader resumes and steps down; a while later another host still leads, and only that one."""
    wait_for(lambda: "no longer leads" in old.log(), timeout=PATIENCE, what="it knows")
    until = time.monotonic() + 3 * Settings().promote_interval
    while time.monotonic() < until:
        assert len(cluster.holders()) == 1, cluster.holders()
        assert cluster.leader() is not old
        time.sleep(0.1)


def _never_again(cluster: ProofCluster, claim: str) -> Finding:
    """In the server's log: once a session sent a duty, no session before it does so any more."""
    duties = cluster.duties()
    order: list[int] = []
    returned = 0
    for _, session in duties:
        if session not in order:
            order.append(session)
        elif session != order[-1]:
            returned += 1
    note = f"{len(duties)} duty statements of {len(order)} leading sessions in the log of the server"
    return Finding(claim, "0", str(returned), returned == 0 and len(order) > 1, note)
