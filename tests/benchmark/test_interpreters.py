"""The comparison of interpreters finds the agent of each, meets all alike with the machine's waves, and shows one table."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

from bench import interpreters
from bench.interpreters import Interpreter
from bench.runtime import BenchError


def test_the_agent_of_an_environment_is_found() -> None:
    found = interpreters.find(Path(sys.executable))
    assert found.program.name == "pykubelet"
    assert platform.python_version() in found.name


def test_an_interpreter_without_the_agent_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="No such file"):
        interpreters.find(tmp_path / "python")
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\necho no module named pykubelet >&2\nexit 1\n")
    other.chmod(0o755)
    with pytest.raises(BenchError, match="no module named pykubelet"):
        interpreters.find(other)


@pytest.mark.parametrize(
    ("differs", "name"),
    [
        ({}, "CPython 3.14.0"),
        ({"jit": True}, "CPython 3.14.0 with JIT"),
        ({"free_threaded": True, "gil": False}, "CPython 3.14.0 free-threaded"),
        (
            {"free_threaded": True, "protobuf": "python"},
            "CPython 3.14.0 free-threaded, with the GIL again, protobuf in Python",
        ),
    ],
)
def test_a_row_names_what_makes_an_interpreter_another(differs: dict[str, object], name: str) -> None:
    usual = {"version": "CPython 3.14.0", "free_threaded": False, "gil": True, "jit": False, "protobuf": "upb"}
    assert interpreters.describe(usual | differs) == name


def test_each_round_measures_all_and_begins_with_another() -> None:
    measured = [Interpreter(Path(name), name) for name in "abc"]
    orders = ["".join(each.name for each in order) for order in interpreters.orders(measured, 4)]
    assert orders == ["abc", "bca", "cab", "abc"]


def test_the_table_has_a_row_for_each_interpreter() -> None:
    measured, missing = Interpreter(Path("a"), "CPython 3.11.0"), Interpreter(Path("b"), "CPython 3.14.0")
    for seconds in (0.3, 0.2, 0.4):
        measured.take("start", seconds)
    headings, _, first, second = interpreters.render([measured, missing], 30).splitlines()
    assert "CPU per pod started, 30 at once" in headings
    assert first.startswith("| CPython 3.11.0 | 0.30 s (0.20..0.40, n=3) | -  ")
    assert set(second.replace("CPython 3.14.0", "")) == set("| -")
