"""The kind of event loop for tests of the serving side."""

from support.loops import pytest_asyncio_loop_factories as pytest_asyncio_loop_factories
