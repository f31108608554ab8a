"""Selectors of devices, in the forms that examples of DRA drivers have."""

from __future__ import annotations

import pytest

from pykubelet_local_api.objects import Json
from pykubelet_local_api.reconcile.device_selectors import UnknownSelector, matches, parse_selectors

DRIVER = "gpu.example.com"
ATTRIBUTES: dict[str, Json] = {
    "type": {"string": "gpu"},
    "index": {"int": 3},
    "shared": {"bool": False},
    "other.com/model": {"string": "a b"},
}
CAPACITY: dict[str, Json] = {"memory": {"value": "80Gi"}, "other.com/cores": {"value": "4"}}


@pytest.mark.parametrize(
    ("expression", "fits"),
    [
        ('device.driver == "gpu.example.com"', True),
        ("device.driver == 'gpu.example.com' && device.attributes['gpu.example.com'].type == 'gpu'", True),
        ("device.driver != 'gpu.example.com'", False),
        ('device.attributes["gpu.example.com"].type != "mig"', True),
        ('device.attributes["other.com"].model == "a b"', True),
        ('device.attributes["gpu.example.com"].index < 4', True),
        ('device.attributes["gpu.example.com"].index >= 4', False),
        ('device.attributes["gpu.example.com"].index == "3"', False),
        ('device.attributes["gpu.example.com"].shared', False),
        ('!device.attributes["gpu.example.com"].shared', True),
        ('device.attributes["gpu.example.com"].shared == false', True),
        ('device.attributes["gpu.example.com"].missing != "x"', False),
        ("device.capacity['gpu.example.com'].memory.compareTo(quantity('40Gi')) >= 0", True),
        ('device.capacity["gpu.example.com"].memory.compareTo(quantity("81920Mi")) == 0', True),
        ('device.capacity["gpu.example.com"].memory.isLessThan(quantity("80Gi"))', False),
        ('device.capacity["other.com"].cores.isGreaterThan(quantity("3500m"))', True),
        ('device.capacity["gpu.example.com"].missing.isGreaterThan(quantity("0"))', False),
    ],
)
def test_a_selector_is_understood(expression: str, fits: bool) -> None:
    found = parse_selectors([{"cel": {"expression": expression}}])
    assert not isinstance(found, UnknownSelector)
    assert matches(found, DRIVER, ATTRIBUTES, CAPACITY) is fits


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "true",
        'device.driver.startsWith("x")',
        'device.driver == "a" || device.driver == "b"',
        'device.attributes["a"].name.matches("^.*$")',
        'device.attributes["a"].name < "b"',
        '!device.attributes["a"].name == "b"',
        'device.capacity["a"].memory.compareTo(quantity("much")) >= 0',
        "device.driver == 'a\"",
    ],
)
def test_another_selector_is_not(expression: str) -> None:
    found = parse_selectors([{"cel": {"expression": expression}}])
    assert found == UnknownSelector(expression)
