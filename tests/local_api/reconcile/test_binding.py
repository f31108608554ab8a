"""Pods are bound to the node if they fit, and report in the scheduler's words why not."""

from __future__ import annotations

from typing import Any

import pytest
from local_api.reconcile.world import World, kinds_of, thing

from pykubelet_local_api.objects import Json
from pykubelet_local_api.reconcile.binding import binding
from pykubelet_local_api.reconcile.changes import annotation_of, condition_of

BINDING = binding()

NO_PREEMPTION = (
    " no new claims to deallocate, preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
)
NO_VICTIMS = (
    " no new claims to deallocate, preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
)


def node(name: str = "n", labels: Json | None = None, **spec: Any) -> Json:
    allocatable = {"cpu": "2", "memory": "4Gi", "pods": "10", "ephemeral-storage": "10Gi"}
    return thing(
        "Node",
        name,
        metadata={"labels": {"host": name} | (labels or {})},
        spec=spec,
        status={"allocatable": allocatable},
    )


def pod(name: str, cpu: str = "", *, labels: Json | None = None, **spec: Any) -> Json:
    container: Json = {"name": "c", "image": "x"} | ({"resources": {"requests": {"cpu": cpu}}} if cpu else {})
    return thing("Pod", name, "ns", metadata={"labels": labels or {}}, spec={"containers": [container]} | spec)


def bound(name: str, cpu: str = "", **spec: Any) -> Json:
    return pod(name, cpu, nodeName="n", **spec) | {"status": {"phase": "Running"}}


def reason_of(world: World, name: str) -> tuple[str, str]:
    found = world.get("pods", "ns", name)
    assert found is not None
    condition = condition_of(found, "PodScheduled")
    return condition.get("reason", ""), condition.get("message", "")


def place_of(world: World, name: str) -> str:
    found = world.get("pods", "ns", name)
    assert found is not None
    return str(found["spec"].get("nodeName", ""))


def test_a_pod_that_fits_is_bound() -> None:
    world = World(node(), pod("p", "1"))
    world.settle(BINDING)
    assert place_of(world, "p") == "n"
    events = [event for event in world.list("events") if event["reason"] == "Scheduled"]
    assert [event["message"] for event in events] == ["Successfully assigned ns/p to n"]


def test_what_is_chosen_counts_for_the_next_pod() -> None:
    world = World(node(), pod("a", "1500m"), pod("b", "1"))
    world.settle(BINDING)
    assert (place_of(world, "a"), place_of(world, "b")) == ("n", "")
    world.remove("pods", "ns", "a")
    world.settle(BINDING)
    assert place_of(world, "b") == "n"


def taint(effect: str) -> Json:
    return {"key": "k", "value": "v", "effect": effect}


TERM = {"topologyKey": "host", "labelSelector": {"matchLabels": {"app": "a"}}}
NEAR = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [TERM]}}
APART = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [TERM]}}
PORTS = [{"name": "c", "image": "x", "ports": [{"containerPort": 80, "hostPort": 80}]}]
SPREAD = {
    "maxSkew": 1,
    "topologyKey": "host",
    "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": {"matchLabels": {"app": "a"}},
}
WITH_PORT, WITH_LABEL = bound("a", containers=PORTS), bound("a", labels={"app": "a"})
LABELED = pod("p", labels={"app": "a"})
NOT_SPREAD = "1 node(s) didn't match pod topology spread constraints"


def spread(**fields: Any) -> Json:
    return pod("p", labels={"app": "a"}, topologySpreadConstraints=[SPREAD | fields])


@pytest.mark.parametrize(
    ("objects", "wanted", "message"),
    [
        ([node()], pod("p", "3"), f"1 Insufficient cpu.{NO_PREEMPTION}"),
        ([node(), bound("a", "1500m")], pod("p", "1"), f"1 Insufficient cpu.{NO_VICTIMS}"),
        (
            [node()],
            pod("p", nodeSelector={"a": "b"}),
            f"1 node(s) didn't match Pod's node affinity/selector.{NO_PREEMPTION}",
        ),
        ([node(unschedulable=True)], pod("p"), f"1 node(s) were unschedulable.{NO_PREEMPTION}"),
        ([node(taints=[taint("NoSchedule")])], pod("p"), f"1 node(s) had untolerated taint(s).{NO_PREEMPTION}"),
        (
            [node(), WITH_PORT],
            pod("p", containers=PORTS),
            f"1 node(s) didn't have free ports for the requested pod ports.{NO_VICTIMS}",
        ),
        ([node()], pod("p", affinity=NEAR), f"1 node(s) didn't match pod affinity rules.{NO_PREEMPTION}"),
        (
            [node(), WITH_LABEL],
            pod("p", affinity=APART),
            f"1 node(s) didn't match pod anti-affinity rules.{NO_VICTIMS}",
        ),
        (
            [node(), bound("a", affinity=APART)],
            LABELED,
            f"1 node(s) didn't satisfy existing pods anti-affinity rules.{NO_VICTIMS}",
        ),
        ([node()], spread(topologyKey="zone"), f"{NOT_SPREAD} (missing required label).{NO_PREEMPTION}"),
        ([node(), WITH_LABEL], spread(minDomains=2), f"{NOT_SPREAD}.{NO_VICTIMS}"),
        (
            [node()],
            pod("p", "3", preemptionPolicy="Never"),
            "1 Insufficient cpu. no new claims to deallocate, preemption: not eligible due to preemptionPolicy=Never.",
        ),
    ],
)
def test_a_pod_that_does_not_fit_reports_why(objects: list[Json], wanted: Json, message: str) -> None:
    world = World(*objects, wanted)
    world.settle(BINDING)
    assert reason_of(world, "p") == ("Unschedulable", f"0/1 nodes are available: {message}")
    assert place_of(world, "p") == ""
    assert [event["message"] for event in world.list("events")] == [f"0/1 nodes are available: {message}"]


@pytest.mark.parametrize(
    ("objects", "wanted"),
    [
        ([node(unschedulable=True)], pod("p", tolerations=[{"operator": "Exists"}])),
        ([node(taints=[taint("NoExecute")])], pod("p", tolerations=[{"key": "k", "operator": "Exists"}])),
        ([node(taints=[taint("PreferNoSchedule")])], pod("p")),
        ([node(labels={"a": "b"})], pod("p", nodeSelector={"a": "b"})),
        ([node(), bound("a", labels={"app": "a"})], pod("p", affinity=NEAR)),
        ([node()], pod("p", labels={"app": "a"}, affinity=NEAR)),
        ([node(), bound("a", labels={"app": "b"})], pod("p", affinity=APART)),
        ([node(), bound("a", "2") | {"status": {"phase": "Succeeded"}}], pod("p", "2")),
        ([node(), bound("a", labels={"app": "a"})], pod("p", labels={"app": "a"}, topologySpreadConstraints=[SPREAD])),
    ],
)
def test_a_pod_that_fits_in_another_way_is_bound(objects: list[Json], wanted: Json) -> None:
    world = World(*objects, wanted)
    world.settle(BINDING)
    assert place_of(world, "p") == "n"


def test_without_a_node_pods_wait() -> None:
    waiting = pod("p")
    waiting["metadata"]["generation"] = 2
    world = World(waiting)
    world.settle(BINDING)
    assert reason_of(world, "p") == ("Unschedulable", "no nodes available to schedule pods")
    stored = world.get("pods", "ns", "p")
    assert stored is not None
    assert condition_of(stored, "PodScheduled")["observedGeneration"] == 2
    world.add(node())
    world.settle(BINDING)
    assert place_of(world, "p") == "n"


def test_gates_and_other_schedulers_are_respected() -> None:
    world = World(node(), pod("gated", schedulingGates=[{"name": "a/b"}]), pod("other", schedulerName="mine"))
    world.settle(BINDING)
    assert reason_of(world, "gated") == ("SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates")
    assert reason_of(world, "other") == ("", "")
    assert world.names("events") == []


def test_higher_priority_goes_first() -> None:
    world = World(node(), pod("low", "2"), pod("high", "2", priority=10))
    world.settle(BINDING)
    assert place_of(world, "high") == "n"


def test_the_least_important_pod_makes_way() -> None:
    world = World(node(), bound("keep", "1", priority=5), bound("victim", "1"), pod("high", "1", priority=10))
    world.settle(BINDING)
    victim, keep, high = (world.get("pods", "ns", name) for name in ("victim", "keep", "high"))
    assert victim is not None and keep is not None and high is not None
    assert victim["metadata"]["deletionTimestamp"]
    assert condition_of(victim, "DisruptionTarget")["message"] == (
        "default-scheduler: preempting to accommodate a higher priority pod"
    )
    assert "deletionTimestamp" not in keep["metadata"]
    assert high["status"]["nominatedNodeName"] == "n"
    assert reason_of(world, "high")[1].endswith(
        "preemption: not eligible due to a terminating pod on the nominated node."
    )
    world.add(pod("late", "1", priority=1))
    world.remove("pods", "ns", "victim")
    world.settle(BINDING)
    assert (place_of(world, "high"), place_of(world, "late")) == ("n", "")


def test_a_pod_that_is_resized_counts_with_the_larger_size() -> None:
    shrinking = bound("a", "500m")
    shrinking["status"]["containerStatuses"] = [{"name": "c", "allocatedResources": {"cpu": "2"}}]
    world = World(node(), shrinking, pod("p", "1"))
    world.settle(BINDING)
    assert place_of(world, "p") == ""


def test_terms_that_cost_too_much_are_refused_and_named() -> None:
    many = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [TERM] * 1000}}
    world = World(node(), pod("p", affinity=many), pod("other"))
    world.settle(BINDING)
    reason, message = reason_of(world, "p")
    assert reason == "SchedulerError"
    assert message.startswith("affinity to other pods and topology spread have more than 16384 bytes together")
    assert place_of(world, "other") == "n"


# Volumes


def claim(name: str, storage_class: str = "wait", **fields: Any) -> Json:
    spec = {
        "storageClassName": storage_class,
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    return thing("PersistentVolumeClaim", name, "ns", spec=spec | fields, status={"phase": "Pending"})


def using(name: str, claim_name: str) -> Json:
    return pod(name, volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": claim_name}}])


def storage_class(name: str, mode: str, provisioner: str = "ex.com/p") -> Json:
    return thing("StorageClass", name, "", "storage.k8s.io/v1", provisioner=provisioner, volumeBindingMode=mode)


def volume(name: str, size: str = "1Gi", hosts: tuple[str, ...] = (), **fields: Any) -> Json:
    spec: Json = {"storageClassName": "wait", "capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"]} | fields
    if hosts:
        term = {"matchExpressions": [{"key": "host", "operator": "In", "values": list(hosts)}]}
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [term]}}
    return thing("PersistentVolume", name, spec=spec, status={"phase": "Available"})


WAIT = storage_class("wait", "WaitForFirstConsumer")


def test_a_claim_that_waits_names_the_node_for_the_provisioner() -> None:
    world = World(node(), WAIT, claim("c"), using("p", "c"))
    world.settle(BINDING)
    found = world.get("persistentvolumeclaims", "ns", "c")
    assert found is not None
    assert annotation_of(found, "volume.kubernetes.io/selected-node") == "n"
    assert place_of(world, "p") == "", "it waits for the volume"


def test_a_claim_that_waits_gets_the_smallest_volume_in_reach() -> None:
    far, large, fit = volume("far", hosts=("other",)), volume("large", "9Gi", ("n",)), volume("fit", "2Gi", ("n",))
    world = World(node(), WAIT, claim("c"), using("p", "c"), far, large, fit)
    changes = world.settle(BINDING)
    assert kinds_of(changes) == ["update persistentvolumes fit"]
    found = world.get("persistentvolumes", "", "fit")
    assert found is not None
    assert found["spec"]["claimRef"]["name"] == "c"


NOW, UNSERVED = (
    storage_class("now", "Immediate"),
    storage_class("wait", "WaitForFirstConsumer", "kubernetes.io/no-provisioner"),
)
LOST = claim("c", volumeName="v") | {"status": {"phase": "Lost"}}


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        ([], 'persistentvolumeclaim "c" not found. not found'),
        ([NOW, claim("c", "now")], "pod has unbound immediate PersistentVolumeClaims. not found"),
        ([UNSERVED, claim("c")], f"1 node(s) didn't find available persistent volumes to bind.{NO_PREEMPTION}"),
        ([WAIT, LOST], 'persistentvolumeclaim "c" bound to non-existent persistentvolume "v". not found'),
    ],
)
def test_a_claim_that_keeps_its_pod_from_the_node_is_named(objects: list[Json], message: str) -> None:
    world = World(node(), using("p", "c"), *objects)
    world.settle(BINDING)
    assert reason_of(world, "p") == ("Unschedulable", f"0/1 nodes are available: {message}")


def test_a_bound_volume_that_the_node_does_not_reach() -> None:
    bound_claim = claim("c", volumeName="far")
    bound_claim["metadata"]["annotations"] = {"pv.kubernetes.io/bind-completed": "yes"}
    world = World(node(), WAIT, bound_claim, using("p", "c"), volume("far", hosts=("other",)))
    world.settle(BINDING)
    assert reason_of(world, "p")[1].startswith(
        "0/1 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity. "
    )
