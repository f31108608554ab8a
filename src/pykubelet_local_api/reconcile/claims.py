"""Binds PersistentVolumeClaims and PersistentVolumes to each other, and asks the provisioner of a class for volumes. Pure.

Rules:
- A claim gets the volume that it names (`volumeName`), one that is reserved for it, or the smallest that satisfies it. First the volume
  gets its reference to the claim, then the claim its `volumeName`: a step that was made is never undone by the next one.
- A claim for which there is no volume gets the annotations that name the provisioner of its class. With the binding mode
  WaitForFirstConsumer, it waits until a node is selected (`fit_volumes`).
- A volume without its claim is `Released`. Its provisioner deletes it if its policy is Delete; no other volume can be deleted here.
- A claim that has lost its volume is `Lost`.
Expansion and deletion of volumes are the work of their drivers.
Source: the Kubernetes documentation "Persistent Volumes", "Dynamic Volume Provisioning"; KEP-3333 (default class later).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from pykubelet_local_api.objects import Json, is_deleting, name_of, namespace_of, timestamp, uid_of
from pykubelet_local_api.reconcile.changes import (
    annotated,
    annotation_of,
    event_about,
    reference_to,
    spec_of,
    status_of,
    status_updated,
    updated,
    with_status,
)
from pykubelet_local_api.reconcile.fit_volumes import (
    BIND_COMPLETED,
    BOUND_BY_CONTROLLER,
    CLAIMS,
    CLASSES,
    SELECTED_NODE,
    VOLUMES,
    is_bound,
    reserved,
)
from pykubelet_local_api.reconcile.matching import VolumeIndex, class_of, is_delayed, is_reserved_for, mismatch, mode_of
from pykubelet_local_api.reconcile.pods import claims_of, has_ended, node_of
from pykubelet_local_api.reconcile.reconciler import Reconciler
from pykubelet_local_api.view import ObjectChange, View

COMPONENT = "persistentvolume-controller"
PROVISIONERS = ("volume.beta.kubernetes.io/storage-provisioner", "volume.kubernetes.io/storage-provisioner")
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
IN_TREE = "kubernetes.io/"
RETAIN, RECYCLE, DELETE = "Retain", "Recycle", "Delete"
READS = frozenset({CLAIMS, CLASSES, VOLUMES, "pods"})


def reconcile(view: View) -> list[ObjectChange]:
    """The next step of each claim and each volume."""
    changes: list[ObjectChange] = []
    for volume in view.list(VOLUMES):
        changes += _volume(view, volume)
    unbound = [claim for claim in view.list(CLAIMS) if not is_bound(claim)]
    if unbound:
        changes += _unbound(view, unbound)
    for claim in view.list(CLAIMS):
        if BIND_COMPLETED in (claim["metadata"].get("annotations") or {}):
            changes += _bound(view, claim)
    return _first_of_each(changes)


def _first_of_each(changes: list[ObjectChange]) -> list[ObjectChange]:
    """One change of each object: a later step is decided from the object as the first step leaves it."""
    found: dict[tuple[str, str, str], ObjectChange] = {}
    for change in changes:
        found.setdefault((change.resource, namespace_of(change.object), name_of(change.object)), change)
    return list(found.values())


# Claims


def _unbound(view: View, unbound: list[Json]) -> list[ObjectChange]:
    volumes = VolumeIndex(view.list(VOLUMES))
    waiting: Mapping[tuple[str, str], list[str]] = _waiting_pods(view)
    taken: set[str] = set()
    changes: list[ObjectChange] = []
    for claim in sorted(unbound, key=_age):
        if is_deleting(claim):
            continue
        if spec_of(claim).get("volumeName"):
            changes += _named(view, claim, spec_of(claim)["volumeName"])
            continue
        is_late = is_delayed(view, claim)
        volume = volumes.find(claim, taken=taken, reserved_only=is_late)
        if volume is not None:
            taken.add(name_of(volume))
            changes += _join(view, volume, claim)
        else:
            names = waiting.get((namespace_of(claim), name_of(claim)), [])
            changes += _without_volume(view, claim, names, is_late)
    return changes


def _age(claim: Json) -> tuple[str, str, str]:
    return claim["metadata"].get("creationTimestamp") or "", namespace_of(claim), name_of(claim)


def _waiting_pods(view: View) -> Mapping[tuple[str, str], list[str]]:
    """The pods without a node that use a claim, by the claim."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for pod in view.list("pods"):
        if not node_of(pod) and not has_ended(pod):
            for claim, _ in claims_of(pod):
                found[namespace_of(pod), claim].append(name_of(pod))
    return found


def _named(view: View, claim: Json, name: str) -> list[ObjectChange]:
    """The claim names its volume."""
    volume = view.get(VOLUMES, "", name)
    if volume is None:
        return _phase(view, claim, "Pending")
    if not spec_of(volume).get("claimRef"):
        if why := mismatch(volume, claim):
            text = f'Cannot bind to requested volume "{name}": {why}'
            return [*_phase(view, claim, "Pending"), *_event(view, claim, "Warning", "VolumeMismatch", text)]
        return _join(view, volume, claim)
    if is_reserved_for(volume, claim):
        return _join(view, volume, claim)
    text = f'volume "{name}" already bound to a different claim.'
    return [*_phase(view, claim, "Pending"), *_event(view, claim, "Warning", "FailedBinding", text)]


def _without_volume(view: View, claim: Json, pods: list[str], is_late: bool) -> list[ObjectChange]:
    changes = _phase(view, claim, "Pending")
    if spec_of(claim).get("storageClassName") is None and not class_of(claim):
        name = default_class(view)
        if name:
            return [updated(CLAIMS, claim | {"spec": spec_of(claim) | {"storageClassName": name}})]
    if is_late and not annotation_of(claim, SELECTED_NODE):
        if not pods:
            reason, text = "WaitForFirstConsumer", "waiting for first consumer to be created before binding"
        else:
            many = "s" if len(pods) > 1 else ""
            reason, text = "WaitForPodScheduled", f"waiting for pod{many} {','.join(pods)} to be scheduled"
        return [*changes, *_event(view, claim, "Normal", reason, text)]
    name = class_of(claim)
    if not name:
        text = "no persistent volumes available for this claim and no storage class is set"
        return [*changes, *_event(view, claim, "Normal", "FailedBinding", text)]
    found = view.get(CLASSES, "", name)
    if found is None:
        text = f'storageclass.storage.k8s.io "{name}" not found'
        return [*changes, *_event(view, claim, "Warning", "ProvisioningFailed", text)]
    return [*changes, *_provisioning(view, claim, str(found.get("provisioner") or ""))]


def _provisioning(view: View, claim: Json, provisioner: str) -> list[ObjectChange]:
    if provisioner.startswith(IN_TREE):
        text = f"no volume plugin matched name: {provisioner}"
        return _event(view, claim, "Warning", "ProvisioningFailed", text)
    text = (
        f"Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the system administrator. "
        "If volume creation is delayed, please verify that the provisioner is running and correctly registered."
    )
    asked = annotated(claim, dict.fromkeys(PROVISIONERS, provisioner))
    changes = [] if asked is claim else [updated(CLAIMS, asked)]
    return [*changes, *_event(view, claim, "Normal", "ExternalProvisioning", text)]


def default_class(view: View) -> str:
    """The default StorageClass: the newest of those that are marked, then by name; "" if there is none."""
    marked = [found for found in view.list(CLASSES) if annotation_of(found, DEFAULT_CLASS) == "true"]
    marked.sort(key=name_of)
    marked.sort(key=lambda found: found["metadata"].get("creationTimestamp") or "", reverse=True)
    return name_of(marked[0]) if marked else ""


def _join(view: View, volume: Json, claim: Json) -> list[ObjectChange]:
    """The next step that binds the two."""
    reference = spec_of(volume).get("claimRef") or {}
    if reference.get("uid") != uid_of(claim):
        return [updated(VOLUMES, reserved(volume, claim))]
    marks = {BIND_COMPLETED: "yes"}
    if spec_of(claim).get("volumeName") != name_of(volume):
        marks[BOUND_BY_CONTROLLER] = "yes"
    joined = annotated(claim, marks)
    if spec_of(claim).get("volumeName") != name_of(volume):
        joined = joined | {"spec": spec_of(claim) | {"volumeName": name_of(volume)}}
    if joined is not claim:
        return [updated(CLAIMS, joined)]
    return _phase(view, claim, "Bound", volume)


def _bound(view: View, claim: Json) -> list[ObjectChange]:
    """The claim has been bound once."""
    name = spec_of(claim).get("volumeName")
    if not name:
        return _lost(
            view, claim, "ClaimLost", "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!"
        )
    volume = view.get(VOLUMES, "", name)
    if volume is None:
        return _lost(view, claim, "ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!")
    reference = spec_of(volume).get("claimRef")
    if not reference:
        return [updated(VOLUMES, reserved(volume, claim))]
    if reference.get("uid") and reference["uid"] != uid_of(claim):
        text = "Two claims are bound to the same volume, this one is bound incorrectly"
        return _lost(view, claim, "ClaimMisbound", text)
    return _join(view, volume, claim) if is_reserved_for(volume, claim) else []


def _lost(view: View, claim: Json, reason: str, text: str) -> list[ObjectChange]:
    changes = _phase(view, claim, "Lost")
    return [*changes, *_event(view, claim, "Warning", reason, text)] if changes else []


def _phase(view: View, claim: Json, phase: str, volume: Json | None = None) -> list[ObjectChange]:
    before = status_of(claim)
    if volume is None:
        if before.get("phase") == phase and "capacity" not in before and "accessModes" not in before:
            return []
        return [status_updated(CLAIMS, with_status(claim, phase=phase, accessModes=None, capacity=None))]
    fields: Json = {"phase": phase, "accessModes": spec_of(volume).get("accessModes")}
    if before.get("phase") != phase:  # later, whoever expands the volume reports the size
        fields["capacity"] = spec_of(volume).get("capacity")
    if name := spec_of(volume).get("volumeAttributesClassName"):
        fields["currentVolumeAttributesClassName"] = name
    if all(before.get(key) == value for key, value in fields.items()):
        return []
    return [status_updated(CLAIMS, with_status(claim, **fields))]


def _event(view: View, claim: Json, severity: str, reason: str, text: str) -> list[ObjectChange]:
    return event_about(view, reference_to(claim, "PersistentVolumeClaim"), severity, reason, text, COMPONENT)


# Volumes


def _volume(view: View, volume: Json) -> list[ObjectChange]:
    reference = spec_of(volume).get("claimRef")
    if not reference or not reference.get("uid"):
        return _volume_phase(view, volume, "Available")
    claim = view.get(CLAIMS, reference.get("namespace") or "", reference.get("name") or "")
    if claim is None or uid_of(claim) != reference["uid"]:
        return _released(view, volume)
    name = spec_of(claim).get("volumeName")
    if name == name_of(volume):
        return _volume_phase(view, volume, "Bound")
    if not name:
        return _mode_mismatch(view, volume, claim) if mode_of(volume) != mode_of(claim) else []
    if annotation_of(volume, PROVISIONED_BY) and _policy(volume) == DELETE:
        return _released(view, volume)
    return _unbind(volume)


def _policy(volume: Json) -> str:
    return str(spec_of(volume).get("persistentVolumeReclaimPolicy") or RETAIN)


def _unbind(volume: Json) -> list[ObjectChange]:
    """The claim has another volume. What a user has reserved stays reserved."""
    if annotation_of(volume, BOUND_BY_CONTROLLER):
        spec = {key: value for key, value in spec_of(volume).items() if key != "claimRef"}
        return [updated(VOLUMES, annotated(volume, {BOUND_BY_CONTROLLER: None}) | {"spec": spec})]
    kept = {key: value for key, value in spec_of(volume)["claimRef"].items() if key != "uid"}
    return [updated(VOLUMES, volume | {"spec": spec_of(volume) | {"claimRef": kept}})]


def _released(view: View, volume: Json) -> list[ObjectChange]:
    if status_of(volume).get("phase") == "Failed":
        return []
    changes = _volume_phase(view, volume, "Released")
    if changes or is_deleting(volume):
        return changes
    match _policy(volume):
        case "Delete" if not annotation_of(volume, PROVISIONED_BY):
            text = f'error getting deleter volume plugin for volume "{name_of(volume)}": no deletable volume plugin matched'
            return _failed(view, volume, "VolumeFailedDelete", text)
        case "Recycle":
            return _failed(view, volume, "VolumeFailedRecycle", "No recycler plugin found for the volume!")
        case "Delete" | "Retain":
            return []
    text = "Volume has unrecognized PersistentVolumeReclaimPolicy"
    return _failed(view, volume, "VolumeUnknownReclaimPolicy", text)


def _failed(view: View, volume: Json, reason: str, text: str) -> list[ObjectChange]:
    about = reference_to(volume, "PersistentVolume")
    return [*_volume_phase(view, volume, "Failed", text), *event_about(view, about, "Warning", reason, text, COMPONENT)]


def _volume_phase(view: View, volume: Json, phase: str, text: str = "") -> list[ObjectChange]:
    before = status_of(volume)
    if before.get("phase") == phase and (before.get("message") or "") == text:
        return []
    fields = {"phase": phase, "message": text or None, "lastPhaseTransitionTime": timestamp(view.now)}
    if before.get("phase") == phase:
        fields["lastPhaseTransitionTime"] = before.get("lastPhaseTransitionTime")
    return [status_updated(VOLUMES, with_status(volume, **fields))]


def _mode_mismatch(view: View, volume: Json, claim: Json) -> list[ObjectChange]:
    about = reference_to(volume, "PersistentVolume")
    why = "due to incompatible volumeMode."
    of_volume = f'Cannot bind PersistentVolume to requested PersistentVolumeClaim "{name_of(claim)}" {why}'
    of_claim = f'Cannot bind PersistentVolume "{name_of(volume)}" to requested PersistentVolumeClaim {why}'
    return [
        *event_about(view, about, "Warning", "VolumeMismatch", of_volume, COMPONENT),
        *_event(view, claim, "Warning", "VolumeMismatch", of_claim),
    ]


def concerns(view: View, resource: str, namespace: str, name: str) -> bool:
    """Claims, volumes and classes. Of pods: those that wait for a node and use claims, which Events of claims name."""
    if resource != "pods":
        return True
    pod = view.get("pods", namespace, name)
    return pod is not None and not node_of(pod) and any(True for _ in claims_of(pod))


VOLUME_CLAIMS = Reconciler("claims", READS, reconcile, concerns)
