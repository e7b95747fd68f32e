"""Time bounds of the fault rows, as formulas in the short settings of tests, and what a busy machine may add."""

from __future__ import annotations

from support.cluster import FAST

from pgworkers.units import parse_duration


def _of(name: str) -> float:
    return parse_duration(FAST[f"PGWORKERS_{name}"], what=name)


H = _of("RENEW_INTERVAL")
L = _of("LEASE_DURATION")
R = _of("RESCUE_INTERVAL")
S = _of("STATEMENT_TIMEOUT")
C = 2.0  # connect_timeout: libpq takes nothing shorter
E = _of("LEADERSHIP_INTERVAL")
P = _of("POLL_INTERVAL")
PROMOTE = _of("PROMOTE_INTERVAL")
D = _of("DRAIN_TIMEOUT")
K = _of("ASK_GRACE") + _of("RAISE_GRACE")
F = L * 2 / 3 + L / 6  # exclusive jobs are stopped, then dead, counted from the sending of the last renewal
BACKOFF = 2.2  # of the first crash
BUSY = 8.0  # seconds; two cores shared by many test processes
T_PROC = 1.0
T_HOST = L + R + S
T_LEAD = 2 * H + E + S
T_DB = C + _of("RECONNECT_MAX_DELAY") + P
