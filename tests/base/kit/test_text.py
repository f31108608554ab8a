from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pykubelet.base.kit.text import escape_controls, has_controls, shorten


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
    assert has_controls(text) == (shown != text) and not has_controls(shown)
    assert not any((ord(letter) < 32 and letter != "\n") or 127 <= ord(letter) < 160 for letter in shown)
