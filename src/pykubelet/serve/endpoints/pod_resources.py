"""The pod resources API: the devices, CPUs, memory and claims of the containers on this node.

Owns: the answers of `v1.PodResourcesLister` and `v1alpha1.PodResourcesLister`, and their rate limit. Reads: the known pods,
`Placements`, `Claims`. Source: the Kubernetes documentation "Device Plugins" (monitoring device plugin resources); KEP-606.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from google.protobuf.message import DecodeError

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.cells import Cell
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.metrics import Counter
from pykubelet.base.kit.values import Value
from pykubelet.base.model.claims import Claims, PodClaims
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.lifecycle import ENDED_STAGES, Stage
from pykubelet.base.model.placement import Placements
from pykubelet.base.model.roster import TERMINAL_PHASES
from pykubelet.edges.plugins import podresources_pb2 as pb
from pykubelet.net.grpc.server import CallLimit
from pykubelet.net.grpc.services import Method
from pykubelet.net.grpc.status import Code, RpcError
from pykubelet.serve.endpoints.known_pods import KnownPods
from pykubelet.serve.endpoints.pod_resources_messages import (
    TooManyDevices,
    allocatable_message,
    check_size,
    old_pod_message,
    pod_message,
)

V1, V1ALPHA1 = "v1", "v1alpha1"
SERVICE = "PodResourcesLister"
QPS, BURST = 100.0, 10
_METHODS = (("list", "List"), ("get", "Get"), ("get_allocatable", "GetAllocatableResources"))
REQUESTS = Counter(
    "kubelet_pod_resources_endpoint_requests_total",
    "Cumulative number of requests to the PodResource endpoint. Broken down by server api version.",
    ("server_api_version",),
)


def _counters(kind: str, which: str) -> dict[str, Counter]:
    name, text = f"kubelet_pod_resources_endpoint_{kind}", "Broken down by server api version."
    return {
        method: Counter(
            f"{name}_{method}",
            f"Number of requests to the PodResource {title} endpoint{which}. {text}",
            ("server_api_version",),
        )
        for method, title in _METHODS
    }


_CALLED, _FAILED = _counters("requests", ""), _counters("errors", " which returned error")
#: Pods that are added to an answer without a pause.
_STEP = 50


class ResourceCells(Value):
    """What containers have. `active_only`: List leaves out ended pods (gate KubeletPodResourcesListUseActivePods)."""

    placements: Cell[Placements]
    claims: Cell[Claims]
    active_only: bool = True


class PodResources:
    """The methods of both services. At most QPS calls per second are answered, BURST at once."""

    def __init__(self, pods: KnownPods, cells: ResourceCells, clock: Clock) -> None:
        self._pods = pods
        self._cells = cells
        self._limit = CallLimit(QPS, BURST, clock)
        self._making = asyncio.Lock()  # one answer at a time, because each may need much memory

    def methods(self) -> dict[str, Method]:
        """The methods by path."""
        named = {"list": self.list_pods, "get": self.get_pod, "get_allocatable": self.allocatable}
        methods = {f"/{V1}.{SERVICE}/{title}": self._counted(name, named[name]) for name, title in _METHODS}
        return {**methods, f"/{V1ALPHA1}.{SERVICE}/List": self._limited(V1ALPHA1, self.list_old)}

    async def list_pods(self, _: bytes) -> bytes:
        """`List`: the resources of all pods that have not ended."""
        answer = pb.ListPodResourcesResponse()
        pods = self._active() if self._cells.active_only else self._all()
        await _add_pods(answer, pods, self._message)
        return answer.SerializeToString()

    async def list_old(self, _: bytes) -> bytes:
        """`List` of v1alpha1: the devices of all known pods."""
        answer = pb.ListPodResourcesResponse()
        placements = self._cells.placements.get()
        await _add_pods(answer, self._all(), lambda pod: old_pod_message(pod, placements))
        return answer.SerializeToString()

    async def get_pod(self, request: bytes) -> bytes:
        """`Get`: the resources of one pod. Raises RpcError for an unknown pod, and for one that has ended."""
        try:
            asked = pb.GetPodResourcesRequest.FromString(request)
        except DecodeError as error:
            raise RpcError(Code.INTERNAL, f"cannot read the request: {error}") from error
        for pod in self._active():
            if (pod.metadata.name, pod.metadata.namespace) == (asked.pod_name, asked.pod_namespace):
                return pb.GetPodResourcesResponse(pod_resources=await self._message(pod)).SerializeToString()
        raise RpcError(Code.UNKNOWN, f"pod {asked.pod_name} in namespace {asked.pod_namespace} not found")

    async def allocatable(self, _: bytes) -> bytes:
        """`GetAllocatableResources`: what containers could have exclusively if nothing were taken."""
        return (await allocatable_message(self._cells.placements.get())).SerializeToString()

    def _message(self, pod: Pod) -> Awaitable[pb.PodResources]:
        claims = self._cells.claims.get().pods.get(PodUID(pod.metadata.uid), PodClaims())
        return pod_message(pod, self._cells.placements.get(), claims)

    def _all(self) -> list[Pod]:
        return [entry.pod for entry in self._pods.roster.get().pods.values()]

    def _active(self) -> list[Pod]:
        """The pods that are not stopped yet, and are to run or are being stopped."""
        entries = self._pods.roster.get().pods.values()
        return [entry.pod for entry in entries if entry.rejection is None and self._is_active(entry.pod)]

    def _is_active(self, pod: Pod) -> bool:
        lifecycle = self._pods.lifecycles.get().pods.get(PodUID(pod.metadata.uid))
        if lifecycle is not None and lifecycle.stage in ENDED_STAGES:
            return False
        if self._pods.status(pod).phase not in TERMINAL_PHASES:
            return True
        # The phase of an evicted pod is set before its containers have ended.
        view = self._pods.observed.get().pods.get(PodUID(pod.metadata.uid))
        return lifecycle is not None and lifecycle.stage is Stage.TERMINATING and view is not None and view.is_running

    def _limited(self, version: str, method: Method) -> Method:
        async def answer(request: bytes) -> bytes:
            REQUESTS.inc(version)
            self._limit.check()
            try:
                async with self._making:
                    return await method(request)
            except TooManyDevices as error:
                raise RpcError(Code.RESOURCE_EXHAUSTED, str(error)) from error

        return answer

    def _counted(self, name: str, method: Method) -> Method:
        limited = self._limited(V1, method)

        async def answer(request: bytes) -> bytes:
            _CALLED[name].inc(V1)
            try:
                return await limited(request)
            except RpcError:
                _FAILED[name].inc(V1)
                raise

        return answer


async def _add_pods(
    answer: pb.ListPodResourcesResponse, pods: list[Pod], make: Callable[[Pod], Awaitable[pb.PodResources]]
) -> None:
    devices = 0
    for number, pod in enumerate(pods, 1):
        message = await make(pod)
        devices += sum(len(container.devices) for container in message.containers)
        check_size(devices)
        answer.pod_resources.append(message)
        if number % _STEP == 0:
            await asyncio.sleep(0)
