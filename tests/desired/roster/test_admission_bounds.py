"""How much of one kind a pod may have: what is at a bound is taken, what is beyond it is refused with its name."""

from __future__ import annotations

from typing import Any

import pytest
from desired.roster.wants import Desk, make_pod

from pykubelet.base.api.codec import from_object
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import replace
from pykubelet.desired.roster.admission import BOUNDS, MAX_CONTAINERS, MAX_RESOURCES, demand_of


def containers(number: int, prefix: str = "c") -> list[dict[str, Any]]:
    return [{"name": f"{prefix}{n}", "image": "busybox"} for n in range(number)]


def with_container(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "app", "image": "busybox", **fields}]}}


def of_containers(number: int) -> dict[str, Any]:
    """Half of them init containers, which count as well."""
    half = number // 2
    return {"spec": {"containers": containers(number - half), "initContainers": containers(half, "i")}}


def of_resources(number: int) -> dict[str, Any]:
    limits = {f"example.com/r{n}": "1" for n in range(number // 2)}
    return with_container(resources={"limits": limits, "requests": {**limits, **({"cpu": "1"} if number % 2 else {})}})


def of_sources(number: int) -> dict[str, Any]:
    source = {"configMap": {"name": "m"}}
    volumes = [
        {"name": "v", "projected": {"sources": [source] * (number - 1)}},
        {"name": "w", "projected": {"sources": [source]}},
    ]
    return {"spec": {"containers": containers(1), "volumes": volumes}}


def of_targets(number: int) -> dict[str, Any]:
    iscsi = {"targetPortal": "10.0.0.1", "iqn": "iqn.2001-04.com.example:a", "lun": 0}
    volumes = [
        {"name": "i", "iscsi": {**iscsi, "portals": ["10.0.0.2"] * (number - 2)}},
        {"name": "f", "fc": {"targetWWNs": ["5006"], "lun": 0}},
        {"name": "w", "fc": {"wwids": ["3600"]}},
    ]
    return {"spec": {"containers": containers(1), "volumes": volumes}}


def of_terms(number: int) -> dict[str, Any]:
    term = {"matchExpressions": [{"key": "kubernetes.io/os", "operator": "Exists"}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term] * number}}
    return {"spec": {"containers": containers(1), "affinity": {"nodeAffinity": required}}}


def of_volumes(source: dict[str, Any], number: int, prefix: str = "v") -> dict[str, Any]:
    volumes = [{"name": f"{prefix}{n}", **source} for n in range(number)]
    return {"spec": {"containers": containers(1), "volumes": volumes}}


def of_claims(number: int) -> dict[str, Any]:
    """The last of them is a generic ephemeral volume."""
    given = of_volumes({"persistentVolumeClaim": {"claimName": "c"}}, number)
    given["spec"]["volumes"][-1] = {"name": "w", "ephemeral": {}}
    return given


POD_WITH: dict[str, Any] = {
    "containers and init containers": of_containers,
    "labels": lambda number: {"metadata": {"labels": {f"k{n}": "v" for n in range(number)}}},
    "names of resources and claims in all containers": of_resources,
    "ports in all containers": lambda number: with_container(ports=[{"containerPort": 80}] * number),
    "mounts of volumes and devices in all containers": lambda number: with_container(
        volumeMounts=[{"name": "v", "mountPath": "/v"}] * (number - 1),
        volumeDevices=[{"name": "d", "devicePath": "/d"}],
    ),
    "mounts with a subPath": lambda number: with_container(
        volumeMounts=[{"name": "v", "mountPath": "/v", "subPath": "a"}] * (number - 1)
        + [{"name": "v", "mountPath": "/w", "subPathExpr": "b"}],
    ),
    "volumes": lambda number: of_volumes({"emptyDir": {}}, number),
    "volumes of PersistentVolumeClaims": of_claims,
    "imagePullSecrets": lambda number: {
        "spec": {"containers": containers(1), "imagePullSecrets": [{"name": "s"}] * number}
    },
    "sources of projected volumes": of_sources,
    "portals of iSCSI and names of Fibre Channel volumes": of_targets,
    "terms of the required node affinity": of_terms,
}


def refusal(given: dict[str, Any]) -> tuple[str, str] | None:
    desk = Desk()
    desk.send(make_pod(metadata=given.get("metadata", {}), **given.get("spec", {})))
    rejection = next(iter(desk.roster.pods.values())).rejection
    return None if rejection is None else (rejection.reason, rejection.message)


def test_each_bound_has_a_pod_here() -> None:
    assert POD_WITH.keys() == BOUNDS.keys()


@pytest.mark.parametrize("what", BOUNDS)
def test_a_pod_at_the_bound_is_taken_and_one_beyond_it_is_refused(what: str) -> None:
    _, most = BOUNDS[what]
    at_bound = refusal(POD_WITH[what](most))
    assert at_bound is None or at_bound[0] != "InvalidPodSpec", at_bound
    assert refusal(POD_WITH[what](most + 1)) == (
        "InvalidPodSpec",
        f"the pod has {most + 1} {what}, more than {most}",
    )


def test_resources_beyond_the_bound_are_not_summed_up() -> None:
    """The sum of 55,000 would take 80 ms of the event loop."""
    too_many = from_object(Pod, of_resources(MAX_RESOURCES + 1))
    within = from_object(Pod, of_resources(MAX_RESOURCES))
    assert not demand_of(too_many).requests
    assert len(demand_of(within).requests) == MAX_RESOURCES // 2


def test_ephemeral_containers_beyond_the_bound_are_left_out_of_a_pod_that_runs() -> None:
    desk = Desk()
    desk.send(make_pod(containers=containers(300)))
    added = [{**container, "targetContainerName": "c0"} for container in containers(300, "e")]
    desk.send(make_pod(containers=containers(300), ephemeralContainers=added))
    (entry,) = desk.roster.pods.values()
    assert entry.rejection is None
    assert [container.name for container in entry.pod.spec.ephemeralContainers] == [
        f"e{n}" for n in range(MAX_CONTAINERS - 300)
    ]
    desk.send(make_pod(containers=containers(300), ephemeralContainers=added))
    assert next(iter(desk.roster.pods.values())) is entry  # nothing has changed


def test_a_pod_within_the_bounds_stays_the_same_object() -> None:
    desk = Desk()
    pod = make_pod()
    desk.send(pod)
    assert next(iter(desk.roster.pods.values())).pod is pod
    changed = replace(pod, metadata=replace(pod.metadata, labels={"a": "b"}))
    desk.send(changed)
    assert next(iter(desk.roster.pods.values())).pod is changed
