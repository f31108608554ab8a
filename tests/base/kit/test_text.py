"""Text from outside is cut, made safe to show, and parsed strictly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.base.kit.text import escape_controls, nearest, parse_decimal, parse_integer, shorten


def test_what_is_too_long_ends_with_dots() -> None:
    assert shorten("abcdef", 6) == "abcdef"
    assert shorten("abcdefg", 6) == "abc..."


@given(st.text(max_size=50), st.integers(min_value=3, max_value=60))
def test_nothing_is_longer_than_asked(text: str, most: int) -> None:
    assert len(shorten(text, most)) <= most
    assert text.startswith(shorten(text, most).removesuffix("...")) or text == shorten(text, most)


def test_control_characters_are_written_out_but_line_feeds() -> None:
    bad = "\x1b]0;title\x07 \x9b31m one\r\ttwo\n\x00\x7f é"
    assert escape_controls(bad) == r"\x1b]0;title\x07 \x9b31m one\x0d\x09two" + "\n" + r"\x00\x7f é"


@given(st.text())
def test_a_terminal_gets_no_control_sequences(text: str) -> None:
    shown = escape_controls(text)
    assert not any((ord(letter) < 32 and letter != "\n") or 127 <= ord(letter) < 160 for letter in shown)


@given(st.integers(min_value=-(2**63), max_value=2**63 - 1))
def test_every_integer_of_64_bits_is_read_back(number: int) -> None:
    assert parse_integer(str(number)) == number


@pytest.mark.parametrize(
    "text", ["", "-", "+1", "--1", "-0", "007", "1.0", "9223372036854775808", "-9223372036854775809"]
)
def test_what_is_no_integer_in_its_usual_spelling_is_none(text: str) -> None:
    assert parse_integer(text) is None


@given(st.integers(min_value=0, max_value=2**63 - 1))
def test_every_number_of_63_bits_is_read_back(number: int) -> None:
    assert parse_decimal(str(number)) == number
    assert parse_decimal(str(number).encode()) == number


@pytest.mark.parametrize(
    "text", ["", " 1", "1 ", "+1", "-1", "1_0", "²", "٣", "0x1", "1.0", "1\n", "\xa01", "9" * 5000, "0" * 20]
)
def test_what_is_no_plain_number_is_none(text: str) -> None:
    assert parse_decimal(text) is None
    assert parse_decimal(text.encode()) is None


def test_a_number_above_the_highest_allowed_is_none() -> None:
    assert parse_decimal("65535", 65535) == 65535
    assert parse_decimal("65536", 65535) is None
    assert parse_decimal("9223372036854775808") is None
    assert parse_decimal("0000019999999", 65535) is None


@given(st.text(max_size=30) | st.binary(max_size=30))
def test_any_text_gives_a_number_or_none(text: str | bytes) -> None:
    number = parse_decimal(text)
    assert number is None or 0 <= number < 2**63


FIELDS = ("name", "env", "envFrom", "image", "ports", "readinessProbe", "livenessProbe", "volumeMounts")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("enviroment", "env"),
        ("environment", "env"),
        ("envform", "envFrom"),
        ("Image", "image"),
        ("port", "ports"),
        ("readynessProbe", "readinessProbe"),
        ("volumeMount", "volumeMounts"),
        ("nam", "name"),
        ("restartPolicy", None),
    ],
)
def test_the_nearest_name(name: str, near: str | None) -> None:
    assert nearest(name, FIELDS) == near
