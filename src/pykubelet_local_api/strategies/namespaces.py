"""Namespaces: their label, their finalizer, and the names that stay. Pure.

Source: the Kubernetes documentation "Namespaces"; KEP-2161 (the label with the name).
"""

from __future__ import annotations

from pykubelet.base.api import labels as names
from pykubelet.base.manifests.validation.errors import STANDARD_FINALIZERS, Errors, invalid, invalids
from pykubelet_local_api.errors import forbidden
from pykubelet_local_api.objects import Json
from pykubelet_local_api.strategies.common import ObjectStrategy, keep
from pykubelet_local_api.strategies.pod_security import label_errors
from pykubelet_local_api.strategies.strategy import Context

NAME_LABEL = "kubernetes.io/metadata.name"
FINALIZER = "kubernetes"
#: Namespaces that cannot be deleted.
PERMANENT = frozenset({"default", "kube-system", "kube-public"})


class NamespaceStrategy(ObjectStrategy):
    """The strategy of namespaces."""

    def name_errors(self, name: str) -> list[str]:
        """Why the name is not legal."""
        return names.dns_label_errors(name)

    def first_status(self, new: Json, context: Context) -> Json | None:
        return {"phase": "Active"}

    def default(self, new: Json, old: Json | None, context: Context) -> None:
        meta = new["metadata"]
        if meta.get("name"):
            meta["labels"] = (meta.get("labels") or {}) | {NAME_LABEL: meta["name"]}
        if old is not None:
            keep(new, old, "spec")
            return
        given = (new.get("spec") or {}).get("finalizers") or []
        new["spec"] = {"finalizers": given if FINALIZER in given else [*given, FINALIZER]}

    def prepare_subresource(self, new: Json, old: Json, context: Context) -> None:
        if context.subresource == "finalize":
            keep(new, old, "status")
            new.setdefault("spec", {})
            return
        super().prepare_subresource(new, old, context)

    def prepare_delete(self, new: Json, context: Context) -> None:
        name = str(new["metadata"]["name"])
        if name in PERMANENT:
            raise forbidden(self.kind, name, "this namespace may not be deleted")
        new["status"] = (new.get("status") or {}) | {"phase": "Terminating"}

    def validate(self, new: Json, context: Context) -> Errors:
        return finalizer_errors(new) + label_errors(new["metadata"].get("labels") or {})

    def validate_subresource(self, new: Json, old: Json, context: Context) -> Errors:
        if context.subresource == "finalize":
            return finalizer_errors(new)
        phase = (new.get("status") or {}).get("phase") or ""
        if old["metadata"].get("deletionTimestamp"):
            wanted, detail = "Terminating", "may only be 'Terminating' if `deletionTimestamp` is not empty"
        else:
            wanted, detail = "Active", "may only be 'Active' if `deletionTimestamp` is empty"
        return [] if phase == wanted else [invalid("status.Phase", phase, detail)]


def finalizer_errors(found: Json) -> Errors:
    """The finalizers of the specification, which are not those of the metadata."""
    errors: Errors = []
    for i, name in enumerate((found.get("spec") or {}).get("finalizers") or ()):
        errors += invalids(f"spec.finalizers[{i}]", name, names.qualified_name_errors(name))
        if "/" not in name and name not in STANDARD_FINALIZERS:
            detail = "name is neither a standard finalizer name nor is it fully qualified"
            errors.append(invalid(f"spec.finalizers[{i}]", name, detail))
    return errors
