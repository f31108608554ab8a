"""What is missing is named, and nothing is installed when nothing is."""

from __future__ import annotations

import os

import pytest
from testbed import packages
from testbed.host import TestbedError


def test_only_what_serves_no_purpose_yet_is_missing() -> None:
    wanted = {"there": lambda: True, "absent": lambda: False}
    assert packages.missing(wanted) == ["absent"]
    packages.ensure({"there": lambda: True})


def test_without_apt_the_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(TestbedError, match="these are missing: one two"):
        packages.ensure({"one": lambda: False}, {"two": lambda: False})
