"""What all tests of the local API have."""

from __future__ import annotations

import pytest

from pykubelet_local_api.kinds.schema import load_schemas


@pytest.fixture(scope="session", autouse=True)
def schemas() -> None:
    """Read the schemas before any event loop runs, as the program does."""
    load_schemas()
