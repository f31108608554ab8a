"""Expansion of mounted CSI volumes with a driver: when it is called, what with, and what is left of failures."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from provide.volumes.csi_samples import HANDLE, LIFE, a_pod, begin, global_mount, known, planned, registered
from provide.volumes.test_expansion import Cluster
from provide.volumes.test_loop import UID, Agent, started, stop_pod, until
from support.csi import DRIVER, CsiProcess, csi_driver, csi_folder

from pykubelet.base.api.codec import from_object
from pykubelet.base.api.core import Secret
from pykubelet.base.api.storage import PersistentVolume, PersistentVolumeClaim
from pykubelet.base.kit.values import replace
from pykubelet.base.model.content import Absent, Content, ContentKind, Found, ObjectKey, Present
from pykubelet.edges.csi.node import Capability
from pykubelet.provide.volumes.csi.calls import expand_request
from pykubelet.provide.volumes.csi.expand import expand
from pykubelet.provide.volumes.expansion import ExpandError, ExpandFault
from pykubelet.provide.volumes.kind import CallContext
from pykubelet.provide.volumes.plan import volume_keys

pytestmark = pytest.mark.virtual_time

T = TypeVar("T")
MI = 1 << 20
CLAIM, VOLUME = ObjectKey(ContentKind.VOLUME_CLAIM, "shop", "data"), ObjectKey(ContentKind.VOLUME, "", "pv")
SECRET = ObjectKey(ContentKind.SECRET, "vault", "grow")
EXPAND = "NodeExpandVolume"


def in_mi(number: int) -> dict[str, Any]:
    return {"storage": f"{number}Mi"}


class Store(Cluster):
    """The API server's claim and PersistentVolume, as the controllers change them."""

    def __init__(self, size: int = 8, capacity: int = 8, **status: Any) -> None:
        super().__init__({"capacity": in_mi(size), **status}, {"volumeName": "pv"})
        self.capacity = capacity
        self.version = 1

    def content(self, more: dict[ObjectKey, Found] | None = None, **csi: Any) -> Content:
        """What was read of it."""
        found = known(csi=csi, more=more)
        volume = found.objects[VOLUME]
        assert isinstance(volume, Present) and isinstance(volume.value, PersistentVolume)
        body = replace(volume.value.metadata, resourceVersion=str(self.version))
        spec = replace(volume.value.spec, capacity=in_mi(self.capacity))
        claim = Present(from_object(PersistentVolumeClaim, self.claim))
        sized = {VOLUME: Present(replace(volume.value, metadata=body, spec=spec)), CLAIM: claim}
        return replace(found, objects={**found.objects, **sized})

    def enlarge(self, agent: Agent, capacity: int, state: str = "NodeResizePending") -> None:
        """The controllers have grown the volume, and the agent reads that."""
        self.capacity, self.version = capacity, self.version + 1
        states = {"allocatedResourceStatuses": {"storage": state}} if state else {}
        self.claim["status"] |= {"allocatedResources": in_mi(capacity), **states}
        self.claim["metadata"]["resourceVersion"] += "x"
        agent.content.publish(self.content())


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")


@pytest.fixture
def top() -> Iterator[Path]:
    with csi_folder() as made:
        yield made


def sizes(driver: CsiProcess) -> list[int]:
    return [int(request["capacity_range"]["required_bytes"]) for request in driver.requests(EXPAND)]


def events_of(agent: Agent, reason: str) -> list[str]:
    return [event.message for event in agent.recorded.events if event.reason == reason]


@needs_root
async def test_a_volume_in_use_grows_when_its_persistent_volume_does(top: Path) -> None:
    pod, store = a_pod(), Store()
    async with csi_driver(top / "root", top / "data") as driver, started(top / "root", claims=store) as agent:
        await driver.create(HANDLE)
        begin(agent, driver, store.content(), pod)
        path = (await agent.wait_ready()).volumes["v"].host_path
        assert EXPAND not in driver.names(), "it has its size"
        await driver.behave(NodeExpandVolume="lie")  # the driver's controller would have enlarged it before
        store.enlarge(agent, 16)
        await until(lambda: store.status["capacity"] == in_mi(16))
        assert "allocatedResourceStatuses" not in store.status
        (request,) = driver.requests(EXPAND)
        assert request["volume_id"] == HANDLE and request["volume_path"] == path
        assert request["staging_target_path"] == str(global_mount(agent))
        assert request["volume_capability"]["access_mode"] == {"mode": "SINGLE_NODE_WRITER"}
        agent.content.publish(store.content())
        store.enlarge(agent, 32)
        await until(lambda: store.status["capacity"] == in_mi(32))
        assert sizes(driver) == [16 * MI, 32 * MI]
        await stop_pod(agent, pod)
        await until(lambda: "NodeUnstageVolume" in driver.names("done"))
        assert [name for name in driver.names() if name != EXPAND] == LIFE, "it was mounted once"


@needs_root
async def test_a_volume_that_has_grown_before_is_expanded_before_the_pod_uses_it(top: Path) -> None:
    pending = {"allocatedResources": in_mi(16), "allocatedResourceStatuses": {"storage": "NodeResizePending"}}
    pod, store = a_pod(), Store(8, 16, **pending)
    failed = {"NodeExpandVolume": "fail INTERNAL broken"}
    async with (
        csi_driver(top / "root", top / "data", behavior=failed) as driver,
        started(top / "root", claims=store) as agent,
    ):
        await driver.create(HANDLE)
        begin(agent, driver, store.content(), pod)
        await until(lambda: len(events_of(agent, "FailedMount")) == 2)
        assert not agent.mounts.get().pods[UID].ready, "the pod waits for its size"
        error = "Expander.NodeExpand failed to expand the volume : rpc error: code = Internal desc = broken"
        assert (
            events_of(agent, "FailedMount")[0]
            == f'MountVolume.Setup failed while expanding volume for volume "pv" : {error}'
        )
        (condition,) = store.status["conditions"]
        assert (condition["type"], condition["message"]) == ("NodeResizeError", f"failed to expand pvc with {error}")
        await driver.behave(NodeExpandVolume="lie")
        await agent.wait_ready()
        assert store.status["capacity"] == in_mi(16) and "conditions" not in store.status


@needs_root
async def test_a_failure_while_in_use_costs_the_pod_nothing_and_is_tried_again(top: Path) -> None:
    pod, store = a_pod(), Store()
    async with csi_driver(top / "root", top / "data") as driver, started(top / "root", claims=store) as agent:
        await driver.create(HANDLE)
        begin(agent, driver, store.content(), pod)
        await agent.wait_ready()
        await driver.behave(NodeExpandVolume="fail INTERNAL broken")
        store.enlarge(agent, 16)
        await until(lambda: len(events_of(agent, "VolumeResizeFailed")) == 2)
        error = "Expander.NodeExpand failed to expand the volume : rpc error: code = Internal desc = broken"
        text = f'NodeExpandVolume.NodeExpandVolume failed for volume "pv" : {error}'
        assert events_of(agent, "VolumeResizeFailed") == [text] * 2 and not events_of(agent, "FailedMount")
        await agent.wait_ready()
        ((status,),) = (known.volumes for known in agent.diagnostics.get().pods.values())
        assert (status.state, status.error) == ("mounted, not expanded", error)
        await driver.behave(NodeExpandVolume="lie")
        await until(lambda: store.status["capacity"] == in_mi(16))


@needs_root
@pytest.mark.parametrize(
    ("code", "name"),
    [("INVALID_ARGUMENT", "InvalidArgument"), ("OUT_OF_RANGE", "OutOfRange"), ("NOT_FOUND", "NotFound")],
)
async def test_a_size_that_the_driver_can_never_give_is_given_up(top: Path, code: str, name: str) -> None:
    pod, store = a_pod(), Store()
    async with csi_driver(top / "root", top / "data") as driver, started(top / "root", claims=store) as agent:
        await driver.create(HANDLE)
        begin(agent, driver, store.content(), pod)
        await agent.wait_ready()
        await driver.behave(NodeExpandVolume=f"fail {code} no")
        store.enlarge(agent, 16)
        await until(lambda: bool(events_of(agent, "VolumeResizeFailed")))
        assert store.status["allocatedResourceStatuses"] == {"storage": "NodeResizeInfeasible"}
        (condition,) = store.status["conditions"]
        reason = f"Expander.NodeExpand failed to expand the volume rpc error: code = {name} desc = no"
        assert condition["message"] == f"failed to expand pvc with {reason}"
        agent.content.publish(store.content())
        await driver.behave(NodeExpandVolume="lie")
        store.enlarge(agent, 12)  # the user asks for less
        await until(lambda: store.status["capacity"] == in_mi(12))
        assert sizes(driver) == [16 * MI, 12 * MI]


@needs_root
async def test_what_cannot_grow_in_use_is_left_until_it_is_mounted_again(top: Path) -> None:
    pod, store = a_pod(), Store()
    async with csi_driver(top / "root", top / "data") as driver, started(top / "root", claims=store) as agent:
        await driver.create(HANDLE)
        begin(agent, driver, store.content(), pod)
        await agent.wait_ready()
        await driver.behave(NodeExpandVolume="fail FAILED_PRECONDITION in use")
        store.enlarge(agent, 16)
        await until(lambda: "conditions" in store.status)
        agent.content.publish(store.content())
        await agent.wait_ready()
        assert sizes(driver) == [16 * MI]
        await stop_pod(agent, pod)
        await until(lambda: "NodeUnstageVolume" in driver.names("done"))
        await driver.behave(NodeExpandVolume="lie")
        begin(agent, driver, store.content(), pod)
        await agent.wait_ready()
        assert store.status["capacity"] == in_mi(16) and sizes(driver) == [16 * MI] * 2


@needs_root
@pytest.mark.parametrize("moment", ["crash", "crash after"])
async def test_a_driver_that_ends_in_the_call_is_called_again(top: Path, moment: str) -> None:
    pod, store = a_pod(), Store()
    async with started(top / "root", claims=store) as agent:
        async with csi_driver(top / "root", top / "data") as driver:
            await driver.create(HANDLE)
            begin(agent, driver, store.content(), pod)
            await agent.wait_ready()
            await driver.behave(NodeExpandVolume=moment)
            store.enlarge(agent, 16)
            assert await driver.has_ended()
        async with csi_driver(top / "root", top / "data", behavior={EXPAND: "lie"}) as driver:
            await until(lambda: store.status["capacity"] == in_mi(16))
            assert driver.names()[-1] == EXPAND


@needs_root
async def test_an_agent_that_ended_in_the_call_goes_on_when_it_is_started(top: Path) -> None:
    pod, store = a_pod(), Store()
    async with csi_driver(top / "root", top / "data") as driver:
        await driver.create(HANDLE)
        async with started(top / "root", claims=store) as agent:
            begin(agent, driver, store.content(), pod)
            await agent.wait_ready()
            await driver.behave(NodeExpandVolume="hang")
            store.enlarge(agent, 16)
            await driver.wait_calls(EXPAND, 1)
            assert store.status["allocatedResourceStatuses"] == {"storage": "NodeResizeInProgress"}
        await driver.behave(NodeExpandVolume="lie")
        async with started(top / "root", claims=store) as agent:
            begin(agent, driver, store.content(), pod, runs=("u1",))
            await agent.wait_ready()
            assert store.status["capacity"] == in_mi(16)
            assert sizes(driver) == [16 * MI] * 2


@needs_root
async def test_a_driver_without_the_capability_is_not_called(top: Path) -> None:
    pod, store = a_pod(), Store(8, 16)
    hidden = {"hidden": [3]}
    async with (
        csi_driver(top / "root", top / "data", behavior=hidden) as driver,
        started(top / "root", claims=store) as agent,
    ):
        await driver.create(HANDLE)
        begin(agent, driver, store.content(), pod)
        await agent.wait_ready()
        assert EXPAND not in driver.names()
        assert store.status["capacity"] == in_mi(8)


def test_the_driver_gets_the_access_that_the_volume_was_published_with() -> None:
    made = planned(Store().content(), pod=a_pod(fsGroup=4321))
    capabilities = frozenset({Capability.VOLUME_MOUNT_GROUP, Capability.SINGLE_NODE_MULTI_WRITER})
    capability = expand_request(made, 5, capabilities).volume_capability
    assert (capability.mount.volume_mount_group, capability.access_mode.mode) == ("", 7)


@needs_root
@pytest.mark.parametrize("capability", [[3], []])
async def test_a_missing_secret_only_matters_to_a_driver_that_expands(top: Path, capability: list[int]) -> None:
    reference = {"nodeExpandSecretRef": {"namespace": "vault", "name": "grow"}}
    async with csi_driver(top / "root", top / "data", behavior={"hidden": capability}) as driver:
        made = planned(Store().content({SECRET: Absent("gone")}, **reference))

        async def at_once(work: Callable[[], T], deadline_s: float = 0.0) -> T:
            return work()

        with pytest.raises(ExpandError) as failed:
            await expand(made, 5, CallContext(registered(str(driver.endpoint)), at_once))
        expected = ExpandFault.NOT_SUPPORTED if capability else ExpandFault.FINAL
        assert failed.value.fault is expected and EXPAND not in driver.names()


def test_secrets_of_the_call() -> None:
    reference = {"nodeExpandSecretRef": {"namespace": "vault", "name": "grow"}}
    known_secret: dict[ObjectKey, Found] = {SECRET: Present(Secret(data={"k": b"v"}))}
    content = Store().content(known_secret, **reference)
    assert SECRET in set(volume_keys(a_pod(), a_pod().spec.volumes[0], content))
    request = expand_request(planned(content), 5, frozenset())
    assert (dict(request.secrets), request.capacity_range.required_bytes) == ({"k": "v"}, 5)
    missing: dict[ObjectKey, Found] = {SECRET: Absent("no such secret")}
    made = planned(Store().content(missing, **reference))
    assert made.expand_problem == "expander.NodeExpand failed to get NodeExpandSecretRef vault/grow: no such secret"
    assert made.data.driver == DRIVER, "it can be mounted"
