"""Resource claims made from templates, their consumers, and their end. Pure.

Rules:
- A pod's claim from a template is made under a name that follows from the pod, belongs to the pod, and is named in the pod's status.
- Pods that have ended or are gone are no consumers. A claim without consumers loses its allocation.
- A claim that a pod with a node uses gets this pod as a consumer, if it is allocated.
- The claim from a template of a pod that has ended is deleted; a deleted claim keeps its finalizer while it is allocated.
Source: the Kubernetes documentation "Dynamic Resource Allocation"; KEP-4381.
"""

from __future__ import annotations

from collections.abc import Iterator

from pykubelet.base.kit.fnv import fnv1a_32
from pykubelet_local_api.objects import Json, is_deleting, name_of, namespace_of, owners_of, uid_of
from pykubelet_local_api.reconcile.changes import (
    created,
    deleted,
    event_about,
    finalizers_of,
    owned_by_pod,
    reference_to,
    spec_of,
    status_of,
    status_updated,
    updated,
    with_status,
    without_finalizer,
)
from pykubelet_local_api.reconcile.pods import has_ended, node_of
from pykubelet_local_api.reconcile.reconciler import Reconciler
from pykubelet_local_api.view import ObjectChange, View

CLAIMS, TEMPLATES = "resourceclaims.resource.k8s.io", "resourceclaimtemplates.resource.k8s.io"
FINALIZER = "resource.kubernetes.io/delete-protection"
POD_CLAIM = "resource.kubernetes.io/pod-claim-name"
COMPONENT = "resource_claim"
READS = frozenset({CLAIMS, TEMPLATES, "pods"})


def claim_names(pod: Json) -> Iterator[tuple[str, str | None]]:
    """The pod's references to resource claims: their name in the pod, and the claim's; None: it is not made yet."""
    statuses = {
        item.get("name"): item.get("resourceClaimName") for item in status_of(pod).get("resourceClaimStatuses") or ()
    }
    for reference in spec_of(pod).get("resourceClaims") or ():
        name = str(reference.get("name") or "")
        if reference.get("resourceClaimName"):
            yield name, reference["resourceClaimName"]
        elif name not in statuses:
            yield name, None
        elif statuses[name]:  # a status without a name: none is needed
            yield name, statuses[name]


def reconcile(view: View) -> list[ObjectChange]:
    """Claims that pods lack, and consumers that have changed."""
    changes: list[ObjectChange] = []
    consumers: dict[tuple[str, str], list[Json]] = {}
    for pod in view.list("pods"):
        if not spec_of(pod).get("resourceClaims") or has_ended(pod):
            continue
        if not is_deleting(pod):
            changes += _made(view, pod)
        if node_of(pod):
            for _, name in claim_names(pod):
                if name:
                    consumers.setdefault((namespace_of(pod), name), []).append(pod)
    for claim in view.list(CLAIMS):
        changes += _claim(view, claim, consumers.get((namespace_of(claim), name_of(claim)), []))
    return changes


def _made(view: View, pod: Json) -> list[ObjectChange]:
    changes: list[ObjectChange] = []
    statuses: list[Json] = list(status_of(pod).get("resourceClaimStatuses") or ())
    known = {item.get("name") for item in statuses}
    for reference in spec_of(pod)["resourceClaims"]:
        template_name, title = reference.get("resourceClaimTemplateName"), str(reference.get("name") or "")
        if not template_name or title in known:
            continue
        mark = fnv1a_32(f"{uid_of(pod)} {title}".encode())
        name = f"{name_of(pod)[:200]}-{title[:40]}-{mark:08x}"
        if view.get(CLAIMS, namespace_of(pod), name) is None:
            template = view.get(TEMPLATES, namespace_of(pod), template_name)
            if template is None:
                text = (
                    f'PodResourceClaim {title}: resource claim template "{template_name}": '
                    f'resourceclaimtemplate.resource.k8s.io "{template_name}" not found'
                )
                about = reference_to(pod, "Pod")
                changes += event_about(view, about, "Warning", "FailedResourceClaimCreation", text, COMPONENT)
                continue
            changes.append(created(CLAIMS, _from_template(pod, title, name, template)))
        else:
            statuses.append({"name": title, "resourceClaimName": name})
    if len(statuses) > len(known):
        changes.append(status_updated("pods", with_status(pod, resourceClaimStatuses=statuses)))
    return changes


def _from_template(pod: Json, title: str, name: str, template: Json) -> Json:
    spec = spec_of(template)
    given = spec.get("metadata") or {}
    metadata: Json = {
        "namespace": namespace_of(pod),
        "name": name,
        "annotations": (given.get("annotations") or {}) | {POD_CLAIM: title},
        "ownerReferences": [owned_by_pod(pod)],
    }
    if given.get("labels"):
        metadata["labels"] = given["labels"]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": metadata,
        "spec": spec.get("spec") or {},
    }


def _claim(view: View, claim: Json, using: list[Json]) -> list[ObjectChange]:
    status = status_of(claim)
    before: list[Json] = list(status.get("reservedFor") or ())
    kept = [item for item in before if _consumes(view, claim, item)]
    is_allocated = status.get("allocation") is not None
    if is_allocated and not is_deleting(claim):
        known = {item.get("uid") for item in kept}
        kept += [
            {"resource": "pods", "name": name_of(pod), "uid": uid_of(pod)} for pod in using if uid_of(pod) not in known
        ]
    if kept != before or (is_allocated and not kept and is_deleting(claim)):
        if kept:
            return [status_updated(CLAIMS, with_status(claim, reservedFor=kept))]
        return [status_updated(CLAIMS, with_status(claim, reservedFor=None, allocation=None, devices=None))]
    if is_deleting(claim):
        if FINALIZER in finalizers_of(claim) and not is_allocated:
            return [updated(CLAIMS, without_finalizer(claim, FINALIZER))]
        return []
    return [deleted(CLAIMS, claim)] if not kept and _is_unused(view, claim) else []


def _consumes(view: View, claim: Json, consumer: Json) -> bool:
    """Whether the consumer still uses the claim. Consumers that are no pods are left alone."""
    if consumer.get("resource") != "pods" or consumer.get("apiGroup"):
        return True
    pod = view.get("pods", namespace_of(claim), consumer.get("name", ""))
    if pod is None or uid_of(pod) != consumer.get("uid") or has_ended(pod):
        return False
    return not (is_deleting(pod) and not node_of(pod))


def _is_unused(view: View, claim: Json) -> bool:
    """Whether the claim was made for a pod that has ended. That of a pod that is gone is collected by its owner."""
    if POD_CLAIM not in (claim["metadata"].get("annotations") or {}):
        return False
    for owner in owners_of(claim):
        if owner.get("controller") and owner.get("kind") == "Pod":
            pod = view.get("pods", namespace_of(claim), owner.get("name", ""))
            return pod is not None and uid_of(pod) == owner.get("uid") and has_ended(pod)
    return False


def concerns(view: View, resource: str, namespace: str, name: str) -> bool:
    """Of pods: those that are gone, and those with resource claims."""
    if resource != "pods":
        return True
    pod = view.get("pods", namespace, name)
    return pod is None or bool(spec_of(pod).get("resourceClaims"))


RESOURCE_CLAIMS = Reconciler("resource-claims", READS, reconcile, concerns)
