"""Tests that are marked `virtual_time` get a virtual event loop."""

from support.loops import pytest_asyncio_loop_factories as pytest_asyncio_loop_factories
