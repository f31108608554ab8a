"""RuntimeClasses and PriorityClasses. Pure.

Source: the Kubernetes documentation "Runtime Class" and "Pod Priority and Preemption".
"""

from __future__ import annotations

from pykubelet.base.api import labels as names
from pykubelet.base.api.core import ResourceRequirements, Toleration
from pykubelet.base.manifests.validation.errors import (
    Errors,
    forbidden,
    invalids,
    not_supported,
    required,
    validate_labels,
)
from pykubelet.base.manifests.validation.resources import validate_requirements
from pykubelet.base.manifests.validation.scheduling import validate_tolerations
from pykubelet_local_api.errors import forbidden as refused
from pykubelet_local_api.objects import Json
from pykubelet_local_api.strategies.common import ObjectStrategy, canonical_amounts, immutable_errors, struct_of
from pykubelet_local_api.strategies.pod_admission import SYSTEM_PRIORITIES
from pykubelet_local_api.strategies.strategy import Context
from pykubelet_local_api.view import ObjectChange, Verb, View

MAX_PRIORITY = 1_000_000_000
SYSTEM_PREFIX = "system-"
PREEMPTION = ("PreemptLowerPriority", "Never")
_DESCRIPTIONS = {
    "system-cluster-critical": "Used for system critical pods that must run in the cluster, "
    "but can be moved to another node if necessary.",
    "system-node-critical": "Used for system critical pods that must not be moved from their current node.",
}


def system_priority_classes() -> list[Json]:
    """The classes that exist from the start."""
    return [
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": SYSTEM_PRIORITIES[name],
            "description": text,
        }
        for name, text in _DESCRIPTIONS.items()
    ]


def system_class_changes(view: View) -> list[ObjectChange]:
    """The creation of those classes that are not there yet."""
    resource = "priorityclasses.scheduling.k8s.io"
    return [
        ObjectChange(Verb.CREATE, resource, found)
        for found in system_priority_classes()
        if view.get(resource, "", found["metadata"]["name"]) is None
    ]


class PriorityClassStrategy(ObjectStrategy):
    """The strategy of PriorityClasses."""

    has_generation = True

    def is_new_generation(self, new: Json, old: Json) -> bool:
        """Never: they have one generation."""
        return False

    def default(self, new: Json, old: Json | None, context: Context) -> None:
        new["preemptionPolicy"] = new.get("preemptionPolicy") or PREEMPTION[0]
        new.setdefault("value", 0)
        if new.get("globalDefault") is False:
            del new["globalDefault"]

    def admit(self, new: Json, old: Json | None, context: Context) -> None:
        name = new["metadata"].get("name")
        if not new.get("globalDefault"):
            return
        for other in context.view.list(self.kind.resource):
            if other.get("globalDefault") and other["metadata"]["name"] != name:
                shown = other["metadata"]["name"]
                why = f"PriorityClass {shown} is already marked as default. Only one default can exist"
                raise refused(self.kind, str(name), why)

    def prepare_delete(self, new: Json, context: Context) -> None:
        name = str(new["metadata"]["name"])
        if name in SYSTEM_PRIORITIES:
            raise refused(self.kind, name, "this is a system priority class and cannot be deleted")

    def validate(self, new: Json, context: Context) -> Errors:
        name, value = str(new["metadata"].get("name") or ""), int(new["value"])
        errors: Errors = []
        if name.startswith(SYSTEM_PREFIX):
            wrong = _system_error(name, value)
            if wrong:
                detail = f"priority class names with '{SYSTEM_PREFIX}' prefix are reserved for system use only. error: {wrong}"
                errors.append(forbidden("metadata.name", detail))
        elif value > MAX_PRIORITY:
            errors.append(forbidden("value", f"maximum allowed value of a user defined priority is {MAX_PRIORITY}"))
        if new["preemptionPolicy"] not in PREEMPTION:
            errors.append(not_supported("preemptionPolicy", new["preemptionPolicy"], PREEMPTION))
        return errors

    def validate_change(self, new: Json, old: Json, context: Context) -> Errors:
        errors: Errors = []
        if new["value"] != old["value"]:
            errors.append(forbidden("value", "may not be changed in an update."))
        return errors + immutable_errors(new["preemptionPolicy"], old.get("preemptionPolicy"), "preemptionPolicy")


def _system_error(name: str, value: int) -> str:
    known = SYSTEM_PRIORITIES.get(name)
    if known is None:
        return f"{name} is not a known system priority class"
    return "" if value == known else f"value of {name} PriorityClass must be {known}"


class RuntimeClassStrategy(ObjectStrategy):
    """The strategy of RuntimeClasses."""

    allows_create_on_update = True

    def default(self, new: Json, old: Json | None, context: Context) -> None:
        canonical_amounts(new.get("overhead") or {}, "podFixed")

    def validate(self, new: Json, context: Context) -> Errors:
        handler = str(new.get("handler") or "")
        errors = invalids("handler", handler, names.dns_label_errors(handler)) if handler else [required("handler")]
        if fixed := (new.get("overhead") or {}).get("podFixed"):
            errors += validate_requirements(ResourceRequirements(limits=fixed), frozenset(), "overhead")
        scheduling = new.get("scheduling") or {}
        errors += validate_labels(scheduling.get("nodeSelector") or {}, "scheduling.nodeSelector")
        tolerations = tuple(struct_of(Toleration, item, self.kind) for item in scheduling.get("tolerations") or ())
        return errors + validate_tolerations(tolerations, "scheduling.tolerations")

    def validate_change(self, new: Json, old: Json, context: Context) -> Errors:
        return immutable_errors(new.get("handler"), old.get("handler"), "handler")
