"""Text of containers on a terminal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pykubelet.base.kit.terminal import escape_controls, has_controls


def test_control_characters_are_written_out_but_line_feeds() -> None:
    bad = "\x1b]0;title\x07 \x9b31m one\r\ttwo\n\x00\x7f é"
    assert escape_controls(bad) == r"\x1b]0;title\x07 \x9b31m one\x0d\x09two" + "\n" + r"\x00\x7f é"


@given(st.text())
def test_a_terminal_gets_no_control_sequences(text: str) -> None:
    shown = escape_controls(text)
    assert has_controls(text) == (shown != text) and not has_controls(shown)
    assert not any((ord(letter) < 32 and letter != "\n") or 127 <= ord(letter) < 160 for letter in shown)
