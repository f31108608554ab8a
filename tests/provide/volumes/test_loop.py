"""The volumes of pods on a real file system: from cells to `Mounts`, and back to no directory at all."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from provide.volumes.samples import NODE, empty_dir, lifecycles, make_pod, roster, running
from support.quotas import FORMATS, LARGEST, MemoryQuotas, listed_in, quota_disk, volume_quotas
from support.virtual_time import clock_of_loop

from pykubelet.base.api.core import (
    DownwardAPIVolumeFile,
    DownwardAPIVolumeSource,
    HostPathVolumeSource,
    ObjectFieldSelector,
    Pod,
    Volume,
)
from pykubelet.base.kit.cells import Sink, make_cell, make_lazy_cell
from pykubelet.base.kit.flight import Outcome, SingleFlight, T, Uncertain
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import replace
from pykubelet.base.model.content import Content
from pykubelet.base.model.diagnostics import Diagnostics
from pykubelet.base.model.extensions import ExtensionStates
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.base.model.lifecycle import Lifecycles, Stage
from pykubelet.base.model.mounts import Mounts, PodMounts
from pykubelet.base.model.node import ApiNode
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.paths import Paths
from pykubelet.base.model.plugins import Plugins
from pykubelet.base.model.roster import Roster
from pykubelet.base.model.waits import Owner
from pykubelet.edges.host.fs import mounts as mount_table
from pykubelet.edges.host.fs.project_files import read_projects
from pykubelet.edges.host.fs.quotas import VolumeQuotas
from pykubelet.observe.stats.sizes import read_volume_sizes
from pykubelet.provide.volumes.execute import VolumeAdapters
from pykubelet.provide.volumes.expand import ClaimRequests, Expander
from pykubelet.provide.volumes.kind import ExtensionVolumes
from pykubelet.provide.volumes.loop import VolumeInputs, Volumes
from pykubelet.provide.volumes.subpath import Subpaths

pytestmark = pytest.mark.virtual_time

UID = PodUID("u1")
#: Longer than any pause between two tries.
LIMIT_S = 1000.0


async def until(condition: Callable[[], bool]) -> None:
    """Poll: the host announces no change."""
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def fill(root: Path) -> None:
    for n in range(60):
        try:
            write(root / f"fill{n}")
        except OSError:
            return


def free_space(root: Path) -> None:
    for path in root.glob("fill*"):
        path.unlink()


class Agent:
    """`Volumes` with the cells that it reads and writes."""

    def __init__(
        self,
        root: Path,
        flight: SingleFlight | None = None,
        quotas: VolumeQuotas | None = None,
        claims: ClaimRequests | None = None,
        extensions: Mapping[str, ExtensionVolumes] | None = None,
    ) -> None:
        self.paths = Paths(str(root), str(root / "logs"))
        roster_cell, self.roster = make_cell("roster", Roster())
        life_cell, self.lifecycles = make_cell("lifecycles", Lifecycles())
        seen_cell, self.observed = make_cell("observed", Observed())
        node_cell, _ = make_cell("node", NODE)
        plugins_cell, self.plugins = make_cell("plugins", Plugins())
        content_cell, self.content = make_cell("content", Content())
        api_node_cell, self.api_node = make_cell("api-node", ApiNode())
        extensions_cell, self.extensions = make_cell("extensions", ExtensionStates())
        self.mounts, writer = make_cell("mounts", Mounts())
        self.diagnostics, diagnostics = make_lazy_cell("volume-diagnostics", Diagnostics())
        self.recorded: Sink[KubeEvent] = Sink()
        flight = flight or SingleFlight("test")
        self.subpaths = Subpaths(self.mounts, self.paths, flight)
        quotas = quotas or VolumeQuotas(is_on=False)
        inputs = VolumeInputs(
            roster_cell,
            life_cell,
            seen_cell,
            node_cell,
            content_cell,
            plugins_cell,
            api_node_cell,
            extensions=extensions_cell,
        )
        clock = clock_of_loop()
        expander = Expander(claims, "n1", clock, self.recorded)
        edges = VolumeAdapters(quotas, flight, expander, extensions=extensions or {})
        self.loop = Volumes(self.paths, inputs, (writer, diagnostics), edges, clock, self.recorded)

    async def wait(self, condition: Callable[[Mounts], bool], limit_s: float = LIMIT_S) -> Mounts:
        async with asyncio.timeout(limit_s):
            return await self.mounts.wait_for(condition)

    async def wait_ready(self, uid: str = "u1", limit_s: float = LIMIT_S) -> PodMounts:
        def ready(now: Mounts) -> bool:
            pod = now.pods.get(PodUID(uid))
            return pod is not None and pod.ready

        found = (await self.wait(ready, limit_s)).pods[PodUID(uid)]
        msgspec.json.encode(
            (found, self.diagnostics.get())
        )  # what is published can be shown: a path in it is plain text
        return found

    async def wait_gone(self, path: str) -> None:
        await until(lambda: not os.path.exists(path))


@asynccontextmanager
async def started(
    root: Path,
    flight: SingleFlight | None = None,
    quotas: VolumeQuotas | None = None,
    claims: ClaimRequests | None = None,
    extensions: Mapping[str, ExtensionVolumes] | None = None,
) -> AsyncIterator[Agent]:
    agent = Agent(root, flight, quotas, claims, extensions)
    async with Supervisor("test") as tasks:
        work = tasks.start_child("volumes", agent.loop.run())
        await agent.wait(lambda now: now.reconstructed)
        yield agent
        assert not work.done()


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "root"
    path.mkdir()
    yield path
    for mount in mount_table.mounts_below(str(tmp_path)):
        mount_table.unmount(mount.target)


def set_roster(agent: Agent, *pods: Pod) -> None:
    agent.roster.publish(roster(*pods))


def write(path: str | Path, text: str = "x") -> None:
    Path(path).write_text(text)


def read(path: str | Path) -> str:
    return Path(path).read_text()


async def stop_pod(agent: Agent, pod: Pod) -> None:
    agent.roster.publish(roster())
    for stage in (Stage.TERMINATING, Stage.TERMINATED):
        agent.lifecycles.publish(lifecycles((pod, stage)))
        await asyncio.sleep(0)
    await agent.wait(lambda now: PodUID(pod.metadata.uid) not in now.pods)
    agent.lifecycles.publish(lifecycles())


async def test_a_life_with_data_through_a_restart_to_nothing(root: Path) -> None:
    pod = make_pod(empty_dir(), fs_group=2000)
    async with started(root) as agent:
        agent.observed.publish(running())
        set_roster(agent, pod)
        path = (await agent.wait_ready()).volumes["data"].host_path
        write(f"{path}/kept")
    async with started(root) as agent:
        set_roster(agent, pod)
        agent.observed.publish(running("u1"))
        await agent.wait_ready()
        assert read(f"{path}/kept") == "x"
        agent.observed.publish(running())
        await stop_pod(agent, pod)
        await agent.wait_gone(agent.paths.pod(UID))
        assert agent.recorded.events == []


async def test_volumes_of_a_user_namespace_are_in_quota_projects_until_they_are_removed(root: Path) -> None:
    calls, files = MemoryQuotas(), listed_in(root)
    confined = make_pod(empty_dir(size_limit="1Mi"), empty_dir("other"), empty_dir("memory", "Memory"))
    confined = replace(confined, spec=replace(confined.spec, hostUsers=False))
    plain = make_pod(empty_dir(), uid="u2")
    async with started(root, quotas=volume_quotas(root, calls)) as agent:
        agent.observed.publish(running())
        set_roster(agent, confined, plain)
        volumes = (await agent.wait_ready()).volumes
        await agent.wait_ready("u2")
        listed = {path: number for number, path in read_projects(files)}
        assert listed.keys() == {volumes["data"].host_path, volumes["other"].host_path}
        assert [calls.limits[listed[volumes[name].host_path]] for name in ("data", "other")] == [LARGEST, 0]
    left = f"{root}/pods/killed/volumes/kubernetes.io~empty-dir/data"
    Path(files.projects).write_text(f"{Path(files.projects).read_text()}1048600:{left}\n")
    async with started(root, quotas=volume_quotas(root, calls)) as agent:
        await until(lambda: left not in read(files.projects))
        set_roster(agent, confined)
        agent.observed.publish(running())
        await agent.wait_ready()
        assert {path for _, path in read_projects(files)} == listed.keys()
        await stop_pod(agent, confined)
        await agent.wait_gone(agent.paths.pod(UID))
        assert read(files.projects) == read(files.names) == ""


@pytest.mark.integration
@pytest.mark.parametrize("name", FORMATS)
async def test_what_a_volume_of_a_user_namespace_uses_is_counted_by_the_kernel(tmp_path: Path, name: str) -> None:
    pod = make_pod(empty_dir(size_limit="1Mi"), fs_group=2000)
    pod = replace(pod, spec=replace(pod.spec, hostUsers=False))
    with quota_disk(name, tmp_path) as disk:
        root, files = disk / "root", listed_in(tmp_path)
        root.mkdir()
        quotas = VolumeQuotas(is_on=True, files=files)
        async with started(root, quotas=quotas) as agent:
            agent.observed.publish(running())
            set_roster(agent, pod)
            volumes = (await agent.wait_ready()).volumes
            path = Path(volumes["data"].host_path)
            with (path / "deleted").open("wb") as deleted:
                deleted.write(b"x" * (3 << 20))
                deleted.flush()
                (path / "deleted").unlink()
                os.sync()
                sizes = read_volume_sizes(agent.paths.pods, volumes, quotas, 0.0)
                assert sizes.volumes[0].fs.used is not None and sizes.volumes[0].fs.used >= 3 << 20
            assert [source for source, _ in sizes.took] == ["fsquota"]
            assert [listed for _, listed in read_projects(files)] == [str(path)]
            await stop_pod(agent, pod)
            await agent.wait_gone(agent.paths.pod(UID))
            assert read_projects(files) == []


@pytest.mark.integration
async def test_after_a_restart_lost_pods_are_unmounted_and_removed_and_running_ones_left(root: Path) -> None:
    lost, live = (make_pod(empty_dir(medium="Memory"), uid=uid) for uid in ("lost", "live"))
    async with started(root) as agent:
        set_roster(agent, lost, live)
        await agent.wait_ready("lost")
        path = (await agent.wait_ready("live")).volumes["data"].host_path
        write(f"{path}/kept")
        assert isinstance(await agent.subpaths.prepare_subpath(PodUID("lost"), "data", "main", 0, "part"), str)
    (root / "pods" / "garbage").write_text("")
    (root / "pods" / "lost" / "volumes" / "kubernetes.io~empty-dir" / "file").write_text("")
    async with started(root) as agent:
        agent.observed.publish(running("live"))
        await asyncio.sleep(0.05)
        assert (root / "pods" / "lost").exists()  # the sources are not ready
        agent.roster.publish(roster())
        await agent.wait_gone(agent.paths.pod(PodUID("lost")))
        assert read(f"{path}/kept") == "x"
        assert [m.target for m in mount_table.mounts_below(str(root))] == [path]


@pytest.mark.integration
async def test_labels_follow_the_pod(root: Path) -> None:
    item = DownwardAPIVolumeFile(path="labels", fieldRef=ObjectFieldSelector(fieldPath="metadata.labels"))
    info = Volume(name="info", downwardAPI=DownwardAPIVolumeSource(items=(item,)))
    async with started(root) as agent:
        set_roster(agent, make_pod(info, labels={"a": "1"}))
        view = await agent.wait_ready()
        path = view.volumes["info"].host_path + "/labels"
        assert view.volumes["info"].read_only
        assert read(path) == 'a="1"'
        set_roster(agent, make_pod(info, labels={"a": "2"}))
        await until(lambda: read(path) == 'a="2"')


@pytest.mark.integration
async def test_a_full_disk_is_reported_and_gone_when_space_returns(root: Path) -> None:
    mount_table.mount("tmpfs", str(root), "tmpfs", ("size=256k", "nr_inodes=40"))
    fill(root)
    async with started(root) as agent:
        set_roster(agent, make_pod(empty_dir()))

        def failing(now: Mounts) -> bool:
            return UID in now.pods and any(wait.reason == "FailedMount" for wait in now.pods[UID].waits)

        wait = next(w for w in (await agent.wait(failing)).pods[UID].waits if w.reason == "FailedMount")
        assert (wait.what, wait.owner, wait.subject) == ("volume", Owner.VOLUME_MANAGER, "data")
        assert "no space left on device" in wait.detail
        assert wait.next_at is not None
        free_space(root)
        await agent.wait_ready()
        messages = [event.message for event in agent.recorded.events if event.reason == "FailedMount"]
        assert messages[0].startswith('MountVolume.SetUp failed for volume "data" : mkdir ')


class DeadFlight(SingleFlight):
    """Work on one pod's volumes never comes back; the rest is done as always."""

    def __init__(self, dead: str) -> None:
        super().__init__("test")
        self.dead = dead
        self.asked = 0

    async def run(self, key: str, work: Callable[[], T], deadline_s: float) -> Outcome[T]:
        if key != self.dead:
            return await super().run(key, work, deadline_s)
        self.asked += 1
        return Uncertain(0.0)


async def test_a_path_that_hangs_holds_up_no_other_pod(root: Path) -> None:
    flight = DeadFlight("volume/u1/host")
    hangs = Volume(name="host", hostPath=HostPathVolumeSource(path="/dead", type="Directory"))
    async with started(root, flight) as agent:
        set_roster(agent, make_pod(hangs, empty_dir()), make_pod(empty_dir(), uid="u2"))
        await agent.wait_ready("u2")
        view = (await agent.wait(lambda now: "data" in now.pods[UID].volumes)).pods[UID]
        assert not view.ready
        assert [w.subject for w in view.waits if w.reason == "FailedMount"] == ["host"]
        flight.dead = ""
        error = "hostPath type check failed: /dead is not a directory"
        expected = f'MountVolume.SetUp failed for volume "host" : {error}'
        await until(lambda: expected in [event.message for event in agent.recorded.events])


async def test_work_that_is_stuck_in_a_thread_is_uncertain(root: Path) -> None:
    """The real flight: a second try while the first has not come back does not begin."""
    release = threading.Event()
    flight = SingleFlight("test")
    key = "volume/u1/data"
    async with Supervisor("stuck") as tasks:
        tasks.start_child("stuck", flight.run(key, release.wait, 60))
        await asyncio.sleep(0)
        async with started(root, flight) as agent:
            set_roster(agent, make_pod(empty_dir()))

            def failing(now: Mounts) -> bool:
                return UID in now.pods and any(w.reason == "FailedMount" for w in now.pods[UID].waits)

            waits = (await agent.wait(failing)).pods[UID].waits
            assert "may still be under way" in waits[0].detail
            release.set()
            await agent.wait_ready()
