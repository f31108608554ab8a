"""The pod resources API, asked over its socket by a gRPC client: CPUs, memory, devices and claims of containers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from report.samples import container, exited, lifecycle, make_pod, running, sidecar, view
from support.cost import check_cost

from pykubelet.base.api.core import Pod, PodStatus
from pykubelet.base.kit.cells import CellWriter, make_cell
from pykubelet.base.kit.clock import ManualClock
from pykubelet.base.kit.values import replace
from pykubelet.base.model.claims import ClaimDevice, Claims, ContainerClaim, PodClaims
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.lifecycle import Lifecycles, PodLifecycle, Stage
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.placement import (
    AssignedDevices,
    ContainerPlacement,
    DeviceResource,
    MemoryBlock,
    Placements,
    PodPlacement,
)
from pykubelet.base.model.roster import Rejection, Roster, RosterPod
from pykubelet.base.model.statuses import Statuses
from pykubelet.edges.plugins import podresources_pb2 as pb
from pykubelet.net.grpc.server import RpcServer
from pykubelet.net.grpc.services import Services
from pykubelet.serve.endpoints.known_pods import KnownPods
from pykubelet.serve.endpoints.pod_resources import BURST, REQUESTS, PodResources, ResourceCells
from pykubelet.serve.endpoints.pod_resources_messages import MAX_ENTRIES

GPU = "example.com/gpu"
GI = 1 << 30


class Node:
    """The API of a node on a socket, the writing ends of its cells, and a client."""

    def __init__(self, path: Path, *, active_only: bool = True) -> None:
        self.path = path
        self.clock = ManualClock()
        self.roster: CellWriter[Roster]
        self.lifecycles: CellWriter[Lifecycles]
        self.statuses: CellWriter[Statuses]
        self.observed: CellWriter[Observed]
        self.placements: CellWriter[Placements]
        self.claims: CellWriter[Claims]
        roster, self.roster = make_cell("roster", Roster())
        lifecycles, self.lifecycles = make_cell("lifecycles", Lifecycles())
        statuses, self.statuses = make_cell("statuses", Statuses())
        observed, self.observed = make_cell("observed", Observed())
        placements, self.placements = make_cell("placements", Placements())
        claims, self.claims = make_cell("claims", Claims())
        pods = KnownPods(roster, lifecycles, observed, statuses)
        self.api = PodResources(pods, ResourceCells(placements, claims, active_only), self.clock)

    def has(self, *pods: Pod, rejected: tuple[str, ...] = ()) -> None:
        no = Rejection("OutOfcpu", "too little")
        entries = {
            PodUID(pod.metadata.uid): RosterPod(pod, "file", 0, no if pod.metadata.uid in rejected else None)
            for pod in pods
        }
        self.roster.publish(Roster(entries, sources_ready=True))

    def at(self, *lives: PodLifecycle) -> None:
        self.lifecycles.publish(Lifecycles({life.ref.uid: life for life in lives}))

    async def raw(self, method: str, request: bytes = b"", version: str = "v1") -> bytes:
        options = (("grpc.default_authority", "localhost"), ("grpc.max_receive_message_length", 64 << 20))
        async with grpc.aio.insecure_channel(f"unix:{self.path}", options=options) as channel:
            call = channel.unary_unary(f"/{version}.PodResourcesLister/{method}", None, None)
            answer: bytes = await call(request, timeout=20)
            return answer

    async def listed(self, version: str = "v1") -> dict[str, pb.PodResources]:
        answer = pb.ListPodResourcesResponse.FromString(await self.raw("List", version=version))
        return {pod.name: pod for pod in answer.pod_resources}

    async def get(self, name: str) -> pb.PodResources:
        asked = pb.GetPodResourcesRequest(pod_name=name, pod_namespace="default").SerializeToString()
        return pb.GetPodResourcesResponse.FromString(await self.raw("Get", asked)).pod_resources

    async def allocatable(self) -> pb.AllocatableResourcesResponse:
        return pb.AllocatableResourcesResponse.FromString(await self.raw("GetAllocatableResources"))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path / "s.sock")
    async with await asyncio.start_unix_server(RpcServer(Services(made.api.methods())).serve, made.path):
        yield made


@pytest.fixture
async def old_node(tmp_path: Path) -> AsyncIterator[Node]:
    """With the gate KubeletPodResourcesListUseActivePods off."""
    made = Node(tmp_path / "s.sock", active_only=False)
    async with await asyncio.start_unix_server(RpcServer(Services(made.api.methods())).serve, made.path):
        yield made


def pod(name: str, *containers: Any, init: Any = ()) -> Pod:
    return make_pod(*containers, init=init, name=name, uid=f"{name}-uid")


def placed(**containers: ContainerPlacement) -> PodPlacement:
    return PodPlacement(containers)


FULL = placed(
    app=ContainerPlacement(
        cpus=frozenset({5, 4, 13}),
        mems="0",
        memory=(MemoryBlock((0, 1), "memory", 3 * GI), MemoryBlock((0, 1), "hugepages-2Mi", 4 << 20)),
        devices=(AssignedDevices(GPU, {0: frozenset({"g1", "g0"}), 1: frozenset({"g7"}), -1: frozenset({"loose"})}),),
    ),
    side=ContainerPlacement(cpus=frozenset({2})),
    prepare=ContainerPlacement(cpus=frozenset({4, 5})),
)
TPU = ContainerClaim(
    "tpu-claim",
    "default",
    (
        ClaimDevice("tpu.example.com", "pool-a", "tpu-0", ("req",), ("example.com/tpu=0", "example.com/tpu=x")),
        ClaimDevice("tpu.example.com", "pool-a", "tpu-1", ("req",), ("example.com/tpu=1",), share_id="s-1"),
    ),
)


async def test_a_pod_with_everything(node: Node) -> None:
    node.has(pod("full", init=(container("prepare"), sidecar("side"))), pod("plain"))
    node.placements.publish(Placements({PodUID("full-uid"): FULL}))
    node.claims.publish(Claims({PodUID("full-uid"): PodClaims(True, {"app": (TPU,)})}))
    pods = await node.listed()
    assert list(pods) == ["full", "plain"]
    side, app = pods["full"].containers
    assert (side.name, list(side.cpu_ids)) == ("side", [2])
    assert list(app.cpu_ids) == [4, 5, 13]
    assert [(m.memory_type, m.size, [n.ID for n in m.topology.nodes]) for m in app.memory] == [
        ("memory", 3 * GI, [0, 1]),
        ("hugepages-2Mi", 4 << 20, [0, 1]),
    ]
    assert [(d.resource_name, list(d.device_ids), [n.ID for n in d.topology.nodes]) for d in app.devices] == [
        (GPU, ["loose"], []),
        (GPU, ["g0"], [0]),
        (GPU, ["g1"], [0]),
        (GPU, ["g7"], [1]),
    ]
    assert [d.HasField("topology") for d in app.devices] == [False, True, True, True]
    (claim,) = app.dynamic_resources
    assert (claim.claim_name, claim.claim_namespace) == ("tpu-claim", "default")
    first, second = claim.claim_resources
    assert [name.name for name in first.cdi_devices] == ["example.com/tpu=0", "example.com/tpu=x"]
    assert (first.driver_name, first.pool_name, first.device_name) == ("tpu.example.com", "pool-a", "tpu-0")
    assert not first.HasField("share_id") and second.share_id == "s-1"
    assert await node.get("full") == pods["full"]
    (plain,) = pods["plain"].containers
    assert plain == pb.ContainerResources(name="app")


async def test_a_pod_that_has_something_as_a_whole(node: Node) -> None:
    """Everything is listed with the pod, and with a container only what no other one uses (KEP-5526)."""
    node.has(pod("whole", container("app"), container("log"), init=(sidecar("side"),)))
    block = MemoryBlock((0,), "memory", GI)
    placement = PodPlacement(
        {
            "app": ContainerPlacement(frozenset({1, 2}), "0", (block,)),
            "side": ContainerPlacement(frozenset({4}), "0", shares_cpus=True),
            "log": ContainerPlacement(frozenset({4}), "0", shares_cpus=True),
        },
        cpus=frozenset({4, 2, 1}),
        shared_cpus=frozenset({4}),
        memory=(replace(block, size=4 * GI),),
        shared_memory=(replace(block, size=3 * GI),),
    )
    node.placements.publish(Placements({PodUID("whole-uid"): placement}))
    found = await node.get("whole")
    assert list(found.cpu_ids) == [1, 2, 4]
    assert [(m.memory_type, m.size, [n.ID for n in m.topology.nodes]) for m in found.memory] == [
        ("memory", 4 * GI, [0])
    ]
    listed = {c.name: (list(c.cpu_ids), [m.size for m in c.memory]) for c in found.containers}
    assert listed == {"side": ([], []), "app": ([1, 2], [GI]), "log": ([], [])}


async def test_the_bytes_on_the_wire(node: Node) -> None:
    """Field numbers and types of the published protocol, written out by hand."""
    node.has(pod("web"))
    node.placements.publish(
        Placements(
            {
                PodUID("web-uid"): placed(
                    app=ContainerPlacement(
                        cpus=frozenset({1, 300}),
                        memory=(MemoryBlock((1,), "memory", 128),),
                        devices=(AssignedDevices("a.b/c", {1: frozenset({"d"})}),),
                    )
                )
            }
        )
    )
    claim = ContainerClaim("c", "n", (ClaimDevice("dr", "po", "de", ("r",), ("x/y=z",), "sh"),))
    node.claims.publish(Claims({PodUID("web-uid"): PodClaims(True, {"app": (claim,)})}))
    device = b"\x0a\x05a.b/c\x12\x01d\x1a\x04\x0a\x02\x08\x01"
    memory = b"\x0a\x06memory\x10\x80\x01\x1a\x04\x0a\x02\x08\x01"
    resource = b"\x0a\x07\x0a\x05x/y=z\x12\x02dr\x1a\x02po\x22\x02de\x2a\x02sh"
    dynamic = b"\x12\x01c\x1a\x01n\x22" + bytes([len(resource)]) + resource
    app = b"\x0a\x03app" + b"\x12" + bytes([len(device)]) + device + b"\x1a\x03\x01\xac\x02"
    app += b"\x22" + bytes([len(memory)]) + memory + b"\x2a" + bytes([len(dynamic)]) + dynamic
    web = b"\x0a\x03web\x12\x07default\x1a" + bytes([len(app)]) + app
    assert await node.raw("List") == b"\x0a" + bytes([len(web)]) + web
    assert await node.raw("Get", b"\x0a\x03web\x12\x07default") == b"\x0a" + bytes([len(web)]) + web
    old = b"\x0a\x03app\x12\x0a\x0a\x05a.b/c\x12\x01d"
    web = b"\x0a\x03web\x12\x07default\x1a" + bytes([len(old)]) + old
    assert await node.raw("List", version="v1alpha1") == b"\x0a" + bytes([len(web)]) + web


async def test_what_can_be_allocated(node: Node) -> None:
    assert await node.raw("GetAllocatableResources") == b""
    node.placements.publish(
        Placements(
            allocatable_cpus=frozenset({1, 2, 3}),
            allocatable_memory=(MemoryBlock((0,), "memory", 7 * GI), MemoryBlock((1,), "memory", 8 * GI)),
            devices={
                GPU: DeviceResource(
                    frozenset({"g0", "g1", "g2", "g3"}), frozenset({"bad"}), {"g0": (0,), "g1": (0, 1), "g3": ()}
                ),
                "example.com/old": DeviceResource(unhealthy=frozenset({"o"}), is_stopped=True),
            },
        )
    )
    found = await node.allocatable()
    assert list(found.cpu_ids) == [1, 2, 3]
    assert [(m.memory_type, m.size, [n.ID for n in m.topology.nodes]) for m in found.memory] == [
        ("memory", 7 * GI, [0]),
        ("memory", 8 * GI, [1]),
    ]
    # a device on two nodes is listed for each, one with an empty topology not at all
    listed = [(list(d.device_ids), [n.ID for n in d.topology.nodes], d.HasField("topology")) for d in found.devices]
    assert listed == [(["g0"], [0], True), (["g1"], [0], True), (["g1"], [1], True), (["g2"], [], False)]


async def test_only_active_pods(node: Node) -> None:
    """A pod that was admitted and not started is listed; one that has ended is not, from the moment of its phase."""
    names = ("new", "running", "succeeded", "stopping", "evicted", "over", "stopped", "rejected")
    pods = {name: pod(name) for name in names}
    node.has(*pods.values(), rejected=("rejected-uid",))
    node.at(
        lifecycle(pods["running"]),
        lifecycle(pods["succeeded"]),
        *(lifecycle(pods[name], Stage.TERMINATING) for name in ("stopping", "evicted", "over")),
        lifecycle(pods["stopped"], Stage.TERMINATED),
    )
    over = PodStatus(phase="Failed")
    node.statuses.publish(Statuses(dict.fromkeys(map(PodUID, ("succeeded-uid", "evicted-uid", "over-uid")), over)))
    views = {PodUID("evicted-uid"): view(running()), PodUID("over-uid"): view(exited())}
    node.observed.publish(Observed(views, 1.0))
    assert list(await node.listed()) == ["new", "running", "stopping", "evicted"]
    assert list(await node.listed("v1alpha1")) == list(names)
    with pytest.raises(grpc.aio.AioRpcError, match="pod succeeded in namespace default not found") as caught:
        await node.get("succeeded")
    assert caught.value.code() is grpc.StatusCode.UNKNOWN


async def test_all_known_pods_with_the_gate_off(old_node: Node) -> None:
    old_node.has(pod("new"), pod("rejected"), rejected=("rejected-uid",))
    assert list(await old_node.listed()) == ["new", "rejected"]


async def test_the_old_version_lists_devices_of_regular_containers(node: Node) -> None:
    node.has(pod("full", init=(sidecar("side"),)))
    node.placements.publish(Placements({PodUID("full-uid"): FULL}))
    (app,) = (await node.listed("v1alpha1"))["full"].containers
    assert app.name == "app" and not app.cpu_ids and not app.memory
    assert [(list(d.device_ids), d.HasField("topology")) for d in app.devices] == [
        (["loose"], False),
        (["g0"], False),
        (["g1"], False),
        (["g7"], False),
    ]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await node.raw("Get", version="v1alpha1")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_too_many_calls_are_refused_and_counted(node: Node) -> None:
    before = REQUESTS.value("v1"), REQUESTS.value("v1alpha1")
    for _ in range(BURST - 1):
        await node.raw("List")
    await node.raw("List", version="v1alpha1")
    for version in ("v1", "v1alpha1"):
        with pytest.raises(grpc.aio.AioRpcError, match="rejected by rate limit") as caught:
            await node.raw("List", version=version)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (REQUESTS.value("v1"), REQUESTS.value("v1alpha1")) == (before[0] + BURST, before[1] + 2)
    node.clock.advance(1)
    await node.raw("List")


async def test_too_many_devices_for_one_answer(node: Node) -> None:
    ids = frozenset(map(str, range(MAX_ENTRIES // 2 + 1)))
    node.placements.publish(Placements(devices={GPU: DeviceResource(ids, nodes=dict.fromkeys(ids, (0, 1)))}))
    with pytest.raises(grpc.aio.AioRpcError, match="more than 200000 devices") as caught:
        await node.allocatable()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await node.listed() == {}


async def test_a_request_that_cannot_be_read(node: Node) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="cannot read the request") as caught:
        await node.raw("Get", b"\xff\xff")
    assert caught.value.code() is grpc.StatusCode.INTERNAL


@pytest.mark.parametrize("method", ["list_pods", "list_old", "allocatable"])
def test_100_000_devices_hold_nothing_up(method: str, tmp_path: Path) -> None:
    """A plugin decides how many devices there are, and one pod may have them all."""
    ids = frozenset(f"device-{number:06}" for number in range(100_000))
    node = Node(tmp_path / "s.sock")
    node.has(pod("web"))
    assigned = {-1: ids - {"device-000000"}, 0: frozenset({"device-000000"})}
    has = ContainerPlacement(devices=(AssignedDevices(GPU, assigned),))
    resources = {GPU: DeviceResource(ids, nodes=dict.fromkeys(ids, (0, 1)))}
    node.placements.publish(Placements({PodUID("web-uid"): placed(app=has)}, devices=resources))

    async def ask() -> None:
        assert len(await getattr(node.api, method)(b"")) > 2_000_000

    check_cost(method, ask)
