"""Whether a pod's claims let it on a node, and which volumes they get there. Pure.

Rules:
- A claim with binding mode Immediate has to be bound before the pod is scheduled.
- A claim that waits for its first consumer gets the smallest volume that can be reached from the node; without one, the node is named in
  the annotation `volume.kubernetes.io/selected-node`, and the provisioner of its class makes a volume. The pod is bound afterwards.
Source: the Kubernetes documentation "Storage Classes", volume binding mode, and "Storage Capacity".
"""

from __future__ import annotations

from collections.abc import Iterator

from pykubelet.base.api.codec import from_object
from pykubelet.base.api.core import LabelSelector
from pykubelet.base.api.labels import matches_selector
from pykubelet.base.api.quantity import QuantityError, value
from pykubelet_local_api.objects import Json, is_deleting, name_of, namespace_of, owners_of, uid_of
from pykubelet_local_api.reconcile.changes import annotated, annotation_of, reference_to, spec_of, status_of, updated
from pykubelet_local_api.reconcile.fit import NodeLoad, PodToPlace, Refusal
from pykubelet_local_api.reconcile.matching import VolumeIndex, class_of, is_delayed, reaches, requested
from pykubelet_local_api.reconcile.pods import claims_of
from pykubelet_local_api.view import ObjectChange, View

SELECTED_NODE = "volume.kubernetes.io/selected-node"
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
NO_PROVISIONER = "kubernetes.io/no-provisioner"
CLAIMS, VOLUMES = "persistentvolumeclaims", "persistentvolumes"
CLASSES = "storageclasses.storage.k8s.io"
CAPACITIES = "csistoragecapacities.storage.k8s.io"
_NO_VOLUME = "node(s) didn't find available persistent volumes to bind"
_OUT_OF_REACH = "node(s) didn't match PersistentVolume's node affinity"
_NO_SPACE = "node(s) did not have enough free storage"
_LOST_VOLUME = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
_IN_USE = (
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
)
_ZONES = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")


def is_bound(claim: Json) -> bool:
    """Whether the claim has its volume for good."""
    has_mark = "annotations" in claim["metadata"] and BIND_COMPLETED in (claim["metadata"]["annotations"] or {})
    return bool(spec_of(claim).get("volumeName")) and has_mark


def refuse_anywhere(view: View, pod: Json) -> str:
    """Why the pod's claims keep it from every node; "" if they do not."""
    has_unbound = False
    for name, is_own in claims_of(pod):
        claim = view.get(CLAIMS, namespace_of(pod), name)
        if claim is None:
            return (
                f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{name}"'
                if is_own
                else f'persistentvolumeclaim "{name}" not found'
            )
        if status_of(claim).get("phase") == "Lost":
            volume = spec_of(claim).get("volumeName", "")
            return f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{volume}"'
        if is_deleting(claim):
            return f'persistentvolumeclaim "{name}" is being deleted'
        if is_own and not any(
            owner.get("controller") and owner.get("uid") == uid_of(pod) for owner in owners_of(claim)
        ):
            where = namespace_of(pod)
            return f"PVC {where}/{name} was not created for pod {where}/{name_of(pod)} (pod is not owner)"
        has_unbound = has_unbound or not (is_bound(claim) or _may_wait(view, claim))
    return "pod has unbound immediate PersistentVolumeClaims" if has_unbound else ""


def _may_wait(view: View, claim: Json) -> bool:
    return not spec_of(claim).get("volumeName") and is_delayed(view, claim)


def _claims(view: View, pod: Json) -> Iterator[Json]:
    for name, _ in claims_of(pod):
        claim = view.get(CLAIMS, namespace_of(pod), name)
        if claim is not None:
            yield claim


def refuse_shared(view: View, wanted: PodToPlace, loads: list[NodeLoad]) -> Refusal | None:
    """The filter of claims that one pod alone may use."""
    alone = [
        name_of(claim)
        for claim in _claims(view, wanted.object)
        if "ReadWriteOncePod" in (spec_of(claim).get("accessModes") or ())
    ]
    if not alone:
        return None
    namespace = namespace_of(wanted.object)
    for load in loads:
        for pod in load.pods.values():
            if namespace_of(pod) == namespace and any(name in alone for name, _ in claims_of(pod)):
                return Refusal((_IN_USE,), False)
    return None


def refuse_by_volumes(
    view: View, wanted: PodToPlace, load: NodeLoad, volumes: VolumeIndex, taken: set[str]
) -> Refusal | None:
    """The filters of volumes. `taken`: names of volumes that other claims get."""
    reasons: set[str] = set()
    chosen = set(taken)
    for claim in _claims(view, wanted.object):
        if is_bound(claim):
            volume = view.get(VOLUMES, "", spec_of(claim)["volumeName"])
            if volume is None:
                reasons.add(_LOST_VOLUME)
            elif not reaches(volume, load.node):
                reasons.add(_OUT_OF_REACH)
            elif not _is_in_zone(volume, load):
                return Refusal(("node(s) had no available volume zone",), True)
            continue
        selected = annotation_of(claim, SELECTED_NODE)
        volume = None if selected else volumes.find(claim, load.node, chosen)
        if volume is not None:
            chosen.add(name_of(volume))
        elif selected not in ("", load.name):
            reasons.add(_NO_VOLUME)
        elif reason := _refuse_provisioning(view, claim, load):
            reasons.add(reason)
    order = (_OUT_OF_REACH, _NO_VOLUME, _NO_SPACE, _LOST_VOLUME)
    return Refusal(tuple(reason for reason in order if reason in reasons), True) if reasons else None


def _is_in_zone(volume: Json, load: NodeLoad) -> bool:
    labels = volume["metadata"].get("labels") or {}
    return all(
        load.labels.get(key) in str(labels[key]).split("__") for key in _ZONES if key in labels and key in load.labels
    )


def _refuse_provisioning(view: View, claim: Json, load: NodeLoad) -> str:
    found = view.get(CLASSES, "", class_of(claim))
    if found is None or found.get("provisioner") in (None, "", NO_PROVISIONER):
        return _NO_VOLUME
    terms = found.get("allowedTopologies") or ()
    if terms and not any(_has_topology(term, load) for term in terms):
        return _NO_VOLUME
    driver = view.get("csidrivers.storage.k8s.io", "", found["provisioner"])
    if driver is not None and spec_of(driver).get("storageCapacity"):
        size, name = requested(claim), name_of(found)
        if not any(_has_space(item, name, size, load) for item in view.list(CAPACITIES)):
            return _NO_SPACE
    return ""


def _has_topology(term: Json, load: NodeLoad) -> bool:
    listed = term.get("matchLabelExpressions") or ()
    return all(load.labels.get(item.get("key", "")) in (item.get("values") or ()) for item in listed)


def _has_space(found: Json, name: str, size: int, load: NodeLoad) -> bool:
    topology = found.get("nodeTopology")
    if found.get("storageClassName") != name or topology is None:
        return False
    try:
        limit = value(found.get("maximumVolumeSize") or found.get("capacity"))
    except QuantityError:
        return False
    return limit >= size and matches_selector(from_object(LabelSelector, topology), load.labels)


def bindings(
    view: View, wanted: PodToPlace, load: NodeLoad, volumes: VolumeIndex, taken: set[str]
) -> list[ObjectChange] | None:
    """What the pod's claims need before it is bound to the node; None: nothing, an empty list: only time.

    Adds the volumes of the claims to `taken`.
    """
    changes: list[ObjectChange] = []
    waits = False
    for claim in _claims(view, wanted.object):
        if is_bound(claim):
            continue
        waits = True
        if annotation_of(claim, SELECTED_NODE):
            continue
        volume = volumes.find(claim, load.node, taken)
        if volume is None:
            changes.append(updated(CLAIMS, annotated(claim, {SELECTED_NODE: load.name})))
            continue
        taken.add(name_of(volume))
        if not (spec_of(volume).get("claimRef") or {}).get("uid"):
            changes.append(updated(VOLUMES, reserved(volume, claim)))
    return changes if waits else None


def reserved(volume: Json, claim: Json) -> Json:
    """The volume with a reference to the claim. What a user has written there stays the user's."""
    new = volume | {"spec": spec_of(volume) | {"claimRef": reference_to(claim, "PersistentVolumeClaim")}}
    return new if spec_of(volume).get("claimRef") else annotated(new, {BOUND_BY_CONTROLLER: "yes"})


def refuse_by_limits(view: View, wanted: PodToPlace, load: NodeLoad) -> Refusal | None:
    """The filter of the number of volumes that a CSI driver can attach to the node."""
    added = dict(_handles(view, wanted.object))
    if not added:
        return None
    found = view.get("csinodes.storage.k8s.io", "", load.name)
    limits = {
        item["name"]: int(item["allocatable"]["count"])
        for item in spec_of(found or {}).get("drivers") or ()
        if (item.get("allocatable") or {}).get("count") is not None
    }
    for driver in set(added.values()) & limits.keys():
        used = {handle for pod in load.pods.values() for handle, other in _handles(view, pod) if other == driver}
        new = {handle for handle, other in added.items() if other == driver} - used
        if new and len(used) + len(new) > limits[driver]:
            return Refusal(("node(s) exceed max volume count",), False)
    return None


def _handles(view: View, pod: Json) -> Iterator[tuple[str, str]]:
    """The CSI volumes of a pod: the handle, or the claim for one that is to be made, and the driver."""
    for claim in _claims(view, pod):
        volume = view.get(VOLUMES, "", spec_of(claim).get("volumeName") or "")
        if volume is not None and (source := spec_of(volume).get("csi")):
            yield source.get("volumeHandle", ""), source.get("driver", "")
        elif volume is None and (found := view.get(CLASSES, "", class_of(claim))) is not None:
            yield f"{namespace_of(claim)}/{name_of(claim)}", found.get("provisioner", "")
