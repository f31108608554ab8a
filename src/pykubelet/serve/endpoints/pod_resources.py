"""The pod resources API: the devices, CPUs and memory of the containers on this node.

Owns: the answers of `v1.PodResourcesLister`, and their rate limit. Reads: the known pods. The agent does not assign exclusive
CPUs, memory blocks or devices yet, so containers are listed without any. Source: the Kubernetes documentation "Device
Plugins" (monitoring device plugin resources); KEP-606.
"""

from __future__ import annotations

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.bucket import TokenBucket
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.metrics import Counter
from pykubelet.base.model.restart import is_sidecar
from pykubelet.edges.plugins import podresources_pb2 as pb
from pykubelet.net.grpc.server import Method
from pykubelet.net.grpc.status import Code, RpcError
from pykubelet.serve.endpoints.known_pods import KnownPods

SERVICE = "/v1.PodResourcesLister/"
QPS, BURST = 100.0, 10
_OVER = ("Succeeded", "Failed")
_METHODS = (("list", "List"), ("get", "Get"), ("get_allocatable", "GetAllocatableResources"))
REQUESTS = Counter(
    "kubelet_pod_resources_endpoint_requests_total",
    "Cumulative number of requests to the PodResource endpoint. Broken down by server api version.",
    ("server_api_version",),
)


_CALLED = {
    method: Counter(
        f"kubelet_pod_resources_endpoint_requests_{method}",
        f"Number of requests to the PodResource {title} endpoint. Broken down by server api version.",
        ("server_api_version",),
    )
    for method, title in _METHODS
}
_FAILED = {
    method: Counter(
        f"kubelet_pod_resources_endpoint_errors_{method}",
        f"Number of requests to the PodResource {title} endpoint which returned error. Broken down by server api version.",
        ("server_api_version",),
    )
    for method, title in _METHODS
}


class PodResources:
    """The methods of the service. At most QPS calls per second are answered, BURST at once."""

    def __init__(self, pods: KnownPods, clock: Clock) -> None:
        self._pods = pods
        self._clock = clock
        self._bucket = TokenBucket(QPS, BURST)

    def methods(self) -> dict[str, Method]:
        """The methods by path."""
        return {
            SERVICE + "List": _counted("list", self.list_pods),
            SERVICE + "Get": _counted("get", self.get_pod),
            SERVICE + "GetAllocatableResources": _counted("get_allocatable", self.allocatable),
        }

    async def list_pods(self, _: bytes) -> bytes:
        """`List`: the resources of all pods that have not ended. Raises RpcError above the rate limit."""
        self._take()
        pods = [_resources(pod) for pod in self._active()]
        return pb.ListPodResourcesResponse(pod_resources=pods).SerializeToString()

    async def get_pod(self, request: bytes) -> bytes:
        """`Get`: the resources of one pod. Raises RpcError for an unknown pod and above the rate limit."""
        self._take()
        asked = pb.GetPodResourcesRequest.FromString(request)
        for pod in self._active():
            if (pod.metadata.name, pod.metadata.namespace) == (asked.pod_name, asked.pod_namespace):
                return pb.GetPodResourcesResponse(pod_resources=_resources(pod)).SerializeToString()
        raise RpcError(Code.UNKNOWN, f"pod {asked.pod_name} in namespace {asked.pod_namespace} not found")

    async def allocatable(self, _: bytes) -> bytes:
        """`GetAllocatableResources`: empty, as no resource is assigned exclusively. Raises RpcError above the rate
        limit."""
        self._take()
        return pb.AllocatableResourcesResponse().SerializeToString()

    def _active(self) -> list[Pod]:
        """The pods whose containers may still run."""
        pods = [entry.pod for entry in self._pods.roster.get().pods.values() if entry.rejection is None]
        return [pod for pod in pods if self._pods.status(pod).phase not in _OVER]

    def _take(self) -> None:
        REQUESTS.inc("v1")
        if not self._bucket.take(self._clock.monotonic()):
            raise RpcError(Code.RESOURCE_EXHAUSTED, "rejected by rate limit")


def _counted(name: str, method: Method) -> Method:
    async def answer(request: bytes) -> bytes:
        _CALLED[name].inc("v1")
        try:
            return await method(request)
        except RpcError:
            _FAILED[name].inc("v1")
            raise

    return answer


def _resources(pod: Pod) -> pb.PodResources:
    names = [c.name for c in pod.spec.initContainers if is_sidecar(c)] + [c.name for c in pod.spec.containers]
    containers = [pb.ContainerResources(name=name) for name in names]
    return pb.PodResources(name=pod.metadata.name, namespace=pod.metadata.namespace, containers=containers)
