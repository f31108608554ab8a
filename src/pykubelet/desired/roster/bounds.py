"""How much of one kind a pod's spec may have. Pure.

An API server admits 1.5 MB of anything. What costs the agent more than a moment for each entry, at each event of the pod or for
each of its containers, has a bound far above what pods have. A pod beyond it is refused.
"""

from __future__ import annotations

from collections.abc import Callable

from pykubelet.base.api.core import Container, EphemeralContainer, Pod, ResourceRequirements
from pykubelet.base.kit.values import replace
from pykubelet.base.model.containers import every_container

#: Containers of all kinds. Each event of one costs a look at all.
MAX_CONTAINERS = 500
MAX_RESOURCES = 10_000


def _containers(pod: Pod) -> int:
    return len(pod.spec.containers) + len(pod.spec.initContainers)


def _of_containers(count: Callable[[Container | EphemeralContainer], int]) -> Callable[[Pod], int]:
    return lambda pod: sum(count(container) for container in every_container(pod))


def _resources(pod: Pod) -> int:
    every = (pod.spec.resources, *(container.resources for container in every_container(pod)))
    return len(pod.spec.overhead) + sum(_names(resources) for resources in every if resources is not None)


def _names(resources: ResourceRequirements) -> int:
    return len(resources.limits) + len(resources.requests) + len(resources.claims)


def _sources(pod: Pod) -> int:
    return sum(len(volume.projected.sources) for volume in pod.spec.volumes if volume.projected is not None)


def _claims(pod: Pod) -> int:
    return sum(volume.persistentVolumeClaim is not None or volume.ephemeral is not None for volume in pod.spec.volumes)


def _targets(pod: Pod) -> int:
    """Each is looked for on the node, and logged in to, when the volume is set up."""
    portals = sum(len(volume.iscsi.portals) for volume in pod.spec.volumes if volume.iscsi is not None)
    channels = (volume.fc for volume in pod.spec.volumes if volume.fc is not None)
    return portals + sum(len(fc.targetWWNs) + len(fc.wwids) for fc in channels)


def _affinity_terms(pod: Pod) -> int:
    """Each is compared with the node whenever the pod may be admitted."""
    affinity = pod.spec.affinity.nodeAffinity if pod.spec.affinity is not None else None
    required = affinity.requiredDuringSchedulingIgnoredDuringExecution if affinity is not None else None
    return len(required.nodeSelectorTerms) if required is not None else 0


#: What is counted in a pod, and how many of it a pod may have.
BOUNDS: dict[str, tuple[Callable[[Pod], int], int]] = {
    "containers and init containers": (_containers, MAX_CONTAINERS),
    "labels": (lambda pod: len(pod.metadata.labels), 1000),
    "names of resources and claims in all containers": (_resources, MAX_RESOURCES),
    "ports in all containers": (_of_containers(lambda container: len(container.ports)), 10_000),
    "mounts of volumes and devices in all containers": (
        _of_containers(lambda container: len(container.volumeMounts) + len(container.volumeDevices)),
        10_000,
    ),
    "mounts with a subPath": (
        _of_containers(lambda c: sum(bool(mount.subPath or mount.subPathExpr) for mount in c.volumeMounts)),
        2000,
    ),
    "volumes": (lambda pod: len(pod.spec.volumes), 4000),
    "volumes of PersistentVolumeClaims": (_claims, 1000),
    "imagePullSecrets": (lambda pod: len(pod.spec.imagePullSecrets), 1000),
    "sources of projected volumes": (_sources, 10_000),
    "portals of iSCSI and names of Fibre Channel volumes": (_targets, 1000),
    "terms of the required node affinity": (_affinity_terms, 10_000),
}


def excess_in(pod: Pod) -> str:
    """What the pod has too much of; "" if nothing."""
    for what, (count, most) in BOUNDS.items():
        if (number := count(pod)) > most:
            return f"the pod has {number} {what}, more than {most}"
    return ""


def has_countable_resources(pod: Pod) -> bool:
    """Whether the pod's resources are not too many to be summed up."""
    return _resources(pod) <= MAX_RESOURCES


def without_excess(pod: Pod) -> Pod:
    """The pod without ephemeral containers beyond `MAX_CONTAINERS`, which are not started; the same object if it has none."""
    spec = pod.spec
    left = max(0, MAX_CONTAINERS - _containers(pod))
    if len(spec.ephemeralContainers) <= left:
        return pod
    return replace(pod, spec=replace(spec, ephemeralContainers=spec.ephemeralContainers[:left]))
