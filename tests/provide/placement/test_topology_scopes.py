"""The order in which a pod's resources are allocated, and what a rejected pod is reported with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import pytest

from pykubelet.base.api.core import Container, Pod, ResourceRequirements
from pykubelet.base.kit.values import Value, field, replace
from pykubelet.base.model.machine import ResourceHints, TopologyHint
from pykubelet.provide.placement.provider import (
    Allocation,
    AllocationError,
    MetricIncrement,
    NeedsPluginAnswer,
    PreferredAllocationRequest,
    Provider,
)
from pykubelet.provide.placement.topology_options import Policy, Scope, Topology
from pykubelet.provide.placement.topology_scopes import Admitted, PlacementRejection, initial_increments
from pykubelet.provide.placement.topology_scopes import admit as admit_or_ask

POD = msgspec.convert(
    {
        "metadata": {"uid": "u"},
        "spec": {
            "initContainers": [{"name": "setup"}, {"name": "sidecar", "restartPolicy": "Always"}],
            "containers": [{"name": "app"}, {"name": "log"}],
        },
    },
    Pod,
)
ORDER = ["setup", "sidecar", "app", "log"]
REQUEST = MetricIncrement("kubelet_topology_manager_admission_requests_total")
ERROR = MetricIncrement("kubelet_topology_manager_admission_errors_total")
NODE0, BOTH = TopologyHint(frozenset({0}), True), TopologyHint(frozenset({0, 1}), True)


#: Stands for the name of a container where a pod is allocated as a whole.
WHOLE = "whole"


class Recorder(Value):
    """A provider whose state is what it was asked for. `failures`: by container."""

    name: str
    by_container: Mapping[str, ResourceHints] = field(default_factory=dict)
    by_pod: ResourceHints = field(default_factory=dict)
    failures: Mapping[str, AllocationError] = field(default_factory=dict)
    calls: tuple[tuple[str, TopologyHint], ...] = ()

    def hints(self, pod: Pod, container: Container) -> ResourceHints:
        assert [name for name, _ in self.calls] == ORDER[: ORDER.index(container.name)]
        return self.by_container.get(container.name, {})

    def pod_hints(self, pod: Pod) -> ResourceHints:
        assert not self.calls
        return self.by_pod

    def allocate(self, pod: Pod, container: Container, hint: TopologyHint) -> Allocation[Recorder]:
        increments = (MetricIncrement(f"{self.name}_requests", (("container", container.name),)),)
        if container.name in self.failures:
            return Allocation(self.failures[container.name], increments)
        return Allocation(replace(self, calls=(*self.calls, (container.name, hint))), increments)

    def allocate_pod(self, pod: Pod, hint: TopologyHint) -> Allocation[Recorder]:
        increments = (MetricIncrement(f"{self.name}_requests", (("container", WHOLE),)),)
        if WHOLE in self.failures:
            return Allocation(self.failures[WHOLE], increments)
        return Allocation(replace(self, calls=(*self.calls, (WHOLE, hint))), increments)


def topology(policy: Policy, scope: Scope = Scope.CONTAINER) -> Topology:
    return Topology(policy, scope, (0, 1))


def admit(topology: Topology, providers: Sequence[Provider], pod: Pod) -> Admitted | PlacementRejection:
    result = admit_or_ask(topology, providers, pod)
    assert not isinstance(result, PreferredAllocationRequest)
    return result


def calls(result: Admitted | PlacementRejection) -> list[tuple[tuple[str, TopologyHint], ...]]:
    assert isinstance(result, Admitted), result
    return [provider.calls for provider in result.providers if isinstance(provider, Recorder)]


def asked(*names: str, containers: list[str] = ORDER) -> list[MetricIncrement]:
    return [
        MetricIncrement(f"{name}_requests", (("container", container),)) for container in containers for name in names
    ]


def aligned(which: str, scope: str) -> MetricIncrement:
    metric = f"kubelet_container_aligned_compute_resources_{which}"
    return MetricIncrement(metric, (("scope", scope), ("boundary", "numa_node")))


def test_none_allocates_init_containers_first_and_gives_no_hint() -> None:
    result = admit(topology(Policy.NONE), [Recorder("device"), Recorder("cpu")], POD)
    expected = tuple((name, TopologyHint(None, False)) for name in ORDER)
    assert calls(result) == [expected, expected]
    assert result.increments == (REQUEST, *asked("device", "cpu"))


def test_container_scope_merges_for_each_container() -> None:
    cpu = Recorder("cpu", {"setup": {"cpu": [NODE0]}, "app": {"cpu": [BOTH]}})
    result = admit(topology(Policy.RESTRICTED), [cpu], POD)
    assert calls(result) == [(("setup", NODE0), ("sidecar", BOTH), ("app", BOTH), ("log", BOTH))]
    assert isinstance(result, Admitted)
    assert result.hints == {"setup": NODE0, "sidecar": BOTH, "app": BOTH, "log": BOTH}


def test_pod_scope_gives_every_container_the_same_hint() -> None:
    providers: list[Provider] = [
        Recorder("cpu", by_pod={"cpu": [NODE0, BOTH]}),
        Recorder("memory", by_pod={"memory": [NODE0]}),
    ]
    result = admit(topology(Policy.SINGLE_NUMA_NODE, Scope.POD), providers, POD)
    assert calls(result) == [tuple((name, NODE0) for name in ORDER)] * 2
    assert result.increments == (REQUEST, *asked("cpu", "memory"), aligned("count", "pod"))


def test_single_numa_node_counts_aligned_containers() -> None:
    result = admit(topology(Policy.SINGLE_NUMA_NODE), [Recorder("cpu")], POD)
    count = aligned("count", "container")
    assert [increment for increment in result.increments if increment == count] == [count] * 4


@pytest.mark.parametrize("policy", [Policy.RESTRICTED, Policy.SINGLE_NUMA_NODE])
@pytest.mark.parametrize("scope", list(Scope))
def test_hints_that_are_not_preferred_reject_the_pod(policy: Policy, scope: Scope) -> None:
    bad: ResourceHints = {"cpu": []}
    cpu = Recorder("cpu", {"sidecar": bad}, bad)
    result = admit(topology(policy, scope), [cpu], POD)
    increments = [REQUEST]
    if scope is Scope.CONTAINER:
        increments += asked("cpu", containers=["setup"])
        increments += [aligned("count", "container")] if policy is Policy.SINGLE_NUMA_NODE else []
    increments += [aligned("failure_count", scope)] if policy is Policy.SINGLE_NUMA_NODE else []
    text = "Resources cannot be allocated with Topology locality"
    assert result == PlacementRejection("TopologyAffinityError", text, (*increments, ERROR))
    assert isinstance(admit(topology(Policy.BEST_EFFORT, scope), [cpu], POD), Admitted)


@pytest.mark.parametrize(
    ("topology", "counted"),
    [
        (topology(Policy.NONE), ()),
        (topology(Policy.BEST_EFFORT, Scope.CONTAINER), (ERROR,)),
        (topology(Policy.RESTRICTED, Scope.POD), (ERROR,)),
    ],
)
def test_an_allocation_that_fails_rejects_the_pod(topology: Topology, counted: tuple[MetricIncrement, ...]) -> None:
    device, memory = Recorder("device"), Recorder("memory")
    plain = Recorder("cpu", failures={"app": AllocationError("not enough cpus")})
    own = Recorder("cpu", failures={"app": AllocationError("SMT Alignment Error: 3", "SMTAlignmentError")})
    increments = (
        REQUEST,
        *asked("device", "cpu", "memory", containers=["setup", "sidecar"]),
        *asked("device", "cpu", containers=["app"]),
        *counted,
    )
    text = "Allocate failed due to not enough cpus, which is unexpected"
    assert admit(topology, [device, plain, memory], POD) == PlacementRejection(
        "UnexpectedAdmissionError", text, increments
    )
    assert admit(topology, [device, own, memory], POD) == PlacementRejection(
        "SMTAlignmentError", "SMT Alignment Error: 3", increments
    )


def whole(policy: Policy, scope: Scope = Scope.POD, *, pod_level: bool = True) -> Topology:
    return Topology(policy, scope, (0, 1), pod_level=pod_level)


LIMITS = {"cpu": "4", "memory": "1Gi"}
WHOLE_POD = replace(
    POD, spec=replace(POD.spec, resources=msgspec.convert({"requests": LIMITS, "limits": LIMITS}, ResourceRequirements))
)


def test_a_pod_with_resources_of_its_own_is_allocated_once_by_each_provider() -> None:
    hints: ResourceHints = {"cpu": [NODE0]}
    providers = [Recorder("device"), Recorder("cpu", by_pod=hints), Recorder("memory")]
    result = admit(whole(Policy.SINGLE_NUMA_NODE), providers, WHOLE_POD)
    assert calls(result) == [((WHOLE, NODE0),)] * 3
    assert isinstance(result, Admitted)
    assert result.hints == dict.fromkeys(ORDER, NODE0)
    assert result.increments == (
        REQUEST,
        *asked("device", "cpu", "memory", containers=[WHOLE]),
        aligned("count", "pod"),
    )


@pytest.mark.parametrize(
    ("topology", "pod"),
    [
        (whole(Policy.RESTRICTED), POD),
        (whole(Policy.RESTRICTED, pod_level=False), WHOLE_POD),
        (whole(Policy.RESTRICTED, Scope.CONTAINER), WHOLE_POD),
        (whole(Policy.NONE), WHOLE_POD),
    ],
)
def test_any_other_pod_is_allocated_by_containers(topology: Topology, pod: Pod) -> None:
    (made,) = calls(admit(topology, [Recorder("cpu")], pod))
    assert [name for name, _ in made] == ORDER


def test_a_provider_that_cannot_allocate_the_whole_pod_rejects_it() -> None:
    failing = Recorder("cpu", failures={WHOLE: AllocationError("no cpus are left", "EmptyPodSharedPoolError")})
    result = admit(whole(Policy.BEST_EFFORT), [Recorder("device"), failing, Recorder("memory")], WHOLE_POD)
    increments = (REQUEST, *asked("device", "cpu", containers=[WHOLE]), ERROR)
    assert result == PlacementRejection("EmptyPodSharedPoolError", "no cpus are left", increments)


@pytest.mark.parametrize(
    ("scope", "pod_level", "message"),
    [
        (Scope.POD, True, "Pod Scope pod with pod-level resources failed admission under pod-scope topology manager"),
        (
            Scope.CONTAINER,
            True,
            "Pod Scope pod with pod-level resources failed admission with a container-level topology manager",
        ),
        (Scope.POD, False, "Resources cannot be allocated with Topology locality"),
    ],
)
def test_the_message_about_a_pod_with_resources_of_its_own(scope: Scope, pod_level: bool, message: str) -> None:
    bad: ResourceHints = {"cpu": []}
    cpu = Recorder("cpu", {"setup": bad}, bad)
    result = admit(whole(Policy.RESTRICTED, scope, pod_level=pod_level), [cpu], WHOLE_POD)
    assert isinstance(result, PlacementRejection)
    assert (result.reason, result.message) == ("TopologyAffinityError", message)


def test_counters_that_exist_from_the_start() -> None:
    assert initial_increments(topology(Policy.NONE)) == ()
    assert set(initial_increments(topology(Policy.BEST_EFFORT))) == {
        aligned(which, scope) for which in ("count", "failure_count") for scope in ("container", "pod")
    }


@pytest.mark.parametrize("scope", list(Scope))
def test_a_question_to_a_device_plugin_is_returned_instead_of_a_decision(scope: Scope) -> None:
    request = PreferredAllocationRequest("u", "app", "example.com/r", frozenset({"a", "b"}), frozenset(), 1)
    device = Recorder("device", failures={"app": NeedsPluginAnswer("unanswered", request=request)})
    for policy in (Policy.NONE, Policy.RESTRICTED):
        assert admit_or_ask(topology(policy, scope), [device, Recorder("cpu")], POD) == request
