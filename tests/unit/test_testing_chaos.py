"""Which faults a chaos series has."""

from __future__ import annotations

from pgworkers.testing.chaos import ChaosOptions, plan_faults
from pgworkers.worker.chaos import END_POINT, RecordedPoint

POINTS = [
    RecordedPoint("pay", 1, "ctx.connect", False, 0.01),
    RecordedPoint("pay", 2, "before a statement", True, 0.02),
    RecordedPoint("pay", 3, "after a statement", True, 0.03),
    RecordedPoint("pay", 4, END_POINT, False, 0.1),
    RecordedPoint("pay", 0, END_POINT, False, 0.1),
    RecordedPoint("pay", 1, "ctx.connect", False, 0.01),  # of a second job
    RecordedPoint("pay", 0, END_POINT, False, 0.2),
]


def test_each_point_has_its_faults_once() -> None:
    faults, left_out = plan_faults(POINTS, ChaosOptions(moments=0))
    assert [(fault.kind, fault.index) for fault in faults] == [
        *(("kill", 1), ("steal", 1)),
        *(("kill", 2), ("steal", 2), ("cut", 2)),
        *(("kill", 3), ("steal", 3), ("cut", 3)),
        *(("kill", 4), ("steal", 4)),
    ]
    assert left_out == 0
    assert faults[2].text == "SIGKILL before a statement (point 2 of pay)"
    assert faults[0].text == "SIGKILL at ctx.connect (point 1 of pay)"


def test_moments_lie_within_the_handler_and_depend_on_the_seed() -> None:
    moments = [f.delay for f in plan_faults(POINTS, ChaosOptions(moments=20))[0] if not f.index]
    assert len(moments) == 20
    assert all(0 < delay <= 0.2 for delay in moments)
    assert moments == [f.delay for f in plan_faults(POINTS, ChaosOptions(moments=20))[0] if not f.index]
    assert moments != [
        f.delay for f in plan_faults(POINTS, ChaosOptions(moments=20, seed=2))[0] if not f.index
    ]


def test_a_series_is_bounded_and_says_what_it_leaves_out() -> None:
    faults, left_out = plan_faults(POINTS, ChaosOptions(moments=10, max_runs=4))
    assert (len(faults), left_out) == (4, 16)
    assert faults == plan_faults(POINTS, ChaosOptions(moments=10, max_runs=4))[0]
