"""The claim manager with drivers and an API server, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from provide.claims.samples import GPU, claiming_pod
from provide.claims.stand import CLAIMS, DEVICE, LIMIT_S, Stand
from support.api_server import FakeApiServer
from support.drivers import DriverProcess, dra_driver
from support.memory_api import virtual_api_server

from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.cells import make_cell
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.claims import ClaimDeviceHealth
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.lifecycle import Stage
from pykubelet.base.model.plugins import Plugin, Plugins, PluginType
from pykubelet.base.model.roster import pod_ref
from pykubelet.provide.claims.drivers import RECONNECT, Drivers
from pykubelet.provide.claims.operations import Calls, ClaimOperations

pytestmark = pytest.mark.virtual_time

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
#: More iterations of the event loop than it takes to prepare the claims of two pods, or to unprepare them.
ITERATIONS = 60


@pytest.fixture
async def stand(folder: Path) -> AsyncIterator[Stand]:
    async with virtual_api_server() as server:
        yield Stand(folder, server)


@pytest.fixture
async def gpu(folder: Path) -> AsyncIterator[DriverProcess]:
    async with dra_driver(folder) as driver:
        await driver.behave([DEVICE])
        yield driver


WEB = claiming_pod()


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_a_claim_is_prepared_and_unprepared(stand: Stand, version: str) -> None:
    stand.create()
    async with dra_driver(stand.root, versions=f"{version}.DRAPlugin") as driver, stand.running():
        await driver.behave([{**DEVICE, "share": "s1"} if version == "v1" else DEVICE])
        stand.want(WEB)
        claims = await stand.ready()
        (claim,) = claims.containers["main"]
        assert (claim.name, claim.namespace, claim.cdi) == ("one", "default", (f"{GPU}/gpu=one",))
        assert claim.devices[0].share_id == ("s1" if version == "v1" else "")
        assert "side" not in claims.containers
        assert stand.claims.get().in_use == {"<any>": 1, GPU: 1}
        assert stand.kept() == {"one": ["uid-web"]}
        stand.life(WEB, Stage.TERMINATING)
        stand.life(WEB, Stage.TERMINATING, is_stopped=True)
        await stand.gone()
        assert (driver.claims("NodePrepareResources"), driver.claims("NodeUnprepareResources")) == (["one"], ["one"])
        assert stand.kept() == {}
        assert stand.claims.get().in_use == {"<any>": 0}


async def test_a_shared_claim_is_prepared_once_and_unprepared_after_its_last_pod(
    stand: Stand, gpu: DriverProcess
) -> None:
    stand.create("one", "a", "b")
    a, b = claiming_pod("a"), claiming_pod("b")
    async with stand.running():
        stand.want(a, b)
        await stand.ready("a")
        await stand.ready("b")
        assert gpu.claims("NodePrepareResources") == ["one"]
        stand.life(a, Stage.TERMINATED)
        await stand.gone("a")
        assert stand.kept() == {"one": ["uid-b"]}
        assert gpu.claims("NodeUnprepareResources") == []
        stand.life(b, Stage.TERMINATED)
        await stand.gone("b")
        assert gpu.claims("NodeUnprepareResources") == ["one"]


async def test_all_claims_of_a_driver_go_in_one_call(stand: Stand, gpu: DriverProcess) -> None:
    names = ("one", "two", "three")
    for name in names:
        stand.create(name)
    async with stand.running():
        stand.want(claiming_pod("web", *({"name": name, "resourceClaimName": name} for name in names)))
        await stand.ready()
        (call,) = gpu.calls("NodePrepareResources")
        assert [claim[1] for claim in call["claims"]] == list(names)


async def test_a_pod_that_may_not_use_its_claim_reaches_no_driver(stand: Stand, gpu: DriverProcess) -> None:
    async with stand.running():
        stand.want(WEB)
        await stand.fails(
            'prepare dynamic resources: fetch ResourceClaim one: resourceclaims.resource.k8s.io "one" not found'
        )
        stand.create("one", "other")
        made = stand.server.get(f"{CLAIMS}/one")["metadata"]["uid"]
        error = f"prepare dynamic resources: pod web (uid-web) is not allowed to use ResourceClaim one ({made})"
        await stand.fails(error)
        assert [event.message for event in stand.recorder.events][-1] == f"Failed to prepare dynamic resources: {error}"
        assert stand.recorder.events[-1].reason == "FailedPrepareDynamicResources"
        stand.life(WEB, Stage.TERMINATED)
        await stand.gone()
        assert not gpu.claims("NodePrepareResources") + gpu.claims("NodeUnprepareResources")


async def test_a_pod_waits_for_the_name_of_its_claim(stand: Stand, gpu: DriverProcess) -> None:
    template = {"name": "gpu", "resourceClaimTemplateName": "t"}
    stand.create("web-gpu", owner="web")
    async with stand.running():
        stand.want(claiming_pod("web", template))
        await stand.fails('prepare dynamic resources: pod "default/web": ResourceClaim not created yet')
        made = [{"name": "gpu", "resourceClaimName": "web-gpu"}]
        stand.want(claiming_pod("web", template, resourceClaimStatuses=made))
        await stand.ready()
        assert gpu.claims("NodePrepareResources") == ["web-gpu"]


async def test_a_driver_that_is_absent_is_waited_for(stand: Stand) -> None:
    stand.create()
    async with stand.running():
        stand.want(WEB)
        await stand.fails(f"prepare dynamic resources: DRA driver {GPU} is not registered")
        async with dra_driver(stand.root) as driver:
            await stand.ready()
            await driver.stop()
        stand.life(WEB, Stage.TERMINATING, is_stopped=True)
        await stand.fails(f"unprepare dynamic resources: DRA driver {GPU} is not registered")
        assert stand.kept() == {"one": ["uid-web"]}
        async with dra_driver(stand.root) as driver:
            await stand.gone()
            assert driver.claims("NodeUnprepareResources") == ["one"]


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("fail out of GPUs", "NodePrepareResources: rpc error: code = Internal desc = out of GPUs"),
        ("error no such GPU", "NodePrepareResources failed for ResourceClaim one: no such GPU"),
        ("skip", "NodePrepareResources skipped 1 ResourceClaims"),
        ("lie", "NodePrepareResources returned result for unknown claim UID unknown-claim"),
        (
            "flood",
            "NodePrepareResources: rpc error: code = ResourceExhausted desc = grpc: received message larger than max",
        ),
    ],
)
async def test_a_failed_prepare_is_repeated_and_its_claim_unprepared(
    stand: Stand, gpu: DriverProcess, how: str, error: str
) -> None:
    stand.create()
    await gpu.behave(prepare=how)
    async with stand.running():
        stand.want(WEB)
        await stand.fails(f"prepare dynamic resources: {error}")
        await gpu.behave(prepare="")
        await stand.ready()
        stand.life(WEB, Stage.TERMINATED)
        await stand.gone()


async def test_too_many_devices_are_refused(stand: Stand, gpu: DriverProcess) -> None:
    stand.create()
    await gpu.behave([DEVICE] * 1001)
    async with stand.running():
        stand.want(WEB)
        await stand.fails(
            "prepare dynamic resources: NodePrepareResources: rpc error: code = ResourceExhausted desc = "
            "the driver's message has 1001 devices, more than are accepted"
        )


async def test_a_driver_that_hangs_delays_only_its_pods(stand: Stand, gpu: DriverProcess) -> None:
    stand.create("one", "stuck")
    stand.create("two", "web", drivers=("net.example.com",))
    await gpu.behave(prepare="hang")
    stuck = claiming_pod("stuck")
    async with dra_driver(stand.root, "net.example.com") as net, stand.running():
        stand.want(stuck, claiming_pod("web", {"name": "net", "resourceClaimName": "two"}))
        await stand.ready()
        await gpu.wait_calls("NodePrepareResources", 1)
        await stand.fails(f"NodePrepareResources of DRA driver {GPU}", "stuck")
        assert net.claims("NodePrepareResources") == ["two"]
        # the pod is deleted while the call hangs: the claim was offered to the driver, so it is unprepared
        stand.life(stuck, Stage.TERMINATING)
        stand.life(stuck, Stage.TERMINATING, is_stopped=True)
        await stand.gone("stuck")
        assert gpu.claims("NodeUnprepareResources") == ["one"]


async def test_a_driver_that_crashes_is_called_again(stand: Stand, gpu: DriverProcess) -> None:
    stand.create()
    await gpu.behave(prepare="crash")
    async with stand.running():
        stand.want(WEB)
        await gpu.wait_calls("NodePrepareResources", 1)
        async with dra_driver(stand.root) as again:
            await again.behave([DEVICE])
            claims = await stand.ready()
            assert claims.containers["main"][0].cdi == (f"{GPU}/gpu=one",)


class BrokenOnce(ClaimOperations):
    """Has a bug in the first call to unprepare."""

    crashes = 1

    async def unprepare(self, uid: PodUID, calls: Calls) -> None:
        if self.crashes:
            self.crashes -= 1
            raise RuntimeError("a bug")
        await super().unprepare(uid, calls)


async def test_claims_are_unprepared_after_a_crash_although_the_pod_is_gone(stand: Stand, gpu: DriverProcess) -> None:
    stand.create()
    async with stand.running(operations_type=BrokenOnce):
        stand.want(WEB)
        await stand.ready()
        stand.unwant("web")
        stand.life(WEB, Stage.TERMINATING, is_stopped=True)
        await stand.gone()
        assert gpu.claims("NodeUnprepareResources") == ["one"]


@asynccontextmanager
async def closing_driver(path: Path) -> AsyncIterator[asyncio.Queue[float]]:
    """A socket that accepts connections and closes them at once. Yields the times at which it did."""
    times: asyncio.Queue[float] = asyncio.Queue()

    def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        times.put_nowait(asyncio.get_running_loop().time())
        writer.close()

    async with await asyncio.start_unix_server(close, path):
        yield times


async def test_a_driver_that_closes_its_connections_is_connected_after_growing_pauses(folder: Path) -> None:
    path = str(folder / "dra.sock")
    plugin = Plugin(PluginType.DRA, GPU, path, path, ("v1.DRAPlugin",), 1.0)
    drivers = Drivers(make_cell("plugins", Plugins({path: plugin}))[0])
    async with closing_driver(folder / "dra.sock") as times, Supervisor("test") as tasks, asyncio.timeout(LIMIT_S):
        tasks.start_root("drivers", drivers.run())
        first, second, third = [await times.get() for _ in range(3)]
    assert second - first == pytest.approx(RECONNECT.delay_s(1), abs=0.01)
    assert third - second == pytest.approx(RECONNECT.delay_s(2), abs=0.01)


async def test_a_driver_that_comes_and_goes_wakes_a_pod_once_in_a_pause(stand: Stand) -> None:
    stand.create()
    rare = BackoffPolicy(initial_s=600.0, cap_s=600.0)
    path = stand.root / "dra.sock"
    async with closing_driver(path), stand.running(retry=rare), asyncio.timeout(LIMIT_S):
        stand.want(WEB)
        await stand.fails("prepare dynamic resources: DRA driver")
        for _ in range(10):
            stand.plug(str(path))
            await stand.drivers.wait_for(lambda now: bool(now.connected))
            stand.plug()
            await stand.drivers.wait_for(lambda now: not now.plugins)
        stand.want(claiming_pod("last"))
        await stand.fails("prepare dynamic resources:", "last")
        tries = [event for event in stand.recorder.events if event.pod == pod_ref(WEB)]
        assert len(tries) <= 2


async def test_one_connection_serves_all_calls(stand: Stand, gpu: DriverProcess) -> None:
    stand.create("one", "a")
    stand.create("two", "b")
    async with stand.running():
        stand.want(claiming_pod("a"), claiming_pod("b", {"name": "gpu", "resourceClaimName": "two"}))
        await stand.ready("a")
        await stand.ready("b")
        assert len({call["peer"] for call in gpu.calls("NodePrepareResources")}) == 1


async def test_the_newest_plugin_of_a_driver_is_called(stand: Stand, gpu: DriverProcess) -> None:
    stand.create("one", "a")
    stand.create("two", "b")
    b = claiming_pod("b", {"name": "gpu", "resourceClaimName": "two"})
    async with stand.running():
        stand.want(claiming_pod("a"))
        await stand.ready("a")
        async with dra_driver(stand.root, instance="-new") as newer:
            await stand_plugins(stand, 2)
            stand.want(b)
            await stand.ready("b")
            assert (newer.claims("NodePrepareResources"), gpu.claims("NodePrepareResources")) == (["two"], ["one"])
        stand.life(b, Stage.TERMINATED)
        await stand.gone("b")  # its process is gone, so the older one is called
        assert gpu.claims("NodeUnprepareResources") == ["two"]


async def stand_plugins(stand: Stand, count: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        await stand.plugins.wait_for(lambda now: len(now.plugins) == count)


async def test_the_health_of_prepared_devices_is_published(stand: Stand) -> None:
    stand.create()
    key = (GPU, "pool", "dev-0")
    other = {"device": "dev-1", "health": "Healthy"}
    versions = "v1.DRAPlugin,v1.DRAResourceHealth,v1alpha1.DRAResourceHealth"
    async with dra_driver(stand.root, versions=versions, health=True) as driver, stand.running():
        await driver.behave([DEVICE], health_of=[{"device": "dev-0", "health": "Unhealthy", "message": "hot"}, other])
        stand.want(WEB)
        claims = await stand.ready()
        assert claims.resources["main"][0].name == "claim:gpu"
        async with asyncio.timeout(LIMIT_S):
            await stand.claims.wait_for(lambda now: now.health == {key: ClaimDeviceHealth("Unhealthy", "hot")})
            await driver.behave(health_of=[{"device": "dev-0", "health": "Healthy"}])
            await stand.claims.wait_for(lambda now: now.health == {key: ClaimDeviceHealth("Healthy")})
            peers = {call["peer"] for call in driver.calls() if "peer" in call}
            assert len(peers) == 1  # one connection for everything
            await driver.kill()
            await stand.claims.wait_for(lambda now: not now.health)


async def test_a_pod_that_begins_to_use_a_claim_while_it_is_unprepared_gets_it_prepared_again(
    stand: Stand, gpu: DriverProcess
) -> None:
    stand.create("one", "a", "b")
    a, b = claiming_pod("a"), claiming_pod("b")
    async with stand.running():
        stand.want(a)
        await stand.ready("a")
        await gpu.behave(unprepare="fail half of it is done")
        stand.life(a, Stage.TERMINATED)
        await stand.fails("unprepare dynamic resources", "a")
        stand.want(b)
        await stand.ready("b")
        assert gpu.claims("NodePrepareResources") == ["one", "one"]
        await stand.gone("a")
        assert stand.kept() == {"one": ["uid-b"]}


async def test_what_one_driver_has_prepared_is_there_once_after_another_has_failed(
    stand: Stand, gpu: DriverProcess
) -> None:
    stand.create("one", "web", drivers=(GPU, "net.example.com"))
    async with dra_driver(stand.root, "net.example.com") as net, stand.running():
        await net.behave(prepare="fail no link")
        stand.want(WEB)
        await stand.fails("prepare dynamic resources: NodePrepareResources: rpc error")
        await net.behave(prepare="")
        claims = await stand.ready()
        assert gpu.claims("NodePrepareResources") == ["one", "one"]
        assert [device.driver for device in claims.containers["main"][0].devices] == [GPU]


# Devices that need nothing of the node


async def test_a_claim_whose_devices_skip_the_calls_needs_no_driver(stand: Stand) -> None:
    stand.create(skips=("*",))
    async with stand.running():
        stand.want(WEB)
        (claim,) = (await stand.ready()).containers["main"]
        assert claim.devices == ()
    async with stand.running():  # the state file has what is skipped
        stand.life(WEB, Stage.TERMINATED)
        await stand.gone()
        assert stand.kept() == {}


async def test_a_driver_may_only_prepare(stand: Stand, gpu: DriverProcess) -> None:
    stand.create(skips=("NodeUnprepareResources",))
    async with stand.running():
        stand.want(WEB)
        await stand.ready()
        stand.life(WEB, Stage.TERMINATED)
        await stand.gone()
    assert gpu.claims("NodePrepareResources") == ["one"]
    assert gpu.claims("NodeUnprepareResources") == []


# Restarts of the agent


async def test_a_pod_that_runs_keeps_its_claim_without_another_call(stand: Stand, gpu: DriverProcess) -> None:
    stand.create()
    async with stand.running():
        stand.want(WEB)
        before = await stand.ready()
    stand.runs(WEB)
    await gpu.stop()  # not even the driver is needed
    async with stand.running():
        assert (await stand.ready()).containers == before.containers
    assert gpu.claims("NodePrepareResources") == ["one"]


async def test_a_pod_without_a_sandbox_is_prepared_again(stand: Stand, gpu: DriverProcess) -> None:
    stand.create()
    async with stand.running():
        stand.want(WEB)
        before = await stand.ready()
    async with stand.running():
        assert (await stand.ready()).containers == before.containers  # the devices are there once
    assert gpu.claims("NodePrepareResources") == ["one", "one"]


async def test_claims_of_a_pod_that_was_deleted_meanwhile_are_unprepared(stand: Stand, gpu: DriverProcess) -> None:
    stand.create()
    async with stand.running():
        stand.want(WEB)
        await stand.ready()
    stand.server.delete(f"{CLAIMS}/one")
    stand.unwant("web")
    stand.runs(WEB)
    async with stand.running():
        await gpu.wait_calls("GetInfo", 2)
        assert not gpu.calls("NodeUnprepareResources")  # a container may still run
        stand.runs()
        await stand.gone()
    assert (gpu.claims("NodeUnprepareResources"), stand.kept()) == (["one"], {})
    assert gpu.claims("NodePrepareResources") == ["one"]


@pytest.mark.parametrize("stays", [True, False])
async def test_claims_of_a_pod_that_is_deleted_before_the_runtime_answers_are_unprepared(
    stand: Stand, gpu: DriverProcess, stays: bool
) -> None:
    """`stays`: a sandbox of the pod is found then, and is gone later."""
    stand.create()
    stand.unlisted()
    async with stand.running():
        stand.want(WEB)
        stand.life(WEB, Stage.SYNCING)
        await stand.ready()
        stand.unwant("web")
        stand.forget(WEB)
        await asyncio.sleep(1)
        stand.runs(*([WEB] if stays else []))
        await asyncio.sleep(1)
        assert bool(stand.kept()) is stays
        stand.runs()
        await stand.gone()
    assert stand.kept() == {}
    assert gpu.claims("NodeUnprepareResources")


async def test_a_claim_of_the_same_name_waits_until_the_older_one_is_unprepared(
    stand: Stand, gpu: DriverProcess
) -> None:
    stand.create()
    again = claiming_pod("again")
    async with stand.running():
        stand.want(WEB)
        await stand.ready()
        old = stand.server.get(f"{CLAIMS}/one")["metadata"]["uid"]
        stand.server.delete(f"{CLAIMS}/one")
        stand.create("one", "again")
        stand.want(again)
        await stand.fails(
            f"prepare dynamic resources: old ResourceClaim with same name one and different UID {old} still exists "
            "(previous pod force-deleted?!)",
            "again",
        )
        stand.life(WEB, Stage.TERMINATED)
        await stand.gone()
        await stand.ready("again")


async def iterate(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(20))
async def test_an_agent_that_ends_at_any_moment_leaves_no_claim_prepared(
    stand: Stand, gpu: DriverProcess, seed: int
) -> None:
    """Only the outcome is checked, whatever the moments are."""
    dice = Random(seed)
    pods = [claiming_pod(name) for name in ("a", "b")]
    stand.create("one", "a", "b")
    stand.want(*pods)
    for _ in range(4):
        async with stand.running():
            await iterate(dice.randrange(ITERATIONS))
    async with stand.running():
        await stand.ready("a")
        await stand.ready("b")
    for pod in pods:
        stand.life(pod, Stage.TERMINATED)
    for _ in range(4):
        async with stand.running():
            await iterate(dice.randrange(ITERATIONS))
    async with stand.running():
        await stand.gone("a")
        await stand.gone("b")
    assert stand.kept() == {}
    last = [call["call"] for call in gpu.calls() if call["call"].startswith("Node")][-1]
    assert last == "NodeUnprepareResources"


# ResourceSlices


def slice_of(driver: str, node: str = "n1") -> dict[str, Any]:
    return {"metadata": {"name": f"{node}-{driver}"}, "spec": {"nodeName": node, "driver": driver}}


def slices(server: FakeApiServer) -> Iterator[str]:
    for change in server.store.objects:
        if change.plural == "resourceslices":
            yield change.name


async def until_slices(server: FakeApiServer, expected: set[str]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while set(slices(server)) != expected:  # noqa: ASYNC110 - the server notifies no caller
            await asyncio.sleep(0.02)


async def test_slices_go_at_the_start_and_with_their_driver(stand: Stand) -> None:
    for made in (slice_of(GPU), slice_of("net"), slice_of(GPU, "n2")):
        stand.server.create(SLICES, made)
    async with stand.running():
        await until_slices(stand.server, {f"n2-{GPU}"})
        async with dra_driver(stand.root) as driver:
            await stand_plugins(stand, 1)
            stand.server.create(SLICES, slice_of(GPU))
            stand.server.create(SLICES, slice_of("net"))
            await driver.kill()  # its registration socket stays, but it does not answer
            await until_slices(stand.server, {f"n2-{GPU}", "n1-net"})
