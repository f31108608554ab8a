"""A folder whose sockets have short names."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Instead of pytest's: the path of a socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="devices-") as folder:
        yield Path(folder)
