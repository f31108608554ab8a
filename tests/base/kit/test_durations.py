"""Durations read as Go prints them; users and scripts know them from the reference's messages."""

from __future__ import annotations

import pytest

from pykubelet.base.kit.durations import format_duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (10, "10s"),
        (20, "20s"),
        (80, "1m20s"),
        (300, "5m0s"),
        (3600, "1h0m0s"),
        (3661.5, "1h1m1.5s"),
        (0.25, "250ms"),
        (1.25, "1.25s"),
        (0.0005, "500µs"),
        (0.0000005, "500ns"),
        (0.0015, "1.5ms"),
        (-90, "-1m30s"),
        (90_000, "25h0m0s"),
        (1.000000001, "1.000000001s"),
    ],
)
def test_durations_as_go_prints_them(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
