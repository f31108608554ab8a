"""A resize of a running pod on the in-memory runtime: what the agent asks the runtime for."""

from __future__ import annotations

from pathlib import Path

import pytest
from act.pods.node import named, node
from act.pods.scenes import container, pod

from pykubelet.base.api.core import Pod
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.observed import ContainerView
from pykubelet.base.model.roster import RosterPod
from pykubelet.base.model.sizing import SizeChange, size_of

pytestmark = pytest.mark.virtual_time
LISTS = ("ListContainers", "ListPodSandbox", "PodSandboxStatus")
UID = PodUID("uid-web")


def sized(*cpus: str) -> Pod:
    names = ("app", "beside")[: len(cpus)]
    containers = [
        container(name, resources={"requests": {"cpu": cpu}, "limits": {"cpu": cpu}})
        for name, cpu in zip(names, cpus, strict=True)
    ]
    return named(pod(*containers), "web")


async def test_only_the_container_that_was_resized_is_read_again(tmp_path: Path) -> None:
    before, after = sized("200m", "100m"), sized("400m", "100m")
    async with node(tmp_path) as n:
        n.want(before)
        await n.wait_running("web", "app", "beside")
        await n.wait_seen("web")
        resized = n.fake.container("app")
        n.fake.calls.clear()
        n.wanted[UID] = RosterPod(after, "api", 1.0, change=SizeChange(size_of(before), n.clock.wall()))
        n.publish()
        await n.wait_for(lambda: quota(n.observed.get().pods[UID].newest("app")) == 40_000)
        assert [call.request.container_id for call in n.fake.called("ContainerStatus")] == [resized.id]
        assert not [call for method in LISTS for call in n.fake.called(method)]


async def test_the_cgroup_of_the_pod_is_changed_once_before_and_once_after_its_containers(tmp_path: Path) -> None:
    before, after = sized("200m"), sized("400m")
    async with node(tmp_path) as n:
        n.want(before)
        await n.wait_running("web", "app")
        await n.wait_seen("web")
        n.groups.writes.clear()
        n.wanted[UID] = RosterPod(after, "api", 1.0, change=SizeChange(size_of(before), n.clock.wall()))
        n.publish()
        await n.wait_for(lambda: quota(n.observed.get().pods[UID].newest("app")) == 40_000)
        assert n.groups.writes == ["widen_pod", "ensure_pod"]


def quota(view: ContainerView | None) -> int:
    return view.resources.cpu_quota if view is not None and view.resources is not None else 0
