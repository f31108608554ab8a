"""Validates scheduling fields: tolerations, affinity, topology spread, readiness and scheduling gates. Pure.

A pod from a manifest is not scheduled, but its scheduling fields must still be valid.
"""

from __future__ import annotations

from collections import Counter

from pykubelet.base.api import labels as names
from pykubelet.base.api.core import (
    Affinity,
    EvictionResponder,
    LabelSelector,
    NodeSelector,
    NodeSelectorTerm,
    PodAffinity,
    PodAffinityTerm,
    PodAntiAffinity,
    PodSpec,
    Toleration,
    TopologySpreadConstraint,
)
from pykubelet.base.kit.text import parse_integer
from pykubelet.base.manifests.validation.errors import (
    Errors,
    duplicate,
    forbidden,
    invalid,
    invalids,
    not_supported,
    required,
    too_many,
    validate_labels,
)

TAINT_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


_GATED = "needs the feature gate TaintTolerationComparisonOperators"
_DECIMAL = "must be a valid decimal integer in canonical form"


def validate_tolerations(tolerations: tuple[Toleration, ...], path: str, *, comparisons: bool = False) -> Errors:
    """spec.tolerations. `comparisons`: the operators Lt and Gt are allowed."""
    errors: Errors = []
    for i, toleration in enumerate(tolerations):
        at = f"{path}[{i}]"
        if toleration.key:
            errors += invalids(f"{at}.key", toleration.key, names.qualified_name_errors(toleration.key))
        elif toleration.operator != "Exists":
            detail = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
            errors.append(invalid(f"{at}.operator", toleration.operator, detail))
        if toleration.tolerationSeconds is not None and toleration.effect != "NoExecute":
            detail = "effect must be 'NoExecute' when `tolerationSeconds` is set"
            errors.append(invalid(f"{at}.effect", toleration.effect, detail))
        match toleration.operator:
            case "Equal" | "":
                if reasons := names.label_value_errors(toleration.value):
                    errors.append(invalid(f"{at}.operator", toleration.value, ";".join(reasons)))
            case "Exists":
                if toleration.value:
                    detail = "value must be empty when `operator` is 'Exists'"
                    errors.append(invalid(f"{at}.operator", toleration.value, detail))
            case "Lt" | "Gt" if comparisons:
                if parse_integer(toleration.value) is None:
                    errors.append(invalid(f"{at}.value", toleration.value, _DECIMAL))
            case "Lt" | "Gt" as other:
                errors.append(invalid(f"{at}.operator", other, _GATED))
            case other:
                errors.append(not_supported(f"{at}.operator", other, ("Equal", "Exists")))
        if toleration.effect and toleration.effect not in TAINT_EFFECTS:
            errors.append(not_supported(f"{at}.effect", toleration.effect, TAINT_EFFECTS))
    return errors


def _set_errors(operator: str, values: tuple[str, ...], path: str) -> Errors:
    """Operators on sets need values; operators on existence must have none."""
    if operator in ("In", "NotIn"):
        return [] if values else [required(path, "must be specified when `operator` is 'In' or 'NotIn'")]
    detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
    return [forbidden(path, detail)] if values else []


def validate_label_selector(selector: LabelSelector | None, path: str) -> Errors:
    """A label selector."""
    if selector is None:
        return []
    errors = validate_labels(selector.matchLabels, f"{path}.matchLabels")
    for i, requirement in enumerate(selector.matchExpressions):
        at = f"{path}.matchExpressions[{i}]"
        match requirement.operator:
            case "In" | "NotIn" | "Exists" | "DoesNotExist":
                errors += _set_errors(requirement.operator, requirement.values, f"{at}.values")
            case other:
                errors.append(invalid(f"{at}.operator", other, "not a valid selector operator"))
        errors += invalids(f"{at}.key", requirement.key, names.qualified_name_errors(requirement.key))
        for j, value in enumerate(requirement.values):
            errors += invalids(f"{at}.values[{j}]", value, names.label_value_errors(value))
    return errors


def _validate_node_term(term: NodeSelectorTerm, check_values: bool, path: str) -> Errors:
    errors: Errors = []
    for i, wanted in enumerate(term.matchExpressions):
        at = f"{path}.matchExpressions[{i}]"
        match wanted.operator:
            case "In" | "NotIn" | "Exists" | "DoesNotExist":
                errors += _set_errors(wanted.operator, wanted.values, f"{at}.values")
            case "Gt" | "Lt":
                if len(wanted.values) != 1:
                    detail = "must be specified single value when `operator` is 'Lt' or 'Gt'"
                    errors.append(required(f"{at}.values", detail))
            case other:
                errors.append(invalid(f"{at}.operator", other, "not a valid selector operator"))
        errors += invalids(f"{at}.key", wanted.key, names.qualified_name_errors(wanted.key))
        if check_values:
            for j, value in enumerate(wanted.values):
                errors += invalids(f"{at}.values[{j}]", value, names.label_value_errors(value))
    for i, wanted in enumerate(term.matchFields):
        at = f"{path}.matchFields[{i}]"
        if wanted.operator not in ("In", "NotIn"):
            errors.append(invalid(f"{at}.operator", wanted.operator, "not a valid selector operator"))
        elif len(wanted.values) != 1:
            detail = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
            errors.append(required(f"{at}.values", detail))
        if wanted.key != "metadata.name":
            errors.append(invalid(f"{at}.key", wanted.key, "not a valid field selector key"))
        else:
            for j, value in enumerate(wanted.values):
                errors += invalids(f"{at}.values[{j}]", value, names.dns_subdomain_errors(value))
    return errors


def validate_node_selector(selector: NodeSelector, path: str) -> Errors:
    """The required node affinity of a pod or a persistent volume."""
    if not selector.nodeSelectorTerms:
        return [required(f"{path}.nodeSelectorTerms", "must have at least one node selector term")]
    errors: Errors = []
    for i, term in enumerate(selector.nodeSelectorTerms):
        errors += _validate_node_term(term, True, f"{path}.nodeSelectorTerms[{i}]")
    return errors


def _validate_label_keys(term: PodAffinityTerm, path: str) -> Errors:
    errors: Errors = []
    for field in ("matchLabelKeys", "mismatchLabelKeys"):
        keys: tuple[str, ...] = getattr(term, field)
        if keys and term.labelSelector is None:
            errors.append(forbidden(f"{path}.{field}", "must not be specified when labelSelector is not set"))
        elif keys:
            for i, key in enumerate(keys):
                errors += invalids(f"{path}.{field}[{i}]", key, names.qualified_name_errors(key))
    for i, key in enumerate(term.matchLabelKeys):
        if key in term.mismatchLabelKeys:
            detail = "exists in both matchLabelKeys and mismatchLabelKeys"
            errors.append(invalid(f"{path}.matchLabelKeys[{i}]", key, detail))
    return errors


def _validate_pod_term(term: PodAffinityTerm, path: str) -> Errors:
    errors = validate_label_selector(term.labelSelector, f"{path}.labelSelector")
    errors += validate_label_selector(term.namespaceSelector, f"{path}.namespaceSelector")
    for namespace in term.namespaces:
        errors += invalids(f"{path}.namespace", namespace, names.dns_label_errors(namespace))
    errors += _validate_label_keys(term, path)
    if not term.topologyKey:
        errors.append(required(f"{path}.topologyKey", "can not be empty"))
    return errors + invalids(f"{path}.topologyKey", term.topologyKey, names.qualified_name_errors(term.topologyKey))


def _validate_pod_affinity(affinity: PodAffinity | PodAntiAffinity, path: str) -> Errors:
    errors: Errors = []
    at = f"{path}.requiredDuringSchedulingIgnoredDuringExecution"
    for i, term in enumerate(affinity.requiredDuringSchedulingIgnoredDuringExecution):
        errors += _validate_pod_term(term, f"{at}[{i}]")
    at = f"{path}.preferredDuringSchedulingIgnoredDuringExecution"
    for i, weighted in enumerate(affinity.preferredDuringSchedulingIgnoredDuringExecution):
        errors += _weight_errors(weighted.weight, f"{at}[{i}].weight")
        errors += _validate_pod_term(weighted.podAffinityTerm, f"{at}[{i}].podAffinityTerm")
    return errors


def _weight_errors(weight: int, path: str) -> Errors:
    return [] if 0 < weight <= 100 else [invalid(path, weight, "must be in the range 1-100")]


def validate_affinity(affinity: Affinity, path: str) -> Errors:
    """spec.affinity."""
    errors: Errors = []
    if affinity.nodeAffinity is not None:
        at = f"{path}.nodeAffinity"
        wanted = affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution
        if wanted is not None:
            errors += validate_node_selector(wanted, f"{at}.requiredDuringSchedulingIgnoredDuringExecution")
        at += ".preferredDuringSchedulingIgnoredDuringExecution"
        for i, preferred in enumerate(affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution):
            errors += _weight_errors(preferred.weight, f"{at}[{i}].weight")
            errors += _validate_node_term(preferred.preference, False, f"{at}[{i}].preference")
    if affinity.podAffinity is not None:
        errors += _validate_pod_affinity(affinity.podAffinity, f"{path}.podAffinity")
    if affinity.podAntiAffinity is not None:
        errors += _validate_pod_affinity(affinity.podAntiAffinity, f"{path}.podAntiAffinity")
    return errors


def validate_topology_spread(constraints: tuple[TopologySpreadConstraint, ...], path: str) -> Errors:
    """spec.topologySpreadConstraints."""
    errors: Errors = []
    left = Counter((c.topologyKey, c.whenUnsatisfiable) for c in constraints)
    for i, constraint in enumerate(constraints):
        at = f"{path}[{i}]"
        when = constraint.whenUnsatisfiable
        if constraint.maxSkew <= 0:
            errors.append(invalid(f"{at}.maxSkew", constraint.maxSkew, "must be greater than zero"))
        if not constraint.topologyKey:
            errors.append(required(f"{at}.topologyKey", "can not be empty"))
        if when not in ("DoNotSchedule", "ScheduleAnyway"):
            errors.append(not_supported(f"{at}.whenUnsatisfiable", when, ("DoNotSchedule", "ScheduleAnyway")))
        left[constraint.topologyKey, when] -= 1
        if left[constraint.topologyKey, when]:  # the last one of a pair is no duplicate
            pair = f"{{{constraint.topologyKey}, {when}}}"
            errors.append(duplicate(f"{at}.{{topologyKey, whenUnsatisfiable}}", pair))
        if constraint.minDomains is not None:
            if constraint.minDomains <= 0:
                errors.append(invalid(f"{at}.minDomains", constraint.minDomains, "must be greater than zero"))
            if when != "DoNotSchedule":
                detail = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {when}"
                errors.append(invalid(f"{at}.minDomains", constraint.minDomains, detail))
        for field in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
            chosen = getattr(constraint, field)
            if chosen and chosen not in ("Honor", "Ignore"):
                errors.append(not_supported(f"{at}.{field}", chosen, ("Honor", "Ignore")))
        errors += _validate_spread_keys(constraint, f"{at}.matchLabelKeys")
        errors += validate_label_selector(constraint.labelSelector, f"{at}.labelSelector")
    return errors


def _validate_spread_keys(constraint: TopologySpreadConstraint, path: str) -> Errors:
    if not constraint.matchLabelKeys:
        return []
    errors: Errors = []
    selector = constraint.labelSelector
    taken: set[str] = set()
    if selector is None:
        errors.append(forbidden(path, "must not be specified when labelSelector is not set"))
    else:
        taken = set(selector.matchLabels) | {requirement.key for requirement in selector.matchExpressions}
    for i, key in enumerate(constraint.matchLabelKeys):
        errors += invalids(f"{path}[{i}]", key, names.qualified_name_errors(key))
        if key in taken:
            errors.append(invalid(f"{path}[{i}]", key, "exists in both matchLabelKeys and labelSelector"))
    return errors


#: How many responders a pod may have, and the highest of their priorities (KEP-4563).
MAX_RESPONDERS = 10
MAX_RESPONDER_PRIORITY = 100_000


def validate_responders(responders: tuple[EvictionResponder, ...], path: str) -> Errors:
    """spec.evictionResponders."""
    errors: Errors = []
    if len(responders) > MAX_RESPONDERS:
        return [too_many(path, len(responders), MAX_RESPONDERS)]
    seen: set[str] = set()
    for i, responder in enumerate(responders):
        at = f"{path}[{i}]"
        errors += invalids(f"{at}.name", responder.name, names.qualified_name_errors(responder.name))
        if responder.name in seen:
            errors.append(duplicate(at, responder.name))
        seen.add(responder.name)
        if not 0 <= responder.priority <= MAX_RESPONDER_PRIORITY:
            detail = names.range_error(0, MAX_RESPONDER_PRIORITY)
            errors.append(invalid(f"{at}.priority", responder.priority, detail))
    return errors


def validate_gates(spec: PodSpec, path: str) -> Errors:
    """spec.readinessGates and spec.schedulingGates."""
    errors: Errors = []
    for i, gate in enumerate(spec.readinessGates):
        at = f"{path}.readinessGates[{i}].conditionType"
        errors += invalids(at, gate.conditionType, names.qualified_name_errors(gate.conditionType))
    seen: set[str] = set()
    for i, hold in enumerate(spec.schedulingGates):
        at = f"{path}.schedulingGates[{i}]"
        errors += invalids(at, hold.name, names.qualified_name_errors(hold.name))
        if hold.name in seen:
            errors.append(duplicate(at, hold.name))
        seen.add(hold.name)
    if spec.nodeName and spec.schedulingGates:
        errors.append(forbidden(f"{path}.nodeName", "cannot be set until all schedulingGates have been cleared"))
    return errors
