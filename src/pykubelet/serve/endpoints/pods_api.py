"""The Pods API: the pods of this node with their newest statuses, over gRPC, for programs on the machine.

Owns: the answers of `v1alpha1.Pods`, their rate limit and the number of watches. A watch keeps no queue: it compares what its client has
got with the newest snapshot, so a slow client skips what lies between, and costs no memory; one that takes nothing for `STALLED_S`
is ended. Source: KEP-4188, the Kubernetes documentation "Kubelet Pods API".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager

from google.protobuf.message import DecodeError

from pykubelet.base.api.protobuf import ProtobufError, bytes_field, bytes_head
from pykubelet.base.kit.cells import set_on_change
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.metrics import Counter
from pykubelet.base.model.ids import PodUID
from pykubelet.edges.plugins import pods_pb2 as pb
from pykubelet.net.grpc.server import CallLimit
from pykubelet.net.grpc.services import RpcLimits, Services, StreamMethod
from pykubelet.net.grpc.status import Code, RpcError
from pykubelet.serve.endpoints.known_pods import KnownPods
from pykubelet.serve.endpoints.shown_pods import SYNC_EVENT, Encoded, ShownPod, ShownPods, deleted_event, plan_changes

SERVICE = "v1alpha1.Pods"
_VERSION = "v1alpha1"
#: Calls a second, and at once: of all methods together. Opening a watch is one.
QPS, BURST = 100.0, 10
#: Calls in progress on one connection, and watches of all clients together.
MAX_STREAMS = MAX_WATCHES = 100
#: Seconds that a client may take for one message.
STALLED_S = 30.0
#: The most bytes of an answer of ListPods, and how many such answers are made or sent at a time.
MAX_LIST_BYTES = 64 << 20
LISTS_AT_ONCE = 2
#: The same for GetPod, whose answers have at most the size of a pod.
GETS_AT_ONCE = 16
LIMITS = RpcLimits(calls=MAX_STREAMS, stalled_s=STALLED_S)
_LABELS = ("server_api_version", "status_code")
REQUESTS = Counter(
    "kubelet_pod_requests_total",
    "Cumulative number of requests to the Pods API. Broken down by server api version and status code.",
    _LABELS,
)
CALLED = {
    method: Counter(
        f"kubelet_pod_requests_{name}_total",
        f"Number of requests to the {method} endpoint of the Pods API. Broken down by server api version and status code.",
        _LABELS,
    )
    for method, name in (("ListPods", "list"), ("GetPod", "get"), ("WatchPods", "watch"))
}
DROPPED = Counter("kubelet_pod_watch_events_dropped_total", "Cumulative number of pod watch events dropped.")


class PodsApi:
    """The methods of the service. `enabled`: the gate PodsAPI; with it off, each call is answered with an error."""

    def __init__(self, pods: KnownPods, clock: Clock, *, enabled: bool = True) -> None:
        self._cells = pods
        self._pods = ShownPods(pods)
        self._enabled = enabled
        self._limit = CallLimit(QPS, BURST, clock)
        self._lists = asyncio.Semaphore(LISTS_AT_ONCE)
        self._gets = asyncio.Semaphore(GETS_AT_ONCE)

    def services(self) -> Services:
        """The methods by path. All are streams, also those with one message, because a stream knows when a message is sent."""
        named: dict[str, StreamMethod] = {
            "ListPods": self.list_pods,
            "GetPod": self.get_pod,
            "WatchPods": self.watch_pods,
        }
        return Services({}, {f"/{SERVICE}/{name}": method for name, method in named.items()})

    async def list_pods(self, _: bytes) -> AsyncGenerator[bytes, None]:
        """`ListPods`: all pods, sorted by UID."""
        with self._counted("ListPods"):
            async with self._lists:
                yield await self._list()

    async def _list(self) -> bytes:
        parts: list[bytes] = []
        size, shown = 0, self._pods.now()
        for uid in sorted(shown):
            pod = (await self._encoded(uid, shown[uid], "failed to marshal pod")).pod
            parts += (bytes_head(1, len(pod)), pod)
            size += len(pod)
            if size > MAX_LIST_BYTES:
                problem = (
                    f"the pods have more than {MAX_LIST_BYTES} bytes, which is too much for one answer: use WatchPods"
                )
                raise RpcError(Code.RESOURCE_EXHAUSTED, problem)
        return b"".join(parts)

    async def get_pod(self, request: bytes) -> AsyncGenerator[bytes, None]:
        """`GetPod`: one pod by its UID."""
        with self._counted("GetPod"):
            try:
                uid = PodUID(pb.GetPodRequest.FromString(request).podUID)
            except DecodeError as error:
                raise RpcError(Code.INTERNAL, f"cannot read the request: {error}") from error
            shown = self._pods.find(uid)
            if shown is None:
                raise RpcError(Code.NOT_FOUND, f"pod with UID {uid} not found")
            async with self._gets:
                yield bytes_field(1, (await self._encoded(uid, shown, "failed to marshal pod")).pod)

    async def watch_pods(self, _: bytes) -> AsyncGenerator[bytes, None]:
        """`WatchPods`: each pod as ADDED, sorted by UID, INITIAL_SYNC_COMPLETE, then the changes."""
        with self._counted("WatchPods"):
            if self._pods.watches >= MAX_WATCHES:
                raise RpcError(Code.RESOURCE_EXHAUSTED, f"{MAX_WATCHES} clients watch already")
            with self._pods.watching():
                try:
                    async with aclosing(self._events()) as events:
                        async for event in events:
                            yield event
                except RpcError:
                    # an event cannot be encoded, or the client does not take it in time
                    DROPPED.inc()
                    raise

    async def _events(self) -> AsyncGenerator[bytes, None]:
        cells, wakeup = self._cells, asyncio.Event()
        with set_on_change(wakeup, cells.roster, cells.lifecycles, cells.statuses):
            wakeup.clear()
            sent = self._pods.now()
            for uid in sorted(sent):
                yield await self._event(pb.ADDED, uid, sent[uid], "error marshalling initial watch event pod")
            yield SYNC_EVENT
            while True:
                await wakeup.wait()
                wakeup.clear()
                changes, sent = plan_changes(sent, self._pods.now())
                for type_, uid, shown in changes:
                    yield await self._event(type_, uid, shown, "error marshalling watch event pod")

    async def _event(self, type_: int, uid: PodUID, shown: ShownPod, problem: str) -> bytes:
        if type_ == pb.DELETED:
            return deleted_event(shown.pod)
        return (await self._encoded(uid, shown, problem)).event(type_)

    async def _encoded(self, uid: PodUID, shown: ShownPod, problem: str) -> Encoded:
        try:
            return await self._pods.encoded(uid, shown)
        except ProtobufError as error:
            raise RpcError(Code.INTERNAL, f"{problem}: {error}") from error

    @contextmanager
    def _counted(self, method: str) -> Iterator[None]:
        """Count a call with the code of its end, and refuse it if it cannot be answered now."""
        code = Code.CANCELED
        try:
            self._check()
            yield
            code = Code.OK
        except RpcError as error:
            code = error.code
            raise
        finally:
            REQUESTS.inc(_VERSION, code.words)
            CALLED[method].inc(_VERSION, code.words)

    def _check(self) -> None:
        """Raise RpcError if calls are too frequent, the API is off, or not all sources have reported their pods."""
        self._limit.check()
        if not self._enabled:
            raise RpcError(Code.FAILED_PRECONDITION, "PodsAPI feature gate is disabled")
        if not self._cells.roster.get().sources_ready:
            raise RpcError(Code.FAILED_PRECONDITION, "Kubelet is initializing")
