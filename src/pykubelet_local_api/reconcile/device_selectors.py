"""Selectors of devices in the forms that are understood without CEL. Pure.

A selector is a conjunction (`&&`) of comparisons:
- `device.driver == "NAME"`
- `device.attributes["DOMAIN"].NAME == VALUE`, with a text, a whole number, true or false.
Anything else is not understood, and the claim is not allocated.
Source: the Kubernetes documentation "Dynamic Resource Allocation"; `DeviceSelector` in the API reference.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pykubelet.base.kit.values import Value
from pykubelet_local_api.objects import Json

#: The most characters of an expression that the API admits.
MAX_EXPRESSION = 10 * 1024
_DRIVER = re.compile(r'device\.driver\s*==\s*"([^"\\]*)"')
_ATTRIBUTE = re.compile(
    r'device\.attributes\["([^"\\]*)"\]\.([A-Za-z_]\w*)\s*==\s*(?:"([^"\\]*)"|(-?\d{1,19})|(true|false))', re.ASCII
)


class Comparison(Value):
    """One comparison. `attribute`: with its domain; "" for the driver's name."""

    attribute: str
    value: str | int | bool


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
        return Comparison("", match[1])
    if (match := _ATTRIBUTE.fullmatch(part)) is None:
        return None
    attribute = f"{match[1]}/{match[2]}"
    if match[3] is not None:
        return Comparison(attribute, match[3])
    return Comparison(attribute, int(match[4]) if match[4] is not None else match[5] == "true")


def attribute_of(driver: str, attributes: Mapping[str, Json], name: str) -> Any:
    """The value of a device's attribute; None if it has none. Names without a domain have that of the driver."""
    domain, _, plain = name.partition("/")
    found = attributes.get(name)
    if found is None and domain == driver:
        found = attributes.get(plain)
    if not found:
        return None
    return next((value for key, value in found.items() if key in ("string", "int", "bool", "version")), None)


def matches(comparisons: Sequence[Comparison], driver: str, attributes: Mapping[str, Json]) -> bool:
    """Whether the device has what all comparisons want."""
    for comparison in comparisons:
        found = attribute_of(driver, attributes, comparison.attribute) if comparison.attribute else driver
        if type(found) is not type(comparison.value) or found != comparison.value:
            return False
    return True
