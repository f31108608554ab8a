"""What drivers of storage register: StorageClasses, CSIDrivers, CSINodes, VolumeAttachments, CSIStorageCapacities. Pure.

Source: the API references of storage.k8s.io/v1; the Kubernetes documentation "Storage Classes" and "Storage Capacity".
"""

from __future__ import annotations

from pykubelet.base.api import labels as names
from pykubelet.base.api.core import LabelSelector
from pykubelet.base.api.quantity import QuantityError, parse
from pykubelet.base.api.storage import CSIDriver
from pykubelet.base.manifests.validation.errors import (
    Errors,
    duplicate,
    forbidden,
    invalid,
    invalids,
    not_supported,
    required,
)
from pykubelet.base.manifests.validation.scheduling import validate_label_selector
from pykubelet.base.manifests.validation.storage import DRIVER_NAME_BYTES, validate_driver
from pykubelet_local_api.errors import bad_request
from pykubelet_local_api.objects import Json
from pykubelet_local_api.strategies.common import ObjectStrategy, canonical_amounts, immutable_errors, struct_of
from pykubelet_local_api.strategies.node_restriction import restrict_csi_node
from pykubelet_local_api.strategies.strategy import Context

MAX_NODE_ID = 256
_RECLAIM = ("Delete", "Retain")
_BINDING = ("Immediate", "WaitForFirstConsumer")


class StorageClassStrategy(ObjectStrategy):
    """The strategy of StorageClasses."""

    allows_create_on_update = False

    def default(self, new: Json, old: Json | None, context: Context) -> None:
        new["reclaimPolicy"] = new.get("reclaimPolicy") or "Delete"
        new["volumeBindingMode"] = new.get("volumeBindingMode") or "Immediate"

    def validate(self, new: Json, context: Context) -> Errors:
        provisioner = str(new.get("provisioner") or "")
        lower = provisioner.lower()
        errors = (
            invalids("provisioner", lower, names.qualified_name_errors(lower)) if lower else [required("provisioner")]
        )
        if "" in (new.get("parameters") or {}):
            errors.append(invalid("parameters", "", "field can not be empty."))
        if new["reclaimPolicy"] not in _RECLAIM:
            errors.append(not_supported("reclaimPolicy", new["reclaimPolicy"], _RECLAIM))
        if new["volumeBindingMode"] not in _BINDING:
            errors.append(not_supported("volumeBindingMode", new["volumeBindingMode"], _BINDING))
        for i, term in enumerate(new.get("allowedTopologies") or ()):
            for j, requirement in enumerate(term.get("matchLabelExpressions") or ()):
                at, key = f"allowedTopologies[{i}].matchLabelExpressions[{j}]", str(requirement.get("key") or "")
                if not requirement.get("values"):
                    errors.append(required(f"{at}.values"))
                errors += invalids(f"{at}.key", key, names.qualified_name_errors(key))
        return errors

    def validate_change(self, new: Json, old: Json, context: Context) -> Errors:
        errors = self.validate(new, context)
        for field in ("parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"):
            errors += immutable_errors(new.get(field), old.get(field), field)
        return errors


class CsiDriverStrategy(ObjectStrategy):
    """The strategy of CSIDrivers. They have a generation from their first change on."""

    def default(self, new: Json, old: Json | None, context: Context) -> None:
        spec = new["spec"] = new.get("spec") or {}
        for field, usual in (
            ("attachRequired", True),
            ("podInfoOnMount", False),
            ("storageCapacity", False),
            ("fsGroupPolicy", "ReadWriteOnceWithFSType"),
            ("requiresRepublish", False),
            ("seLinuxMount", False),
        ):
            if spec.get(field) is None:
                spec[field] = usual
        if not spec.get("volumeLifecycleModes"):
            spec["volumeLifecycleModes"] = ["Persistent"]
        if old is not None and spec != old["spec"]:
            new["metadata"]["generation"] = int(old["metadata"].get("generation") or 0) + 1

    def validate(self, new: Json, context: Context) -> Errors:
        found = validate_driver(struct_of(CSIDriver, new, self.kind))
        return [error for error in found if not error.path.startswith("metadata.")]

    def validate_change(self, new: Json, old: Json, context: Context) -> Errors:
        spec, before = new["spec"], old["spec"]
        errors = self.validate(new, context)
        if spec["attachRequired"] != before.get("attachRequired"):
            errors.append(invalid("spec.attachedRequired", spec["attachRequired"], "field is immutable"))
        path = "spec.volumeLifecycleModes"
        return errors + immutable_errors(spec["volumeLifecycleModes"], before.get("volumeLifecycleModes"), path)


class CsiNodeStrategy(ObjectStrategy):
    """The strategy of CSINodes."""

    def default(self, new: Json, old: Json | None, context: Context) -> None:
        spec = new["spec"] = new.get("spec") or {}
        spec["drivers"] = spec.get("drivers") or None
        for driver in spec["drivers"] or ():
            driver["topologyKeys"] = driver.get("topologyKeys") or None

    def admit(self, new: Json, old: Json | None, context: Context) -> None:
        restrict_csi_node(self.kind, new, context)

    def prepare_delete(self, new: Json, context: Context) -> None:
        restrict_csi_node(self.kind, new, context)

    def validate(self, new: Json, context: Context) -> Errors:
        errors: Errors = []
        seen: set[str] = set()
        for i, driver in enumerate(new["spec"].get("drivers") or ()):
            at, name, node = f"spec.drivers[{i}]", str(driver.get("name") or ""), str(driver.get("nodeID") or "")
            errors += _driver_name_errors(name, f"{at}.name")
            if not node:
                errors.append(required(f"{at}.nodeID"))
            elif len(node) > MAX_NODE_ID:
                errors.append(invalid(f"{at}.nodeID", node, f"must be {MAX_NODE_ID} characters or less"))
            count = (driver.get("allocatable") or {}).get("count")
            if count is not None and count < 0:
                errors.append(invalid(f"{at}.allocatable.count", count, "must be greater than or equal to 0"))
            if name and name in seen:
                errors.append(duplicate(f"{at}.name", name))
            seen.add(name)
            keys = driver.get("topologyKeys") or []
            seen_keys: set[str] = set()
            for key in keys:
                if key in seen_keys:
                    errors.append(duplicate(at, key))
                seen_keys.add(key)
                errors += invalids(at, key, names.qualified_name_errors(str(key)))
        return errors

    def validate_change(self, new: Json, old: Json, context: Context) -> Errors:
        """A driver changes only the number of its volumes."""
        errors = self.validate(new, context)
        were = {driver.get("name"): driver for driver in (old.get("spec") or {}).get("drivers") or ()}
        for driver in new["spec"].get("drivers") or ():
            was = were.get(driver.get("name"))
            if was is not None and _without_count(driver) != _without_count(was):
                errors.append(invalid("spec.drivers", _shown_driver(driver), "field is immutable"))
        return errors


def _without_count(driver: Json) -> Json:
    return {field: part for field, part in driver.items() if field != "allocatable" and part}


def _shown_driver(driver: Json) -> Json:
    fields = {"Name": "name", "NodeID": "nodeID", "TopologyKeys": "topologyKeys", "Allocatable": "allocatable"}
    return {shown: driver.get(field) for shown, field in fields.items()}


def _driver_name_errors(name: str, path: str) -> Errors:
    if not name:
        return [required(path)]
    errors = invalids(path, name, names.dns_subdomain_errors(name.lower()))
    if len(name.encode()) > DRIVER_NAME_BYTES:
        errors.append(invalid(path, name, f"must be no more than {DRIVER_NAME_BYTES} bytes"))
    return errors


class AttachmentStrategy(ObjectStrategy):
    """The strategy of VolumeAttachments."""

    resets_metadata = True

    def first_status(self, new: Json, context: Context) -> Json | None:
        return {"attached": False}

    def prepare_subresource(self, new: Json, old: Json, context: Context) -> None:
        super().prepare_subresource(new, old, context)
        new.setdefault("status", {}).setdefault("attached", False)

    def validate(self, new: Json, context: Context) -> Errors:
        spec = new.get("spec") or {}
        attacher, node, source = (
            str(spec.get("attacher") or ""),
            str(spec.get("nodeName") or ""),
            spec.get("source") or {},
        )
        errors = (
            invalids("spec.attacher", attacher, names.dns_subdomain_errors(attacher))
            if attacher
            else [required("spec.attacher")]
        )
        which = [field for field in ("persistentVolumeName", "inlineVolumeSpec") if source.get(field) is not None]
        detail = "must specify exactly one of inlineVolumeSpec and persistentVolumeName"
        if not which:
            errors.append(required("spec.source", detail))
        elif len(which) > 1:
            errors.append(forbidden("spec.source", detail))
        return errors + invalids("spec.nodeName", node, names.dns_subdomain_errors(node))

    def validate_change(self, new: Json, old: Json, context: Context) -> Errors:
        spec = new.get("spec") or {}
        if spec == old.get("spec"):
            return []
        source = spec.get("source") or {}
        shown = {
            "Attacher": spec.get("attacher", ""),
            "Source": {
                "PersistentVolumeName": source.get("persistentVolumeName"),
                "InlineVolumeSpec": source.get("inlineVolumeSpec"),
            },
            "NodeName": spec.get("nodeName", ""),
        }
        return [invalid("spec", shown, "field is immutable")]


class CapacityStrategy(ObjectStrategy):
    """The strategy of CSIStorageCapacities."""

    def default(self, new: Json, old: Json | None, context: Context) -> None:
        for field in ("capacity", "maximumVolumeSize"):
            if new.get(field) is not None:
                try:
                    parse(new[field])
                except QuantityError as error:
                    shown = f'{self.kind.name} in version "v1" cannot be handled as a {self.kind.name}'
                    raise bad_request(f"{shown}: {error}") from None
        canonical_amounts(new, "capacity", "maximumVolumeSize")

    def validate(self, new: Json, context: Context) -> Errors:
        topology = new.get("nodeTopology")
        selector = struct_of(LabelSelector, topology, self.kind) if topology else None
        errors = validate_label_selector(selector, "nodeTopology")
        name = str(new.get("storageClassName") or "")
        errors += invalids("storageClassName", name, names.dns_subdomain_errors(name))
        for field in ("capacity", "maximumVolumeSize"):
            if new.get(field) is not None and parse(new[field]).nano < 0:
                errors.append(invalid(field, new[field], "must be greater than or equal to 0"))
        return errors

    def validate_change(self, new: Json, old: Json, context: Context) -> Errors:
        errors = self.validate(new, context)
        for field in ("storageClassName", "nodeTopology"):
            errors += immutable_errors(new.get(field), old.get(field), field)
        return errors
