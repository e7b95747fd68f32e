"""What to do about a worker that has not reported for a while. Pure."""

from __future__ import annotations

from enum import Enum, auto
from math import isinf
from typing import NamedTuple

#: How much longer than expected a job may take before others need not wait behind it, if somebody is idle; seconds.
GRACE = 0.005
#: How long they wait behind it when nobody is: then perhaps another host has an idle worker.
PATIENCE = 0.05
#: How long a worker may leave even its first order untouched. A busy machine takes its time.
UNTOUCHED = 0.2


class Step(Enum):
    WAIT = auto()
    TAKE_BACK = auto()  #: what waits behind its job
    CALL = auto()  #: take everything back, and ask it to say when it can have more


class Seen(NamedTuple):
    ran: float  # seconds since it could begin its first order
    expected: float  # seconds that this one should take
    orders: int  # that it has not reported
    unbegun: int  # of which it has not taken
    idle: bool  # is another worker of the queue idle?


def due(seen: Seen) -> Step:
    if seen.unbegun >= seen.orders:
        patience = PATIENCE if seen.idle else UNTOUCHED
        return Step.CALL if seen.ran > patience else Step.WAIT
    if seen.unbegun == 0 or seen.unbegun < seen.orders - 1:
        return Step.WAIT  # nothing waits, or its reports are on the way
    late = isinf(seen.expected) or seen.ran > seen.expected + GRACE
    return Step.TAKE_BACK if late and (seen.idle or seen.ran > PATIENCE) else Step.WAIT
