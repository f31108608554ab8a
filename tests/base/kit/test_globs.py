"""Globs: Go's `filepath.Match` for text without slashes, and a cost that no glob can raise."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cost import is_quick

from pykubelet.base.kit.globs import MAX_LENGTH, glob_matches


# The table of the tests of Go's `path/filepath`, without its slashes.
@pytest.mark.parametrize(
    ("glob", "text", "fits"),
    [
        ("abc", "abc", True),
        ("*", "abc", True),
        ("*", "", True),
        ("*c", "abc", True),
        ("a*", "a", True),
        ("a*", "abc", True),
        ("a*b*c*d*e*", "axbxcxdxe", True),
        ("a*b*c*d*e*f", "axbxcxdxexxxf", True),
        ("a*b?c*x", "abxbbxdbxebxczzx", True),
        ("a*b?c*x", "abxbbxdbxebxczzy", False),
        ("ab[c]", "abc", True),
        ("ab[b-d]", "abc", True),
        ("ab[e-g]", "abc", False),
        ("ab[^c]", "abc", False),
        ("ab[^b-d]", "abc", False),
        ("ab[^e-g]", "abc", True),
        ("a\\*b", "a*b", True),
        ("a\\*b", "ab", False),
        ("a?b", "a☺b", True),
        ("a[^a]b", "a☺b", True),
        ("a???b", "a☺b", False),
        ("a[^a][^a][^a]b", "a☺b", False),
        ("[a-ζ]*", "α", True),
        ("*[a-ζ]", "A", False),
        ("[\\]a]", "]", True),
        ("[\\-]", "-", True),
        ("[x\\-]", "x", True),
        ("[x\\-]", "-", True),
        ("[x\\-]", "z", False),
        ("[\\-x]", "a", False),
        ("[]a]", "]", False),
        ("[-]", "-", False),
        ("[x-]", "x", False),
        ("[x-]", "z", False),
        ("[-x]", "x", False),
        ("\\", "a", False),
        ("[a-b-c]", "a", False),
        ("[", "a", False),
        ("[^", "a", False),
        ("[^bc", "a", False),
        ("a[", "a", False),
        ("a[", "ab", False),
        ("a[", "x", False),
        ("*x", "xxx", True),
        ("", "", True),
        ("", "a", False),
        ("?", "", False),
        ("[*]x", "*x", True),
        ("a\\", "a\\", False),
    ],
)
def test_globs_match_as_those_of_go(glob: str, text: str, fits: bool) -> None:
    assert glob_matches(glob, text) is fits


def as_expression(glob: str) -> str:
    return "".join({"*": "(?s:.*)", "?": "(?s:.)"}.get(char, re.escape(char)) for char in glob)


@given(st.text("ab*?", max_size=9), st.text("ab", max_size=9))
def test_stars_and_question_marks_match_what_a_regular_expression_matches(glob: str, text: str) -> None:
    assert glob_matches(glob, text) is (re.fullmatch(as_expression(glob), text) is not None)


@given(st.text("ab*?[]^-\\", max_size=12), st.text("ab-]\\", max_size=6))
def test_any_glob_matches_or_does_not(glob: str, text: str) -> None:
    assert glob_matches(glob, text) in (True, False)


@pytest.mark.parametrize(
    "glob", ["*a" * 127 + "b", "?*" * 127, "*" * 255, "*[a-z]" * 42 + "b", "*?b" * 85, "[^b]" * 60 + "*b"]
)
def test_no_glob_costs_more_than_a_few_milliseconds(glob: str) -> None:
    assert is_quick(lambda: glob_matches(glob, "a" * MAX_LENGTH), 0.05)


def test_what_is_longer_than_a_label_matches_only_itself() -> None:
    assert not glob_matches("*", "a" * (MAX_LENGTH + 1))
    assert not glob_matches("*" * (MAX_LENGTH + 1), "a")
    assert glob_matches("a" * 5000, "a" * 5000)
