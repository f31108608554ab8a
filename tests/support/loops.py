"""The kind of event loop for each test: a package of tests imports the hook into its `conftest.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from support.virtual_time import VirtualLoop


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """A `VirtualLoop` for a test that is marked `virtual_time`, else the usual loop."""
    if item.get_closest_marker("virtual_time") is not None:
        return {"virtual": VirtualLoop}
    return {"real": asyncio.new_event_loop}
