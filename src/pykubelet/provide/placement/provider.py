"""The interface of a resource manager to the Topology Manager: hints, and allocations by the merged hint. Pure.

A provider is an immutable value: the rules of its policy together with its state. Allocating returns the provider of the new
state; whoever gets that value decides whether it replaces the old one.
Source: KEP-693 (Topology Manager), "Hint Providers".
"""

from __future__ import annotations

from typing import Generic, Protocol, Self, TypeVar

from pykubelet.base.api.core import Container, Pod
from pykubelet.base.kit.values import Value
from pykubelet.base.model.machine import ResourceHints, TopologyHint

T_co = TypeVar("T_co", covariant=True)

#: The reason of failures without a reason of their own.
UNEXPECTED = "UnexpectedAdmissionError"


class MetricIncrement(Value):
    """One increment of a counter: the metric's name, and its labels as pairs."""

    metric: str
    labels: tuple[tuple[str, str], ...] = ()


class ManagerStartError(Value):
    """Why a manager cannot start with this configuration, machine or state file. The agent ends with this text."""

    text: str


class AllocationError(Value):
    """Why a container cannot have its resources. `reason`: that of the rejected pod; its message is `text` if the reason is not
    `UnexpectedAdmissionError`.
    """

    text: str
    reason: str = UNEXPECTED

    def message(self) -> str:
        """The pod's status message."""
        return f"Allocate failed due to {self.text}, which is unexpected" if self.reason == UNEXPECTED else self.text


class PreferenceKey(Value):
    """What identifies a request for preferred devices, without the devices that it offers: a pod may have hundreds of requests, each with
    most of a plugin's devices. `offered`: their number; None: any.
    """

    pod_uid: str
    container: str
    resource: str
    must_include: frozenset[str]
    size: int
    offered: int | None = None


class PreferredAllocationRequest(Value):
    """Which devices a container should get, if its device plugin may choose: `size` of `available`, with all of `must_include`."""

    pod_uid: str
    container: str
    resource: str
    available: frozenset[str]
    must_include: frozenset[str]
    size: int

    @property
    def key(self) -> PreferenceKey:
        """The key of its answer."""
        offered = len(self.available)
        return PreferenceKey(self.pod_uid, self.container, self.resource, self.must_include, self.size, offered)


class NeedsPluginAnswer(AllocationError, kw_only=True):
    """Not a failure: the allocation depends on a device plugin's answer. The pod is admitted again once it is there."""

    request: PreferredAllocationRequest


class Allocation(Value, Generic[T_co]):
    """The result of an allocation: the provider after it, or the error, and what to count."""

    after: T_co | AllocationError
    increments: tuple[MetricIncrement, ...] = ()


class Provider(Protocol):
    """A resource manager with its state."""

    def hints(self, pod: Pod, container: Container) -> ResourceHints:
        """The NUMA nodes on which the container's resources fit. An empty mapping: no preference."""

    def pod_hints(self, pod: Pod) -> ResourceHints:
        """The same for the pod as a whole."""

    def allocate(self, pod: Pod, container: Container, hint: TopologyHint) -> Allocation[Self]:
        """Allocate the container's resources, if they are not allocated yet. `hint`: the merged hint."""

    def allocate_pod(self, pod: Pod, hint: TopologyHint) -> Allocation[Self]:
        """Allocate the resources of a pod as a whole (gate PodLevelResourceManagers), if they are not allocated yet."""
