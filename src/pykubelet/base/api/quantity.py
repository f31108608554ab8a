"""Resource quantities, parsed, compared and written exactly as Kubernetes does.

Owns: parsing of every suffix, exact integer arithmetic, the canonical spelling. An amount is a whole number of
nano-units: finer input is rounded away from zero, and magnitudes beyond 2^63-1 are capped, as in the reference.
Source: apimachinery's `resource.Quantity` (documented in the API reference, "Quantity").
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache

from pykubelet.base.api.core import Quantity
from pykubelet.base.kit.values import Value

NANO = 1_000_000_000
MILLI_IN_NANO = 1_000_000
CAP = ((1 << 63) - 1) * NANO

#: The most characters of a quantity. The API server writes about 30 at most; Python refuses numbers of more than 4300 digits.
MAX_LENGTH = 256
LENGTH_ERROR = f"quantities must have at most {MAX_LENGTH} characters"
FORMAT_ERROR = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
SUFFIX_ERROR = "unable to parse quantity's suffix"

_SHAPE = re.compile(r"([+-]?)(\d*)(?:\.(\d*))?((?:[eEinumkKMGTP]+[-+]?\d*|[-+]\d*)?)", re.ASCII)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DECIMAL_NAMES = {power: name for name, power in _DECIMAL.items()}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_BINARY_NAMES = ("", *_BINARY)


class QuantityError(ValueError):
    """The text is not a quantity. The message is the reference's, except for the limit of the length."""


class Format(Enum):
    """The family of suffixes that an amount is written with."""

    DECIMAL_SI = "DecimalSI"
    BINARY_SI = "BinarySI"
    DECIMAL_EXPONENT = "DecimalExponent"


def _divide_away(value: int, by: int) -> int:
    """Divide, and round away from zero."""
    quotient = -(-abs(value) // by)
    return quotient if value >= 0 else -quotient


class Amount(Value):
    """A quantity: `nano` billionths of the unit, written in the family `format`.

    `==` also compares the family; to compare only amounts, use the order operators or `nano`.
    """

    nano: int
    format: Format = Format.DECIMAL_SI

    def value(self) -> int:
        """Whole units, rounded away from zero."""
        return _divide_away(self.nano, NANO)

    def milli_value(self) -> int:
        """Thousandths, rounded away from zero."""
        return _divide_away(self.nano, MILLI_IN_NANO)

    def rounded_to_milli(self) -> Amount:
        """The amount rounded to thousandths, as the API server stores resource lists."""
        return Amount(self.milli_value() * MILLI_IN_NANO, self.format)

    def __lt__(self, other: Amount) -> bool:
        return self.nano < other.nano

    def __le__(self, other: Amount) -> bool:
        return self.nano <= other.nano

    def __gt__(self, other: Amount) -> bool:
        return self.nano > other.nano

    def __ge__(self, other: Amount) -> bool:
        return self.nano >= other.nano

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.nano + other.nano, other.format if self.nano == 0 else self.format)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.nano - other.nano, other.format if self.nano == 0 else self.format)

    def __str__(self) -> str:
        """The canonical spelling: no fraction, and the largest suffix that keeps the exact value."""
        if self.nano == 0:
            return "0"
        if self.format is Format.BINARY_SI and abs(self.nano) >= 1024 * NANO:
            units, step = self.value(), 0
            while step < 6 and units % 1024 == 0:
                units, step = units // 1024, step + 1
            return f"{units}{_BINARY_NAMES[step]}"
        digits, power = self.nano, -9
        while digits % 1000 == 0 and power < 18:
            digits, power = digits // 1000, power + 3
        if self.format is Format.DECIMAL_EXPONENT:
            return f"{digits}e{power}" if power else str(digits)
        return f"{digits}{_DECIMAL_NAMES[power]}"


class Parts(Value):
    """A quantity as it is written: the digits before and after the point, and what the suffix means."""

    negative: bool
    whole: str
    fraction: str
    format: Format
    power: int
    shift: int


def split_text(text: str) -> Parts:
    """The parts of `text`. Raises QuantityError if it is not a quantity."""
    if len(text) > MAX_LENGTH:
        raise QuantityError(LENGTH_ERROR)
    match = _SHAPE.fullmatch(text)
    if match is None or not (match[2] or match[3]):
        raise QuantityError(FORMAT_ERROR)
    return Parts(match[1] == "-", match[2], match[3] or "", *_read_suffix(match[4]))


@lru_cache(maxsize=2048)
def parse_text(text: str) -> Amount:
    """Parse `text`. Raises QuantityError if it is not a quantity."""
    parts = split_text(text)
    format_ = parts.format
    mantissa = int((parts.whole + parts.fraction) or "0") << parts.shift
    power = parts.power + 9 - len(parts.fraction)
    if power >= 0:
        # A power of 64 reaches the cap below already.
        nano = mantissa * 10 ** min(power, 64)
    else:
        nano = _divide_away(mantissa, 10 ** min(-power, len(str(mantissa)) + 1))
    nano = min(nano, CAP)
    if format_ is Format.BINARY_SI and 0 < nano < NANO:
        format_ = Format.DECIMAL_SI
    return Amount(-nano if parts.negative else nano, format_)


def _read_suffix(suffix: str) -> tuple[Format, int, int]:
    """The family, the power of ten and the power of two of a suffix."""
    if suffix in _DECIMAL:
        return Format.DECIMAL_SI, _DECIMAL[suffix], 0
    if suffix in _BINARY:
        return Format.BINARY_SI, 0, _BINARY[suffix]
    if suffix[:1] in ("e", "E") and re.fullmatch(r"[+-]?\d{1,18}", suffix[1:], re.ASCII):
        return Format.DECIMAL_EXPONENT, int(suffix[1:]), 0
    raise QuantityError(SUFFIX_ERROR)


def parse(quantity: Quantity) -> Amount:
    """Parse a quantity field: text, or a bare number from YAML or JSON."""
    return parse_text(quantity if isinstance(quantity, str) else repr(quantity))


def canonical(quantity: Quantity) -> str:
    """The field's amount in its canonical spelling, as the API server shows it."""
    return str(parse(quantity))


def value(quantity: Quantity | None) -> int:
    """Whole units (bytes, pieces), rounded up; 0 for None."""
    return 0 if quantity is None else parse(quantity).value()


def milli_value(quantity: Quantity | None) -> int:
    """Thousandths (millicores), rounded up; 0 for None."""
    return 0 if quantity is None else parse(quantity).milli_value()
