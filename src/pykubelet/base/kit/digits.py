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
