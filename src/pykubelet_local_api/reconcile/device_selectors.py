"""Selectors of devices in the forms that are understood without CEL: those of the examples of DRA drivers. Pure.

A selector is a conjunction (`&&`) of comparisons, with texts in single or double quotes:
- `device.driver == "NAME"`, or `!=`
- `device.attributes["DOMAIN"].NAME == VALUE`, or `!=`, with a text, a whole number, true or false; `<`, `<=`, `>`, `>=` with a number
- `device.attributes["DOMAIN"].NAME` or `!device.attributes["DOMAIN"].NAME`, of an attribute that is true or false
- `device.capacity["DOMAIN"].NAME.compareTo(quantity("AMOUNT")) >= 0`, or another comparison; `isGreaterThan` and `isLessThan`
A device without the attribute or capacity does not match. Anything else is not understood, and the claim is not allocated.
Source: the Kubernetes documentation "Dynamic Resource Allocation"; `DeviceSelector` in the API reference.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pykubelet.base.api.quantity import QuantityError, parse_text
from pykubelet.base.kit.values import Value
from pykubelet_local_api.objects import Json

#: The most characters of an expression that the API admits.
MAX_EXPRESSION = 10 * 1024
_TEXT = r"""(?:"([^"\\\\]*)"|'([^'\\\\]*)')"""
_COMPARED = r"\s*(==|!=|<=|>=|<|>)\s*"
_DRIVER = re.compile(rf"device\.driver\s*(==|!=)\s*{_TEXT}")
_ATTRIBUTE = re.compile(
    rf"(!?)device\.attributes\[{_TEXT}\]\.([A-Za-z_]\w*)(?:{_COMPARED}(?:{_TEXT}|(-?\d{{1,18}})|(true|false)))?",
    re.ASCII,
)
_CAPACITY = re.compile(
    rf"device\.capacity\[{_TEXT}\]\.([A-Za-z_]\w*)\.(?:compareTo\(quantity\({_TEXT}\)\){_COMPARED}0"
    rf"|(isGreaterThan|isLessThan)\(quantity\({_TEXT}\)\))",
    re.ASCII,
)
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "isGreaterThan": operator.gt,
    "isLessThan": operator.lt,
}


class Comparison(Value):
    """One comparison. `name`: of the attribute or capacity, with its domain; "" for the driver's name. `value`: of a capacity, in
    billionths."""

    name: str
    operator: str
    value: str | int | bool
    is_capacity: bool = False


class UnknownSelector(Value):
    """A selector that is not understood."""

    expression: str


def parse_selectors(selectors: Sequence[Json]) -> tuple[Comparison, ...] | UnknownSelector:
    """All comparisons of the selectors, which all have to hold."""
    found: list[Comparison] = []
    for selector in selectors:
        expression = str((selector.get("cel") or {}).get("expression") or "")
        if len(expression) > MAX_EXPRESSION:
            return UnknownSelector(expression[:100])
        for part in expression.split("&&"):
            comparison = _parse(part.strip())
            if comparison is None:
                return UnknownSelector(expression)
            found.append(comparison)
    return tuple(found)


def _parse(part: str) -> Comparison | None:
    if match := _DRIVER.fullmatch(part):
        return Comparison("", match[1], match[2] or match[3] or "")
    if match := _CAPACITY.fullmatch(part):
        try:
            amount = parse_text(match[4] or match[5] or match[8] or match[9] or "").nano
        except QuantityError:
            return None
        return Comparison(f"{match[1] or match[2]}/{match[3]}", match[6] or match[7], amount, True)
    if (match := _ATTRIBUTE.fullmatch(part)) is None:
        return None
    name, compared = f"{match[2] or match[3]}/{match[4]}", match[5]
    if compared is None:
        return Comparison(name, "==", not match[1])
    if match[1] or (match[8] is None and compared not in ("==", "!=")):
        return None
    if match[8] is not None:
        return Comparison(name, compared, int(match[8]))
    if match[9] is not None:
        return Comparison(name, compared, match[9] == "true")
    return Comparison(name, compared, match[6] if match[6] is not None else match[7])


def attribute_of(driver: str, attributes: Mapping[str, Json], name: str) -> Any:
    """The value of a device's attribute; None if it has none. Names without a domain have that of the driver."""
    domain, _, plain = name.partition("/")
    found = attributes.get(name)
    if found is None and domain == driver:
        found = attributes.get(plain)
    if not found:
        return None
    return next((value for key, value in found.items() if key in ("string", "int", "bool", "version")), None)


def matches(
    comparisons: Sequence[Comparison], driver: str, attributes: Mapping[str, Json], capacity: Mapping[str, Json]
) -> bool:
    """Whether the device is as all comparisons want it."""
    found: Any
    for comparison in comparisons:
        if comparison.is_capacity:
            found = _capacity_of(driver, capacity, comparison.name)
        else:
            found = attribute_of(driver, attributes, comparison.name) if comparison.name else driver
        if type(found) is not type(comparison.value) or not _OPERATORS[comparison.operator](found, comparison.value):
            return False
    return True


def _capacity_of(driver: str, capacity: Mapping[str, Json], name: str) -> int | None:
    """A capacity of a device, in billionths; None if it has none. Names without a domain have that of the driver."""
    domain, _, plain = name.partition("/")
    found = capacity.get(name) or (capacity.get(plain) if domain == driver else None)
    try:
        return parse_text(str(found["value"])).nano if found else None
    except (QuantityError, KeyError):
        return None
