"""A folder whose sockets have short names."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: that of a socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="dra-") as made:
        yield Path(made)
