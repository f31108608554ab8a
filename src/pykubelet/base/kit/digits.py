"""Whole numbers in text that another program sent: HTTP fields, gRPC status codes, query parameters, labels."""

from __future__ import annotations

#: Every unsigned number of 63 bits has at most this many digits.
MAX_DIGITS = 19


def parse_decimal(text: str | bytes, highest: int = 2**63 - 1) -> int | None:
    """The number that ASCII digits alone stand for; None for anything else, and for a number above `highest`.

    `int` is not enough for text from outside: it takes signs, blanks, underscores and the digits of every script, and
    raises ValueError beyond 4,300 digits, where `isdigit` is still true. More than 19 digits are refused unread,
    leading zeros included.
    """
    if len(text) > MAX_DIGITS or not (text.isascii() and text.isdigit()):
        return None
    number = int(text)
    return number if number <= highest else None
