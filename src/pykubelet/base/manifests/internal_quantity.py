"""The dump of a quantity as the reference holds it in memory, for hashes over dumps. Pure.

The reference keeps most quantities as an integer and a power of ten, with the text if that is the canonical one. Others (`1.5Gi`, or
more than 18 digits) are decimals of any size. Source: apimachinery's `resource.Quantity`.
"""

from __future__ import annotations

from functools import lru_cache

from pykubelet.base.api.quantity import CAP, NANO, Amount, Format, Parts, parse_text, split_text
from pykubelet.base.kit.values import Value

#: The reference keeps amounts in resource lists no finer than this power of ten.
MILLI = -3
_MAX_INT = (1 << 63) - 1
_MAX_DIGITS = 18
_WORD = (1 << 64) - 1


class _Held(Value):
    """A quantity as an integer times a power of ten, with its text where that is kept."""

    value: int
    scale: int
    text: str
    format: str


@lru_cache(maxsize=2048)
def dump_quantity(text: str, finest: int = -9) -> str:
    """The dump without its type. `finest`: the power of ten it is rounded up to. Raises QuantityError."""
    held = _Held(0, 0, text, Format.DECIMAL_SI.value) if text == "0" else _hold(text, split_text(text))
    if held is None:
        return _dump_decimal(parse_text(text), finest)
    if held.scale < finest:
        held = _Held(_rounded_away(held.value, 10 ** (finest - held.scale)), finest, "", held.format)
    return _dump(held.value, held.scale, "<nil>", held.text, held.format)


def zero_quantity() -> str:
    """The dump of a quantity that is not given, without its type."""
    return _dump(0, 0, "<nil>", "", "")


def _dump(value: int, scale: int, decimal: str, text: str, format_: str) -> str:
    return (
        f"{{i:(resource.int64Amount){{value:(int64){value} scale:(resource.Scale){scale}}}"
        f" d:(resource.infDecAmount){{Dec:(*inf.Dec){decimal}}} s:(string){text} Format:(resource.Format){format_}}}"
    )


def _hold(text: str, parts: Parts) -> _Held | None:
    """The integer and the power of ten; None if the reference needs a decimal of any size."""
    whole = parts.whole.lstrip("0")
    if not whole and not parts.fraction:
        whole = "0"
    digits = whole + parts.fraction
    if parts.format is Format.BINARY_SI:
        # the reference's estimate of how many digits fit
        if parts.fraction or 15 - len(whole) - parts.shift * 3 // 10 - 1 < 0:
            return None
        scale = 0
    else:
        scale = parts.power - len(parts.fraction)
        if len(digits) > _MAX_DIGITS:
            return None
    value = int(digits) << parts.shift
    if scale < -9 or value > _MAX_INT:
        return None
    if parts.format is Format.BINARY_SI:
        canonical = int(digits) & 7 != 0
    else:
        canonical = scale % 3 == 0 and not digits.endswith("000") and not digits.startswith("0")
    return _Held(-value if parts.negative else value, scale, text if canonical else "", parts.format.value)


def _dump_decimal(amount: Amount, finest: int) -> str:
    scale = 9
    unscaled = abs(amount.nano)
    if unscaled == CAP and amount.format is Format.BINARY_SI:
        unscaled, scale = unscaled // NANO, 0
    if scale > -finest or scale == 0:
        step = -finest - scale
        unscaled = unscaled * 10**step if step >= 0 else _rounded_away(unscaled, 10**-step)
        scale = -finest
    words = []
    while unscaled:
        words.append(str(unscaled & _WORD))
        unscaled >>= 64
    number = f"(big.Int){{neg:(bool){str(amount.nano < 0).lower()} abs:(big.nat)[{' '.join(words)}]}}"
    return _dump(0, 0, f"{{unscaled:{number} scale:(inf.Scale){scale}}}", "", amount.format.value)


def _rounded_away(value: int, by: int) -> int:
    quotient = -(-abs(value) // by)
    return quotient if value >= 0 else -quotient
