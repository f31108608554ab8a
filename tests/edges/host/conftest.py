"""Tests of the host's edges may run in virtual time."""

from support.loops import pytest_asyncio_loop_factories as pytest_asyncio_loop_factories
