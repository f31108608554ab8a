"""Agents for whole-program tests. One at a time on a containerd: an agent ends pods that it does not know."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.agent import Agent, new_agent, sweep
from support.world import World, a_world
from testbed import containerd
from testbed.private_runtime import Testbed

MakeAgent = Callable[..., Agent]


@pytest.fixture
async def make_agent(testbed: Testbed) -> AsyncIterator[MakeAgent]:
    """Makes agents (not started) for one test: keywords are KubeletConfiguration fields, `flags` a tuple."""
    made: list[Agent] = []

    def make(flags: tuple[str, ...] = (), **settings: Any) -> Agent:
        made.append(new_agent(testbed, settings, flags))
        return made[-1]

    await sweep(testbed)
    yield make
    containerd.start(testbed)
    for agent in made:
        await agent.clear()


@pytest.fixture
async def world(make_agent: MakeAgent, tmp_path: Path) -> AsyncIterator[World]:
    """A started agent with an API server of the test's own."""
    async with a_world(make_agent, tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def agent(testbed: Testbed, request: pytest.FixtureRequest) -> Iterator[Agent]:
    """A started agent that the tests of a module share; each test uses pod names of its own.

    The module's SETTINGS, where it has some, are laid over its configuration. Not to be used in a module that also
    makes agents. At the end all manifests are removed, and nothing may be left of any pod.
    """
    with asyncio.Runner() as runner:
        runner.run(sweep(testbed))
        shared = new_agent(testbed, getattr(request.module, "SETTINGS", {}), ())
        try:
            yield shared.start()
            runner.run(shared.remove_all())
            assert shared.stop() == 0
        finally:
            runner.run(shared.clear())
