"""A control plane for the whole run, and agents that are nodes of it. All tests below this folder are cluster tests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.agent import NODE_NAME, Agent, sweep
from support.cluster import Cluster, joined, make_namespace, up_or_anew
from support.reference import EitherAgent
from testbed import containerd, node, places
from testbed.controlplane import SCHEDULER, ControlPlane
from testbed.controlplane_programs import VARIABLE
from testbed.host import TestbedError
from testbed.private_runtime import Testbed

_numbers = iter(range(1, 10_000))
#: The messages and fields of the local API are compared with a control plane of this minor release, or a newer one.
FIRST_COMPARED = 36
MakeAgent = Callable[..., Agent]
MakeEitherAgent = Callable[..., EitherAgent]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Whatever is in this folder needs a control plane."""
    item.add_marker(pytest.mark.cluster)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Some tests need a scheduler, which not every control plane has."""
    assets = os.environ.get(VARIABLE)
    if assets and not Path(assets, SCHEDULER).exists():
        without = [item for item in items if item.get_closest_marker("scheduler")]
        items[:] = [item for item in items if item not in without]
        config.hook.pytest_deselected(items=without)


@pytest.fixture(scope="session")
def control_plane_folder() -> Iterator[Path]:
    """Where the control plane of the whole run is kept."""
    node.sweep_dead_runs()
    folder = places.run_folder("cluster")
    try:
        yield folder
    finally:
        node.down(folder)


@pytest.fixture
def control_plane(control_plane_folder: Path) -> ControlPlane:
    """A running control plane, the same for all tests. Tests that stop or kill a part of it start it again.

    One that a test left broken, and that does not come up, is replaced by a new one.
    """
    try:
        return up_or_anew(control_plane_folder)
    except TestbedError as error:
        pytest.fail(str(error))


@pytest.fixture
def cluster(control_plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The cluster, with a namespace of the test's own. At the end its pods are removed, whoever may still mind."""
    whole = Cluster(control_plane)
    own = make_namespace(whole, f"test-{next(_numbers)}")
    try:
        yield own
    finally:
        own.clear()
        whole.close()


@pytest.fixture
def make_cluster_agent(testbed: Testbed, cluster: Cluster) -> Iterator[MakeAgent]:
    """Makes agents (not started) that are the node NODE_NAME: keywords are KubeletConfiguration fields."""
    made: list[Agent] = []

    def make(flags: tuple[str, ...] = (), kind: type[Agent] = Agent, **settings: Any) -> Agent:
        own_settings, own_flags = joined(cluster.plane, settings)
        folder = Path(testbed.folder) / f"cluster-agent-{next(_numbers)}"
        made.append(kind(testbed, folder, own_settings, own_flags + flags))
        cluster.agents.append(made[-1])
        return made[-1]

    with asyncio.Runner() as runner:
        runner.run(sweep(testbed))
        yield make
        containerd.start(testbed)
        for agent in made:
            with contextlib.suppress(FileNotFoundError):
                runner.run(agent.clear())
            shutil.rmtree(agent.folder, ignore_errors=True)
        cluster.delete(f"/api/v1/nodes/{NODE_NAME}")


def skip_if_older(cluster: Cluster, first_minor: int) -> None:
    """Skip the test if the control plane is of an older minor release."""
    if cluster.plane.programs.minor < first_minor:
        pytest.skip(f"the control plane is older than 1.{first_minor}: {VARIABLE} names no folder with a newer one")


@pytest.fixture
def newest_cluster(cluster: Cluster) -> Cluster:
    """A control plane of the release that the local API is compared with."""
    skip_if_older(cluster, FIRST_COMPARED)
    return cluster


@pytest.fixture
def make_either_agent(make_cluster_agent: MakeAgent, cluster: Cluster) -> MakeEitherAgent:
    """Makes agents for takeovers, started as the reference; keywords are KubeletConfiguration fields."""

    def make(first_minor: int, **settings: Any) -> EitherAgent:
        skip_if_older(cluster, first_minor)
        agent = make_cluster_agent(kind=EitherAgent, **settings)
        assert isinstance(agent, EitherAgent)
        agent.is_reference = True
        agent.start()
        return agent

    return make


@pytest.fixture
def cluster_agent(make_cluster_agent: MakeAgent, cluster: Cluster) -> Agent:
    """A started agent whose node is Ready."""
    agent = make_cluster_agent().start()
    cluster.wait_node_ready()
    return agent
