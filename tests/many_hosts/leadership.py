"""Three hosts, one leader, killed, frozen or cut off: the time without a leader, and that the old one stays deposed."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from support.cluster import Master, wait_for

from many_hosts.environment import Finding, Site, Stage, within
from many_hosts.network import Network
from pgworkers.settings import Settings

KILLED, SILENT = 5.0, 15.0
PATIENCE = 60.0


def leaders(stage: Stage, network: Network | None, why: str, *, quick: bool) -> list[Finding]:
    with stage.site() as site:
        site.log_statements()
        for _ in range(3):
            site.host("default:1")
        killed = [_killed(site) for _ in range(2 if quick else 6)]
        frozen = [_frozen(site) for _ in range(1 if quick else 4)]
        found = [
            within("kill -9 of the leader of three: another leads within", KILLED, killed),
            within("SIGSTOP of the leader: another leads within", SILENT, frozen),
            _never_again(site, "killed, frozen and woken leaders: duties after the session was lost"),
        ]
    claim = "network of the leader cut silently (router namespace): another leads within"
    if network is None:
        return [*found, Finding(claim, f"{SILENT:g} s", None, False, why)]
    with stage.site() as site:
        site.log_statements()
        _admit(site, stage, network)
        cut = [_cut(site, network) for _ in range(1 if quick else 3)]
        return [
            *found,
            within(claim, SILENT, cut),
            _never_again(site, "cut off and healed leaders: duties after the session was lost"),
        ]


def _killed(site: Site) -> float:
    old = _leader(site)
    took = _takeover(site, old, lambda: old.signal(signal.SIGKILL))
    old.wait()
    site.host("default:1")
    return took


def _frozen(site: Site) -> float:
    old = _leader(site)
    took = _takeover(site, old, lambda: old.signal(signal.SIGSTOP))
    old.signal(signal.SIGCONT)
    _stays_deposed(site, old)
    return took


def _cut(site: Site, network: Network) -> float:
    dsn = f"postgresql://postgres@{network.address}:{site.db.info.port}/{site.db.info.dbname}"
    far = site.host("default:1", enter=network.enter, dsn=dsn)
    wait_for(lambda: site.leader() is far, timeout=PATIENCE, what="the far host leads")
    near = [site.host("default:1") for _ in range(2)]
    time.sleep(Settings().renew_interval)  # nothing has just begun
    took = _takeover(site, far, network.cut)
    network.heal()
    _stays_deposed(site, far)
    for master in (*near, far):
        master.signal(signal.SIGTERM)
    for master in (*near, far):
        master.wait()
    return took


def _admit(site: Site, stage: Stage, network: Network) -> None:
    """The server lets the far host in."""
    hba = stage.data / "pg_hba.conf"
    hba.write_text(f"{hba.read_text()}host all all {network.network} trust\n")
    site.db.execute("SELECT pg_reload_conf()")


def _leader(site: Site) -> Master:
    found = wait_for(site.leader, timeout=PATIENCE, what="somebody leads")
    assert found is not None
    return found


def _takeover(site: Site, old: Master, fault: Callable[[], None]) -> float:
    """Seconds from the fault until another session holds the lock and another host says that it leads."""
    [session] = site.holders()
    began = time.monotonic()
    fault()
    wait_for(
        lambda: site.holders() not in ([], [session]), timeout=PATIENCE, what="another session has the lock"
    )
    wait_for(lambda: site.leader() not in (None, old), timeout=PATIENCE, what="another host leads")
    took = time.monotonic() - began
    assert not site.one("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", session), (
        "the session is gone"
    )
    return took


def _stays_deposed(site: Site, old: Master) -> None:
    """The old leader resumes and steps down; a while later another host still leads, and only that one."""
    wait_for(lambda: "no longer leads" in old.log(), timeout=PATIENCE, what="it knows")
    until = time.monotonic() + 3 * Settings().promote_interval
    while time.monotonic() < until:
        assert len(site.holders()) == 1, site.holders()
        assert site.leader() is not old
        time.sleep(0.1)


def _never_again(site: Site, claim: str) -> Finding:
    """In the server's log: once a session sent a duty, no session before it does so any more."""
    duties = site.duties()
    order: list[int] = []
    returned = 0
    for _, session in duties:
        if session not in order:
            order.append(session)
        elif session != order[-1]:
            returned += 1
    note = f"{len(duties)} duty statements of {len(order)} leading sessions in the log of the server"
    return Finding(claim, "0", str(returned), returned == 0 and len(order) > 1, note)
