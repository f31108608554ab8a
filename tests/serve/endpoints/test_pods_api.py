"""The Pods API, asked over its socket by a gRPC client: what clients of Kubernetes' e2e tests expect, errors, limits and slow clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from report.samples import lifecycle, make_pod
from support.cost import check_cost

from pykubelet.base.api import core
from pykubelet.base.api.core import Pod, PodCondition, PodStatus
from pykubelet.base.api.protobuf import encode_now
from pykubelet.base.kit.cells import CellWriter, make_cell
from pykubelet.base.kit.clock import ManualClock
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.labels import CONFIG_MIRROR
from pykubelet.base.model.lifecycle import Lifecycles, PodLifecycle, Stage
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.roster import Roster, RosterPod
from pykubelet.base.model.statuses import Statuses
from pykubelet.edges.plugins import pods_pb2 as pb
from pykubelet.net.grpc.server import RpcServer
from pykubelet.net.grpc.services import RpcLimits
from pykubelet.serve.endpoints.known_pods import KnownPods
from pykubelet.serve.endpoints.pods_api import (
    BURST,
    CALLED,
    DROPPED,
    LIMITS,
    MAX_LIST_BYTES,
    MAX_STREAMS,
    REQUESTS,
    PodsApi,
)
from pykubelet.serve.endpoints.shown_pods import KEPT_BYTES

RUNNING, PENDING = PodStatus(phase="Running"), PodStatus(phase="Pending")
ADDED, MODIFIED, DELETED, SYNCED = pb.ADDED, pb.MODIFIED, pb.DELETED, pb.INITIAL_SYNC_COMPLETE
#: Types of events with the pod, as protobuf.
Event = tuple[int, bytes]


class Node:
    """The API of a node on a socket, the writing ends of its cells, and clients."""

    def __init__(self, path: Path, *, enabled: bool = True) -> None:
        self.path = path
        self.clock = ManualClock()
        self.roster: CellWriter[Roster]
        self.lifecycles: CellWriter[Lifecycles]
        self.statuses: CellWriter[Statuses]
        roster, self.roster = make_cell("roster", Roster())
        lifecycles, self.lifecycles = make_cell("lifecycles", Lifecycles())
        statuses, self.statuses = make_cell("statuses", Statuses())
        observed, _ = make_cell("observed", Observed())
        self.api = PodsApi(KnownPods(roster, lifecycles, observed, statuses), self.clock, enabled=enabled)

    def has(self, *pods: Pod) -> None:
        """The pods that should run here; those that are in it already stay the same objects."""
        before = self.roster.get().pods
        entries = {PodUID(pod.metadata.uid): RosterPod(pod, "file", 0) for pod in pods}
        kept = {
            uid: before[uid] if uid in before and before[uid].pod is new.pod else new for uid, new in entries.items()
        }
        self.roster.publish(Roster(kept, sources_ready=True))

    def at(self, *lives: PodLifecycle) -> None:
        self.lifecycles.publish(Lifecycles({life.ref.uid: life for life in lives}))

    def status(self, name: str, status: PodStatus) -> None:
        self.statuses.publish(Statuses({**self.statuses.get().pods, PodUID(f"{name}-uid"): status}))

    @asynccontextmanager
    async def channel(self) -> AsyncIterator[grpc.aio.Channel]:
        options = (
            ("grpc.default_authority", "localhost"),
            ("grpc.max_receive_message_length", 128 << 20),
            ("grpc.use_local_subchannel_pool", 1),
        )
        async with grpc.aio.insecure_channel(f"unix:{self.path}", options=options) as channel:
            yield channel

    async def call(self, method: str, request: bytes = b"") -> bytes:
        async with self.channel() as channel:
            answer: bytes = await channel.unary_unary(f"/v1alpha1.Pods/{method}", None, None)(request, timeout=20)
            return answer

    async def listed(self) -> list[bytes]:
        return list(pb.ListPodsResponse.FromString(await self.call("ListPods")).pods)

    async def get(self, uid: str) -> bytes:
        asked = pb.GetPodRequest(podUID=uid).SerializeToString()
        return pb.GetPodResponse.FromString(await self.call("GetPod", asked)).pod

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[Watch]:
        async with self.channel() as channel:
            watch = Watch(channel)
            try:
                yield watch
            finally:
                watch.stream.cancel()


class Watch:
    """A client that watches."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.stream: grpc.aio.UnaryStreamCall[bytes, bytes] = channel.unary_stream(
            "/v1alpha1.Pods/WatchPods", None, None
        )(b"", timeout=60)

    async def next(self) -> Event:
        data = await self.stream.read()
        assert isinstance(data, bytes), "the stream has ended"
        event = pb.WatchPodsEvent.FromString(data)
        return event.type, event.pod

    async def until_synced(self) -> list[Event]:
        """The events before INITIAL_SYNC_COMPLETE."""
        found = []
        while (event := await self.next()) != (SYNCED, b""):
            found.append(event)
        return found


@asynccontextmanager
async def serving(node: Node, limits: RpcLimits = LIMITS) -> AsyncIterator[Node]:
    async with await asyncio.start_unix_server(RpcServer(node.api.services(), limits).serve, node.path):
        yield node


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with serving(Node(tmp_path / "s.sock")) as made:
        yield made


@pytest.fixture(autouse=True)
def no_counts() -> Iterator[None]:
    before = dict.fromkeys((REQUESTS, *CALLED.values()))
    yield
    for metric in before:
        for sample in list(metric.family().samples):
            metric.forget(*(value for _, value in sample.labels))


def pod(name: str, **fields: Any) -> Pod:
    return make_pod(name=name, uid=f"{name}-uid", **fields)


def shown(pod: Pod, status: PodStatus) -> bytes:
    return encode_now(replace(pod, status=status))


def gone(pod: Pod) -> bytes:
    meta = pod.metadata
    return encode_now(Pod(metadata=core.ObjectMeta(name=meta.name, namespace=meta.namespace, uid=meta.uid)))


def counted(method: str, code: str) -> tuple[float, float]:
    return REQUESTS.value("v1alpha1", code), CALLED[method].value("v1alpha1", code)


async def test_list_and_get_have_the_newest_status(node: Node) -> None:
    web, db = pod("web"), pod("db", static=False)
    node.has(web, db)
    node.status("web", RUNNING)
    node.status("db", PENDING)
    assert await node.listed() == [shown(db, PENDING), shown(web, RUNNING)], "sorted by UID"
    assert await node.get("web-uid") == shown(web, RUNNING)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await node.get("none")
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.NOT_FOUND, "pod with UID none not found")
    assert counted("ListPods", "OK") == (2, 1)
    assert counted("GetPod", "OK") == (2, 1)
    assert counted("GetPod", "NotFound") == (1, 1)


async def test_before_the_node_has_a_status_that_of_the_api_server_is_not_ready(node: Node) -> None:
    ready = PodCondition(type="Ready", status="True")
    node.has(replace(pod("old"), status=PodStatus(phase="Running", conditions=(ready,))), pod("new"))
    waiting = replace(
        ready, status="False", reason="ContainersNotReady", message="Kubelet is initializing pod containers"
    )
    assert await node.get("old-uid") == shown(pod("old"), PodStatus(phase="Running", conditions=(waiting,)))
    assert await node.get("new-uid") == shown(pod("new"), PENDING)


async def test_mirror_pods_are_not_shown_and_pods_that_are_being_stopped_are(node: Node) -> None:
    plain = pod("mirror", static=False)
    node.has(replace(plain, metadata=replace(plain.metadata, annotations={CONFIG_MIRROR: "x"})))
    stopping, stopped = pod("stopping"), pod("stopped")
    node.at(lifecycle(stopping, Stage.TERMINATING), lifecycle(stopped, Stage.TERMINATED))
    node.status("stopping", RUNNING)
    assert await node.listed() == [shown(stopping, RUNNING)]


async def test_a_watch_has_all_pods_and_then_what_happens(node: Node) -> None:
    """ADDED, MODIFIED and DELETED of a pod come in this order, each once where nothing more happens, with a phase in all but the last."""
    old, new = pod("old"), pod("new")
    node.has(old)
    node.status("old", RUNNING)
    async with node.watching() as watch:
        assert await watch.until_synced() == [(ADDED, shown(old, RUNNING))]
        node.has(old, new)
        node.status("new", PENDING)
        assert await watch.next() == (ADDED, shown(new, PENDING))
        node.status("new", RUNNING)
        assert await watch.next() == (MODIFIED, shown(new, RUNNING))
        labelled = replace(new, metadata=replace(new.metadata, labels={"state": "changed"}))
        node.has(old, labelled)
        assert await watch.next() == (MODIFIED, shown(labelled, RUNNING))
        # removed, but its containers run
        node.at(lifecycle(labelled, Stage.TERMINATING))
        node.has(old)
        ended = PodStatus(phase="Succeeded")
        node.status("new", ended)
        assert await watch.next() == (MODIFIED, shown(labelled, ended))
        node.at()
        assert await watch.next() == (DELETED, gone(new))
        node.statuses.publish(Statuses({PodUID("old-uid"): PENDING}))
        assert await watch.next() == (MODIFIED, shown(old, PENDING))
    await until(lambda: counted("WatchPods", "Canceled") == (1, 1))


async def test_a_new_pod_waits_for_its_status(node: Node) -> None:
    node.has()
    async with node.watching() as watch:
        assert await watch.until_synced() == []
        node.has(pod("a"), pod("b"))
        node.status("b", RUNNING)
        assert await watch.next() == (ADDED, shown(pod("b"), RUNNING))
        node.status("a", RUNNING)
        assert await watch.next() == (ADDED, shown(pod("a"), RUNNING))


async def test_every_client_gets_the_same(node: Node) -> None:
    """Also one that has many watches on its connection, up to the limit."""
    dropped = DROPPED.value()
    node.has(pod("web"))
    async with node.channel() as channel:
        watches = []
        for number in range(MAX_STREAMS):
            node.clock.advance(1)
            watches.append(Watch(channel))
            assert await watches[number].until_synced() == [(ADDED, shown(pod("web"), PENDING))]
        node.status("web", RUNNING)
        assert {await watch.next() for watch in watches} == {(MODIFIED, shown(pod("web"), RUNNING))}
        node.clock.advance(1)
        async with node.watching() as one_more:
            with pytest.raises(grpc.aio.AioRpcError, match="100 clients watch already") as caught:
                await one_more.next()
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert DROPPED.value() == dropped
        for watch in watches:
            watch.stream.cancel()
    await until(lambda: counted("WatchPods", "Canceled") == (MAX_STREAMS, MAX_STREAMS))
    node.clock.advance(1)
    async with node.watching() as later:
        assert await later.until_synced() == [(ADDED, shown(pod("web"), RUNNING))]


async def test_nothing_is_answered_before_all_sources_are_known(node: Node) -> None:
    for call in (node.listed(), node.get("web-uid")):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert (caught.value.code(), caught.value.details()) == (
            grpc.StatusCode.FAILED_PRECONDITION,
            "Kubelet is initializing",
        )
    async with node.watching() as watch:
        with pytest.raises(grpc.aio.AioRpcError, match="Kubelet is initializing"):
            await watch.next()
    assert counted("WatchPods", "FailedPrecondition") == (3, 1)


async def test_with_the_gate_off_every_method_answers_with_an_error(tmp_path: Path) -> None:
    async with serving(Node(tmp_path / "s.sock", enabled=False)) as node:
        node.has(pod("web"))
        for call in (node.listed(), node.get("web-uid")):
            with pytest.raises(grpc.aio.AioRpcError, match="PodsAPI feature gate is disabled") as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        async with node.watching() as watch:
            with pytest.raises(grpc.aio.AioRpcError, match="PodsAPI feature gate is disabled"):
                await watch.next()


async def test_too_many_calls_are_refused(node: Node) -> None:
    """Opening a watch is a call."""
    node.has()
    for _ in range(BURST - 1):
        await node.listed()
    async with node.watching() as watch:
        assert await watch.until_synced() == []
        for refused in (node.listed(), node.get("x")):
            with pytest.raises(grpc.aio.AioRpcError, match="rejected by rate limit") as caught:
                await refused
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        async with node.watching() as other:
            with pytest.raises(grpc.aio.AioRpcError, match="rejected by rate limit"):
                await other.next()
        node.clock.advance(1)
        await node.listed()


async def test_a_request_that_cannot_be_read(node: Node) -> None:
    node.has()
    with pytest.raises(grpc.aio.AioRpcError, match="cannot read the request") as caught:
        await node.call("GetPod", b"\xff\xff")
    assert caught.value.code() is grpc.StatusCode.INTERNAL


async def test_a_pod_that_cannot_be_encoded(node: Node) -> None:
    node.has(pod("web", overhead={"cpu": "much"}))
    with pytest.raises(grpc.aio.AioRpcError, match="failed to marshal pod: ") as caught:
        await node.listed()
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    async with node.watching() as watch:
        with pytest.raises(grpc.aio.AioRpcError, match="error marshalling initial watch event pod: "):
            await watch.next()


def large(name: str, size: int = 1_000_000) -> Pod:
    return pod(name, nodeName="n" * size)


async def test_a_client_that_reads_late_gets_the_newest_and_nothing_waits_for_it(node: Node) -> None:
    dropped = DROPPED.value()
    node.has(large("web"))
    async with node.watching() as slow, node.watching() as quick:
        assert (await slow.next())[0] == ADDED
        assert len(await quick.until_synced()) == 1
        for number in range(200):
            node.status("web", PodStatus(phase="Running", message=str(number)))
            if number % 50 == 0:
                assert await quick.next() == (
                    MODIFIED,
                    shown(large("web"), PodStatus(phase="Running", message=str(number))),
                )
        assert await slow.next() == (SYNCED, b"")
        last = shown(large("web"), PodStatus(phase="Running", message="199"))
        events = [await slow.next()]
        while events[-1] != (MODIFIED, last):
            events.append(await slow.next())
        assert len(events) < 10
    assert DROPPED.value() == dropped


async def test_a_client_that_never_reads_is_ended(tmp_path: Path) -> None:
    dropped = DROPPED.value()
    async with serving(Node(tmp_path / "s.sock"), RpcLimits(calls=MAX_STREAMS, stalled_s=0.3)) as node:
        node.has(*(large(f"web-{number}") for number in range(40)))
        async with node.watching() as watch:
            await until(lambda: DROPPED.value() > dropped)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await watch.until_synced()
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            # it only concerns the one stream
            node.has(pod("web"))
            assert await node.listed() == [shown(pod("web"), PENDING)]
    assert counted("WatchPods", "ResourceExhausted") == (1, 1)


async def test_more_than_fits_into_one_answer(node: Node) -> None:
    node.has(*(large(str(number), 1_400_000) for number in range(MAX_LIST_BYTES // 1_400_000 + 1)))
    with pytest.raises(grpc.aio.AioRpcError, match="use WatchPods") as caught:
        await node.listed()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("method", ["list_pods", "watch_pods"])
def test_1000_pods_hold_nothing_up(method: str, tmp_path: Path) -> None:
    node = Node(tmp_path / "s.sock")
    pods = [pod(f"web-{number}", hostname="h" * 1000) for number in range(1000)]
    node.has(*pods)
    node.statuses.publish(Statuses({PodUID(known.metadata.uid): RUNNING for known in pods}))

    async def ask() -> None:
        node.clock.advance(1)
        size, count = 0, 0
        stream = getattr(node.api, method)(b"")
        async for message in stream:
            size, count = size + len(message), count + 1
            if count > 1000:
                node.statuses.publish(
                    Statuses({PodUID(known.metadata.uid): PodStatus(phase=f"{count}") for known in pods})
                )
            if count > 2002:
                break
        await stream.aclose()
        assert size > 1_000_000

    check_cost(method, ask)


async def test_encodings_are_shared_and_bounded(node: Node) -> None:
    """They are kept while a client watches, for the others."""
    node.has(*(large(f"web-{number}", KEPT_BYTES // 60) for number in range(40)))
    async with node.watching() as watch:
        assert len(await watch.until_synced()) == 40
        api = node.api._pods
        assert 0 < sum(kept.size for kept in api._encoded.values()) <= KEPT_BYTES
    await until(lambda: not api.watches)
    assert not api._encoded and not api._shown


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in the same event loop
            await asyncio.sleep(0)
