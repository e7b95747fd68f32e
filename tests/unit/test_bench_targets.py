"""Every bar names measurements that are made: a name that nobody measures would be NOT MEASURED for ever."""

from __future__ import annotations

import pytest
from bench import suites, targets
from bench.measurement import Measure
from bench.targets import Bar

PEERS = [measure for phase in suites.PHASES for measure in suites.peers(phase)]


@pytest.mark.parametrize(
    ("bar", "measures"),
    [(bar, PEERS) for bar in targets.BARS] + [(bar, suites.quick()) for bar in targets.QUICK],
    ids=lambda value: value.measure if isinstance(value, Bar) else "",
)
def test_a_bar_is_of_what_is_measured(bar: Bar, measures: list[Measure]) -> None:
    made = {measure.key for measure in measures}
    asked = {what.rpartition("|")[0] for what in (bar.ours, bar.theirs) if what}
    assert asked <= made


def test_a_measurement_has_a_name_of_its_own() -> None:
    keys = [measure.key for measure in PEERS]
    assert len(keys) == len(set(keys))
