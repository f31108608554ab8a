"""The page on limits has the tables that its tool makes of the code."""

from __future__ import annotations

import pytest
from gen_limits import PAGE, limits, limits_of, page, shown


def test_the_page_on_limits_is_current() -> None:
    assert page(PAGE.read_text()) == PAGE.read_text(), "run .venv/bin/python tools/gen_limits.py"


@pytest.mark.parametrize(
    ("code", "rows"),
    [
        ("#: Of a head.\n#: All fields.\nHEAD_BYTES = 64 * 1024", [("HEAD_BYTES", "64 KiB", "Of a head. All fields")]),
        ("_MAX_FIELDS = 1000", [("_MAX_FIELDS", "1,000", "x: max fields")]),
        ("DAY = 24\nKEEP_S = DAY * 3600.0", [("KEEP_S", "24 h", "x: keep")]),
        ("RETRY = BackoffPolicy(initial_s=0.5, cap_s=120.0)", [("RETRY", "500 ms, growing to 2 min", "x: retry")]),
        ("POD_RETRY = BackoffPolicy(1.0, 10.0)", [("POD_RETRY", "1 s, growing to 10 s", "x: pod retry")]),
        ("class FrameLimits(Value):\n    answers: int = 9", [("FrameLimits.answers", "9", "x: answers")]),
        ("MAX_INT32 = 2**31 - 1\nVERSION = 3\nMAX_NAME = 'a'\ndef f():\n    MAX_X = 1", []),
    ],
)
def test_limits_are_found_by_their_names(code: str, rows: list[tuple[str, str, str]]) -> None:
    assert [(limit.name, limit.value, limit.meaning) for limit in limits_of("net/x.py", code)] == rows


def test_a_rate_is_shown_as_one() -> None:
    assert shown("CALLS_PER_S", 10.0, "10.0") == "10 a second"


def test_all_layers_have_limits() -> None:
    layers = {limit.module.partition("/")[0] for limit in limits()}
    assert {"act", "app", "base", "config", "desired", "edges", "net", "observe", "report", "serve"} <= layers
