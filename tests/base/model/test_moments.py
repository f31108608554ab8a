from __future__ import annotations

import pytest

from pykubelet.base.model.moments import wall_to_monotonic

DATE = 1_700_000_000.0


@pytest.mark.parametrize(
    ("wall", "not_before", "moment"),
    [
        (DATE + 5, 0.0, 95.0),
        (DATE + 5, 96.0, 100.0),
        (DATE + 3605, 90.0, 100.0),
        (DATE - 3595, 90.0, 100.0),
        (DATE + 3605, float("-inf"), -3505.0),
    ],
    ids=["as dated", "before it was seen not to be", "set forward", "set back", "found at the first look"],
)
def test_a_date_is_believed_unless_a_look_contradicts_it(wall: float, not_before: float, moment: float) -> None:
    assert wall_to_monotonic(DATE, 100.0, wall, not_before) == pytest.approx(moment)
