"""Parses whole numbers in text that another program sent: HTTP fields, gRPC status codes, query parameters, labels."""

from __future__ import annotations

#: Every unsigned number of 63 bits has at most this many digits.
MAX_DIGITS = 19


def parse_decimal(text: str | bytes, highest: int = 2**63 - 1) -> int | None:
    """The number that `text` of ASCII digits stands for; None for any other text and for a number above `highest`.

    `int` is not strict enough for text from outside: it accepts signs, blanks, underscores and the digits of every script,
    and raises ValueError beyond 4,300 digits, where `isdigit` is still true. Text of more than 19 digits is refused without
    parsing it; leading zeros count.
    """
    if len(text) > MAX_DIGITS or not (text.isascii() and text.isdigit()):
        return None
    number = int(text)
    return number if number <= highest else None


def parse_integer(text: str) -> int | None:
    """The whole number of 64 bits that `text` stands for in its usual spelling, without a plus sign or leading zeros; None for
    any other text."""
    number = parse_decimal(text.removeprefix("-"), 2**63)
    signed = -number if number is not None and text.startswith("-") else number
    return signed if signed is not None and str(signed) == text and signed < 2**63 else None
