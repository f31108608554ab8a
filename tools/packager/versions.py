"""Version numbers: where the project has its own, and how Debian writes them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

_MODULE = "src/pykubelet/__init__.py"
_IN_MODULE = re.compile(r'^__version__ = "(.*)"$', re.MULTILINE)
_IN_PROJECT = re.compile(r'^version = "(.*)"$', re.MULTILINE)
_PRERELEASE = re.compile(r"\.?(dev|a|b|rc)(?=\d)")


def project_version(checkout: Path) -> str:
    """The version in pyproject.toml."""
    return str(tomllib.loads((checkout / "pyproject.toml").read_text())["project"]["version"])


def set_version(checkout: Path, version: str) -> None:
    """Write another version into both files that have it."""
    for name, pattern, text in (
        ("pyproject.toml", _IN_PROJECT, f'version = "{version}"'),
        (_MODULE, _IN_MODULE, f'__version__ = "{version}"'),
    ):
        path = checkout / name
        path.write_text(pattern.sub(text, path.read_text(), count=1))


def debian_version(version: str) -> str:
    """As Debian sorts it: 0.2.0rc1 before 0.2.0, so 0.2.0~rc1."""
    return _PRERELEASE.sub(r"~\1", version)
