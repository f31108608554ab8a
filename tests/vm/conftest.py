"""Tests of a whole machine: they restart systemd, containerd and the machine itself, so they run only in `make test-vm`'s."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from support.unit import SystemContainerd, UnitAgent, clear_machine, system_containerd

MakeUnit = Callable[..., UnitAgent]
FOLDER = Path("/var/lib/testvm")
#: Only the machine of tools/testvm has this file; elsewhere nothing of this folder is collected.
collect_ignore_glob = [] if Path("/etc/testvm").exists() else ["test_*.py"]
_numbers = iter(range(1, 10_000))


def pytest_itemcollected(item: pytest.Item) -> None:
    """Whatever is in this folder needs the machine."""
    item.add_marker(pytest.mark.vm)


@pytest.fixture(scope="session")
def runtime() -> SystemContainerd:
    """The machine's containerd with its images."""
    return system_containerd()


@pytest.fixture
async def make_unit(runtime: SystemContainerd) -> AsyncIterator[MakeUnit]:
    """Makes one agent (not started) for a test: keywords are KubeletConfiguration fields."""
    made: list[UnitAgent] = []

    def make(**settings: Any) -> UnitAgent:
        folder = FOLDER / f"agent-{next(_numbers)}"
        shutil.rmtree(folder, ignore_errors=True)  # of a test run that was cut short
        agent = UnitAgent(runtime, folder, settings)
        runtime.set_driver(agent.driver)
        made.append(agent)
        return agent

    await clear_machine(runtime)
    yield make
    for agent in made:
        await agent.clear()
