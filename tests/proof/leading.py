"""Three hosts and one leader: killed, frozen, cut off. How long nobody leads, and that the old one does nothing more."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from support.tree import Master, wait_for

from pgworkers.settings import Settings
from proof.network import Network
from proof.stage import Finding, Site, Stage, within

KILLED, SILENT = 5.0, 15.0
PATIENCE = 60.0


def leaders(stage: Stage, network: Network | None, why: str, *, quick: bool) -> list[Finding]:
    with stage.site() as site:
        site.log_statements()
        for _ in range(3):
            site.host("default:1")
        wait_for(site.leader, timeout=PATIENCE)
        killed, frozen = [], []
        for _ in range(2 if quick else 6):
            old = _leader(site)
            killed.append(_takeover(site, old, lambda old=old: old.signal(signal.SIGKILL)))
            old.wait()
            site.host("default:1")
        for _ in range(1 if quick else 4):
            old = _leader(site)
            frozen.append(_takeover(site, old, lambda old=old: old.signal(signal.SIGSTOP)))
            old.signal(signal.SIGCONT)
            wait_for(lambda old=old: "no longer leads" in old.log(), timeout=PATIENCE, what="it knows")
            _steady(site, old)
        found = [
            within("kill -9 of the leader of three: another leads within", KILLED, killed),
            within("SIGSTOP of the leader: another leads within", SILENT, frozen),
            _never_again(site, "killed, frozen and woken leaders: duties after the session was lost"),
        ]
    if network is None:
        return [
            *found,
            Finding("network of the leader cut silently: another leads within", "15 s", None, False, why),
        ]
    return found + _cut(stage, network, 1 if quick else 3)


def _cut(stage: Stage, network: Network, times: int) -> list[Finding]:
    took = []
    with stage.site() as site:
        site.log_statements()
        rule = f"host all all {network.network} trust\n"
        hba = stage.data / "pg_hba.conf"
        if rule not in hba.read_text():
            hba.write_text(hba.read_text() + rule)
            site.db.execute("SELECT pg_reload_conf()")
        dsn = f"postgresql://postgres@{network.address}:{site.db.info.port}/{site.db.info.dbname}"
        for _ in range(times):
            far = site.host("default:1", enter=network.enter, dsn=dsn)
            wait_for(lambda far=far: site.leader() is far, timeout=PATIENCE, what="the far host leads")
            near = [site.host("default:1") for _ in range(2)]
            time.sleep(Settings().renew)  # nothing has just begun
            took.append(_takeover(site, far, network.cut))
            network.heal()
            wait_for(lambda far=far: "no longer leads" in far.log(), timeout=PATIENCE, what="it knows")
            _steady(site, far)
            for master in (*near, far):
                master.signal(signal.SIGTERM)
            for master in (*near, far):
                master.wait()
        return [
            within(
                "network of the leader cut silently (router namespace): another leads within", SILENT, took
            ),
            _never_again(site, "cut off and healed leaders: duties after the session was lost"),
        ]


def _leader(site: Site) -> Master:
    return wait_for(site.leader, timeout=PATIENCE, what="somebody leads")


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


def _steady(site: Site, old: Master) -> None:
    """A while later, with the old leader awake, still somebody else leads, alone."""
    until = time.monotonic() + 3 * Settings().promote
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
