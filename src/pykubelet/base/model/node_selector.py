"""Whether a node selector matches a node. Pure.

Used for the required node affinity of pods and of persistent volumes.
Source: the Kubernetes documentation "Assigning Pods to Nodes".
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.api.core import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from pykubelet.base.model.node import NodeView


def matches_node_selector(selector: NodeSelector, node: NodeView) -> bool:
    """Whether one of the terms matches. A term without conditions never does."""
    return any(_term_matches(term, node) for term in selector.nodeSelectorTerms)


def _term_matches(term: NodeSelectorTerm, node: NodeView) -> bool:
    if not term.matchExpressions and not term.matchFields:
        return False
    fields = {"metadata.name": node.name}
    return all(_holds(rule, node.labels) for rule in term.matchExpressions) and all(
        _holds(rule, fields) for rule in term.matchFields
    )


def _holds(rule: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    found = labels.get(rule.key)
    match rule.operator:
        case "In":
            return found is not None and found in rule.values
        case "NotIn":
            return found is None or found not in rule.values
        case "Exists":
            return found is not None
        case "DoesNotExist":
            return found is None
        case "Gt" | "Lt":
            return _compares(rule, found)
        case _:
            return False


def _compares(rule: NodeSelectorRequirement, found: str | None) -> bool:
    if found is None or len(rule.values) != 1:
        return False
    try:
        label, limit = int(found), int(rule.values[0])
    except ValueError:
        return False
    return label > limit if rule.operator == "Gt" else label < limit
