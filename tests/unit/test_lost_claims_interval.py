"""How often a host looks for claims whose answer was lost."""

from __future__ import annotations

import pytest

from pgworkers.master.duties import READ_REST_FACTOR
from pgworkers.master.lost_claims import scan_pause_seconds


@pytest.mark.parametrize(
    ("took", "rescue", "expected"),
    [
        (0.001, 5.0, 10.0),  # a third of the lease
        (0.001, 20.0, 20.0),
        (0.4, 5.0, 0.4 * READ_REST_FACTOR),  # a vacuum is held back
        (3.0, 5.0, 30.0),  # the database was stalled: a lost claim does not wait for minutes
    ],
)
def test_a_slow_look_is_made_less_often_but_once_in_a_lease(
    took: float, rescue: float, expected: float
) -> None:
    assert scan_pause_seconds(took, rescue, 30.0) == expected
