"""Whether the pods that run let another pod on a node: affinity between pods, and their spread over topology domains. Pure.

A node's topology domain is the value of its label of that key.
Source: the Kubernetes documentation "Assigning Pods to Nodes" and "Pod Topology Spread Constraints"; KEP-3633 (matchLabelKeys).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pykubelet.base.api.codec import DecodeError, from_object
from pykubelet.base.api.core import LabelSelector, Pod, PodAffinityTerm, TopologySpreadConstraint
from pykubelet.base.api.labels import matches_selector
from pykubelet.base.kit.values import Value
from pykubelet.base.model.node_selector import matches_node_selector
from pykubelet.base.model.tolerations import tolerates
from pykubelet_local_api.objects import Json, namespace_of
from pykubelet_local_api.reconcile.changes import spec_of
from pykubelet_local_api.reconcile.fit import NodeLoad, PodToPlace, Refusal
from pykubelet_local_api.reconcile.matching import node_view
from pykubelet_local_api.view import View

HARD = "DoNotSchedule"
#: Terms of a pod that another scheduler or its author has bound. Those of this scheduler's pods have a bound in bytes.
MAX_TERMS = 200
IGNORE, HONOR = "Ignore", "Honor"


class OwnedTerm(Value):
    """A term of a pod's affinity, with the pod that has it: its namespace and labels."""

    term: PodAffinityTerm
    namespace: str
    labels: Mapping[str, str]


def _labels(pod: Json) -> Mapping[str, str]:
    labels: Mapping[str, str] = pod["metadata"].get("labels") or {}
    return labels


def _owned(pod: Json, terms: Iterable[PodAffinityTerm]) -> list[OwnedTerm]:
    return [OwnedTerm(term, namespace_of(pod), _labels(pod)) for term in terms]


def anti_terms(pod: Json) -> list[OwnedTerm]:
    """The required terms of a pod's anti-affinity."""
    found = (spec_of(pod).get("affinity") or {}).get("podAntiAffinity") or {}
    listed = (found.get("requiredDuringSchedulingIgnoredDuringExecution") or ())[:MAX_TERMS]
    try:
        return _owned(pod, [from_object(PodAffinityTerm, term) for term in listed])
    except DecodeError:
        return []


def _selects(view: View, owned: OwnedTerm, pod: Json) -> bool:
    """Whether the term is about the pod."""
    term, labels = owned.term, _labels(pod)
    if not _has_namespace(view, owned, namespace_of(pod)) or not matches_selector(term.labelSelector, labels):
        return False
    if any(key in owned.labels and labels.get(key) != owned.labels[key] for key in term.matchLabelKeys):
        return False
    return not any(key in owned.labels and labels.get(key) == owned.labels[key] for key in term.mismatchLabelKeys)


def _has_namespace(view: View, owned: OwnedTerm, namespace: str) -> bool:
    term = owned.term
    if not term.namespaces and term.namespaceSelector is None:
        return namespace == owned.namespace
    if namespace in term.namespaces:
        return True
    found = view.get("namespaces", "", namespace)
    return matches_selector(term.namespaceSelector, _labels(found) if found is not None else {})


def _same_domain(key: str, load: NodeLoad, other: NodeLoad) -> bool:
    return key in load.labels and load.labels[key] == other.labels.get(key)


def refuse_by_affinity(view: View, wanted: PodToPlace, load: NodeLoad, loads: Sequence[NodeLoad]) -> Refusal | None:
    """The filter of affinity between pods. `loads`: all nodes."""
    affinity = wanted.pod.spec.affinity
    near = affinity.podAffinity if affinity is not None else None
    apart = affinity.podAntiAffinity if affinity is not None else None
    near_terms = _owned(wanted.object, near.requiredDuringSchedulingIgnoredDuringExecution if near is not None else ())
    apart_terms = _owned(
        wanted.object, apart.requiredDuringSchedulingIgnoredDuringExecution if apart is not None else ()
    )
    if near_terms and not _is_near(view, wanted.object, near_terms, load, loads):
        return Refusal(("node(s) didn't match pod affinity rules",), True)
    for owned in apart_terms:
        for other in loads:
            if _same_domain(owned.term.topologyKey, load, other) and any(
                _selects(view, owned, pod) for pod in other.pods.values()
            ):
                return Refusal(("node(s) didn't match pod anti-affinity rules",), False)
    for other in loads:
        for pod in other.pods.values():
            if "affinity" in spec_of(pod) and any(
                _same_domain(owned.term.topologyKey, load, other) and _selects(view, owned, wanted.object)
                for owned in anti_terms(pod)
            ):
                return Refusal(("node(s) didn't satisfy existing pods anti-affinity rules",), False)
    return None


def _is_near(view: View, pod: Json, terms: Sequence[OwnedTerm], load: NodeLoad, loads: Sequence[NodeLoad]) -> bool:
    """Whether each term has a pod in the domain. The first pod of a group that is near to itself may go anywhere."""
    if any(owned.term.topologyKey not in load.labels for owned in terms):
        return False

    def is_selected(other: Json) -> bool:
        return all(_selects(view, owned, other) for owned in terms)

    matching = [(other, item) for other in loads for item in other.pods.values() if is_selected(item)]
    if not matching:
        return is_selected(pod)
    return all(any(_same_domain(owned.term.topologyKey, load, other) for other, _ in matching) for owned in terms)


def refuse_by_spread(wanted: PodToPlace, load: NodeLoad, loads: Sequence[NodeLoad]) -> Refusal | None:
    """The filter of topology spread. `loads`: all nodes."""
    hard = [item for item in wanted.pod.spec.topologySpreadConstraints if item.whenUnsatisfiable in ("", HARD)]
    if any(item.topologyKey not in load.labels for item in hard):
        return Refusal(("node(s) didn't match pod topology spread constraints (missing required label)",), True)
    for constraint in hard:
        counted = [
            other
            for other in loads
            if all(item.topologyKey in other.labels for item in hard) and _is_counted(wanted.pod, constraint, other)
        ]
        counts: dict[str, int] = {}
        for other in counted:
            domain = other.labels[constraint.topologyKey]
            counts[domain] = counts.get(domain, 0) + sum(
                _is_spread(wanted.object, constraint, pod) for pod in other.pods.values()
            )
        least = min(counts.values(), default=0)
        if constraint.minDomains is not None and len(counts) < constraint.minDomains:
            least = 0
        own = int(_is_spread(wanted.object, constraint, wanted.object))
        if counts.get(load.labels[constraint.topologyKey], 0) + own - least > constraint.maxSkew:
            return Refusal(("node(s) didn't match pod topology spread constraints",), False)
    return None


def _is_spread(owner: Json, constraint: TopologySpreadConstraint, pod: Json) -> bool:
    if namespace_of(pod) != namespace_of(owner) or pod["metadata"].get("deletionTimestamp"):
        return False
    own, labels = _labels(owner), _labels(pod)
    selector: LabelSelector | None = constraint.labelSelector
    if any(key in own and labels.get(key) != own[key] for key in constraint.matchLabelKeys):
        return False
    return matches_selector(selector, labels)


def _is_counted(pod: Pod, constraint: TopologySpreadConstraint, load: NodeLoad) -> bool:
    if constraint.nodeAffinityPolicy != IGNORE:
        if any(load.labels.get(key) != value for key, value in pod.spec.nodeSelector.items()):
            return False
        affinity = pod.spec.affinity.nodeAffinity if pod.spec.affinity is not None else None
        required = affinity.requiredDuringSchedulingIgnoredDuringExecution if affinity is not None else None
        if required is not None and not matches_node_selector(required, node_view(load.node)):
            return False
    if constraint.nodeTaintsPolicy == HONOR:
        hard = [taint for taint in load.taints if taint.effect in ("NoSchedule", "NoExecute")]
        return all(any(tolerates(item, taint) for item in pod.spec.tolerations) for taint in hard)
    return True
