"""CPU lists as text."""

from __future__ import annotations

import re

import pytest

from pykubelet.base.kit.cpuset import format_cpuset, parse_cpuset


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("", set()), ("0", {0}), ("0-2,5", {0, 1, 2, 5}), ("3,1", {1, 3}), ("2-2", {2})],
)
def test_cpu_lists_are_read_and_written(text: str, cpus: set[int]) -> None:
    assert parse_cpuset(text) == cpus
    assert parse_cpuset(format_cpuset(frozenset(cpus))) == cpus


def test_a_cpu_list_is_written_shortest() -> None:
    assert format_cpuset(frozenset({0, 1, 2, 5, 7, 8})) == "0-2,5,7-8"
    assert format_cpuset(frozenset()) == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a", '"a" is not the number of a CPU'),
        ("1-", '"" is not the number of a CPU'),
        ("-1", '"" is not the number of a CPU'),
        ("3-1", 'invalid range "3-1" (3 > 1)'),
        ("1,,2", '"" is not the number of a CPU'),
        ("0-99999999", "CPU 99999999 is too large"),
        ("1-2-3", '"2-3" is not the number of a CPU'),
        ("١", '"١" is not the number of a CPU'),
    ],
)
def test_a_wrong_cpu_list_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        parse_cpuset(text)
