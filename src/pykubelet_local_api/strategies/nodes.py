"""Nodes: taints of new nodes, amounts, and what stays as it was set. Pure.

Source: the API reference of Node; the Kubernetes documentation "Taints and Tolerations" (Taint Nodes by Condition).
"""

from __future__ import annotations

from pykubelet.base.api import labels as names
from pykubelet.base.api.quantity import QuantityError, is_extended, parse
from pykubelet.base.kit.values import replace
from pykubelet.base.manifests.validation.errors import (
    Errors,
    duplicate,
    forbidden,
    invalid,
    invalids,
    not_supported,
)
from pykubelet_local_api.objects import Json
from pykubelet_local_api.strategies.common import ObjectStrategy, canonical_amounts
from pykubelet_local_api.strategies.node_restriction import restrict_node
from pykubelet_local_api.strategies.strategy import Context

NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_INFO = (
    *("machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion", "kubeletVersion"),
    *("kubeProxyVersion", "operatingSystem", "architecture"),
)
_CHANGEABLE = frozenset({"taints", "unschedulable", "configSource", "podCIDR", "podCIDRs", "providerID"})


class NodeStrategy(ObjectStrategy):
    """The strategy of nodes."""

    def first_status(self, new: Json, context: Context) -> Json | None:
        # an agent sends its first status with its node
        return new.get("status") or {}

    def default(self, new: Json, old: Json | None, context: Context) -> None:
        spec = new["spec"] = new.get("spec") or {}
        if spec.get("podCIDR") and not spec.get("podCIDRs"):
            spec["podCIDRs"] = [spec["podCIDR"]]
        elif spec.get("podCIDRs") and not spec.get("podCIDR"):
            spec["podCIDR"] = spec["podCIDRs"][0]
        if spec.get("unschedulable") is False:
            del spec["unschedulable"]
        if old is None:
            _default_status(new["status"])

    def admit(self, new: Json, old: Json | None, context: Context) -> None:
        restrict_node(self.kind, new, old, context)
        if old is None:
            taints = new["spec"].get("taints") or []
            key = (NOT_READY["key"], NOT_READY["effect"])
            if all((taint.get("key"), taint.get("effect")) != key for taint in taints):
                new["spec"]["taints"] = [*taints, dict(NOT_READY)]

    def prepare_subresource(self, new: Json, old: Json, context: Context) -> None:
        super().prepare_subresource(new, old, context)
        restrict_node(self.kind, new, old, context)
        _default_status(new.setdefault("status", {}))

    def validate(self, new: Json, context: Context) -> Errors:
        return taint_errors(new["spec"].get("taints") or [], "metadata.taints") + _status_errors(new["status"])

    def validate_change(self, new: Json, old: Json, context: Context) -> Errors:
        errors = taint_errors(new["spec"].get("taints") or [], "metadata.taints")
        spec, before = new["spec"], old.get("spec") or {}
        if before.get("podCIDRs") and spec.get("podCIDRs") != before["podCIDRs"]:
            detail = 'node updates may not change podCIDR except from "" to valid'
            errors.append(forbidden("spec.podCIDRs", detail))
        if before.get("providerID") and spec.get("providerID") != before["providerID"]:
            detail = 'node updates may not change providerID except from "" to valid'
            errors.append(forbidden("spec.providerID", detail))
        for field in sorted((spec.keys() | before.keys()) - _CHANGEABLE):
            if spec.get(field) != before.get(field):
                errors.append(forbidden(f"spec.{field}", "may not be updated"))
        return errors

    def validate_subresource(self, new: Json, old: Json, context: Context) -> Errors:
        return _status_errors(new["status"])


def _default_status(status: Json) -> None:
    canonical_amounts(status, "capacity", "allocatable")
    if status.get("capacity") and not status.get("allocatable"):
        status["allocatable"] = dict(status["capacity"])
    status.setdefault("daemonEndpoints", {"kubeletEndpoint": {"Port": 0}})
    status.setdefault("nodeInfo", dict.fromkeys(_INFO, ""))


def _status_errors(status: Json) -> Errors:
    errors: Errors = []
    for field in ("capacity", "allocatable"):
        for name, text in sorted((status.get(field) or {}).items()):
            path = f"status.{field}.{name}"
            try:
                amount = parse(text)
            except QuantityError as error:
                errors.append(invalid(path, text, str(error)))
                continue
            if amount.nano < 0:
                errors.append(invalid(path, str(amount), "must be greater than or equal to 0"))
            if is_extended(name) and amount.milli_value() % 1000:
                errors.append(invalid(path, str(amount), "must be an integer"))
    seen: set[tuple[object, object]] = set()
    for i, address in enumerate(status.get("addresses") or ()):
        pair = (address.get("type"), address.get("address"))
        if pair in seen:
            errors.append(duplicate(f"status.addresses[{i}]", {"Type": pair[0], "Address": pair[1]}))
        seen.add(pair)
    return errors


def taint_errors(taints: list[Json], path: str) -> Errors:
    """The wrong fields of taints."""
    errors: Errors = []
    seen: set[tuple[object, object]] = set()
    for i, taint in enumerate(taints):
        key, text, effect = (str(taint.get(field) or "") for field in ("key", "value", "effect"))
        errors += invalids(f"{path}[{i}].key", key, names.qualified_name_errors(key))
        errors += invalids(f"{path}[{i}].value", text, names.label_value_errors(text))
        if effect not in EFFECTS:
            errors.append(not_supported(f"{path}[{i}].effect", effect, EFFECTS))
        elif (key, effect) in seen:
            shown = {"Key": key, "Value": text, "Effect": effect, "TimeAdded": taint.get("timeAdded")}
            error = duplicate(f"{path}[{i}]", shown)
            errors.append(replace(error, detail="taints must be unique by key and effect pair"))
        seen.add((key, effect))
    return errors
