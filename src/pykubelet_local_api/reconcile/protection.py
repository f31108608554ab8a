"""Protection of claims and volumes that are in use, and the claims of ephemeral volumes. Pure.

Rules:
- A claim that is deleted keeps its finalizer while a pod with a node uses it; a volume, while it is bound to a claim.
- Objects without the finalizer get it, unless they are being deleted.
- The claim of an ephemeral volume is made from the pod's template, and belongs to the pod, so that it goes with the pod.
Source: the Kubernetes documentation "Persistent Volumes" (storage object in use protection), "Ephemeral Volumes".
"""

from __future__ import annotations

from pykubelet_local_api.objects import Json, is_deleting, name_of, namespace_of, owners_of, uid_of
from pykubelet_local_api.reconcile.changes import (
    created,
    event_about,
    finalizers_of,
    owned_by_pod,
    reference_to,
    spec_of,
    status_of,
    updated,
    with_finalizer,
    without_finalizer,
)
from pykubelet_local_api.reconcile.fit_volumes import CLAIMS, VOLUMES
from pykubelet_local_api.reconcile.pods import claims_of, has_ended, node_of
from pykubelet_local_api.reconcile.reconciler import Reconciler
from pykubelet_local_api.view import ObjectChange, View

CLAIM_FINALIZER, VOLUME_FINALIZER = "kubernetes.io/pvc-protection", "kubernetes.io/pv-protection"
COMPONENT = "ephemeral_volume"
READS = frozenset({CLAIMS, VOLUMES, "pods"})


def reconcile(view: View) -> list[ObjectChange]:
    """The finalizers that are due, and the claims that pods lack."""
    changes: list[ObjectChange] = []
    used: set[tuple[str, str]] = set()
    for pod in view.list("pods"):
        if not spec_of(pod).get("volumes"):
            continue
        if node_of(pod):
            used.update(_used(pod))
        if not is_deleting(pod) and not has_ended(pod):
            changes += _own_claims(view, pod)
    for claim in view.list(CLAIMS):
        is_used = (namespace_of(claim), name_of(claim)) in used
        changes += _protect(CLAIMS, claim, CLAIM_FINALIZER, is_used=is_used)
    for volume in view.list(VOLUMES):
        is_bound = status_of(volume).get("phase") == "Bound"
        changes += _protect(VOLUMES, volume, VOLUME_FINALIZER, is_used=is_bound)
    return changes


def _used(pod: Json) -> set[tuple[str, str]]:
    is_over = is_deleting(pod) and pod["metadata"].get("deletionGracePeriodSeconds") == 0
    return {(namespace_of(pod), name) for name, is_own in claims_of(pod) if not (is_own and is_over)}


def _protect(resource: str, found: Json, finalizer: str, *, is_used: bool) -> list[ObjectChange]:
    has_it = finalizer in finalizers_of(found)
    if is_deleting(found):
        return [updated(resource, without_finalizer(found, finalizer))] if has_it and not is_used else []
    return [] if has_it else [updated(resource, with_finalizer(found, finalizer))]


def _own_claims(view: View, pod: Json) -> list[ObjectChange]:
    changes: list[ObjectChange] = []
    for volume in spec_of(pod)["volumes"]:
        template = (volume.get("ephemeral") or {}).get("volumeClaimTemplate")
        if template is None:
            continue
        name = f"{name_of(pod)}-{volume['name']}"
        found = view.get(CLAIMS, namespace_of(pod), name)
        if found is None:
            changes.append(created(CLAIMS, _claim(pod, name, template)))
        elif not any(owner.get("controller") and owner.get("uid") == uid_of(pod) for owner in owners_of(found)):
            where = namespace_of(pod)
            text = f"PVC {where}/{name} was not created for pod {where}/{name_of(pod)} (pod is not owner)"
            changes += event_about(view, reference_to(pod, "Pod"), "Warning", "FailedBinding", text, COMPONENT)
    return changes


def _claim(pod: Json, name: str, template: Json) -> Json:
    kept = {key: value for key, value in (template.get("metadata") or {}).items() if key in ("annotations", "labels")}
    metadata = kept | {"namespace": namespace_of(pod), "name": name, "ownerReferences": [owned_by_pod(pod)]}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec_of(template)}


def concerns(view: View, resource: str, namespace: str, name: str) -> bool:
    """Of pods: those that are gone, and those with claims."""
    if resource != "pods":
        return True
    pod = view.get("pods", namespace, name)
    return pod is None or any(True for _ in claims_of(pod))


PROTECTION = Reconciler("protection", READS, reconcile, concerns)
