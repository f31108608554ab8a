"""Dynamic resource allocation: claims, templates, slices and device classes. Pure.

Expressions in CEL are stored, not compiled. Source: the Kubernetes documentation "Dynamic Resource Allocation"; KEP-4381.
"""

from __future__ import annotations

import re

from pykubelet.base.api import labels as names
from pykubelet.base.api.core import ObjectMeta
from pykubelet.base.api.quantity import is_extended
from pykubelet.base.manifests.validation.errors import (
    Errors,
    duplicate,
    forbidden,
    invalid,
    invalids,
    not_supported,
    required,
    too_many,
    validate_template_metadata,
)
from pykubelet_local_api.objects import Json
from pykubelet_local_api.strategies.common import ObjectStrategy, canonical_amounts, immutable_errors, struct_of
from pykubelet_local_api.strategies.node_restriction import restrict_slice
from pykubelet_local_api.strategies.strategy import Context

MODES = ("All", "ExactCount")
MAX_REQUESTS = 32
MAX_DEVICES = 128
MAX_RESERVED = 256
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_EXACTLY = "exactly one of `exactly` or `firstAvailable` is required"
_PLACES = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")


class ResourceClaimStrategy(ObjectStrategy):
    """The strategy of ResourceClaims."""

    resets_metadata = True

    def default(self, new: Json, old: Json | None, context: Context) -> None:
        new["spec"] = new.get("spec") or {}
        default_claim_spec(new["spec"])

    def validate(self, new: Json, context: Context) -> Errors:
        return claim_errors(new["spec"], "spec")

    def validate_change(self, new: Json, old: Json, context: Context) -> Errors:
        return (
            [] if new["spec"] == old.get("spec") else [invalid("spec", _shown_claim(new["spec"]), "field is immutable")]
        )

    def validate_subresource(self, new: Json, old: Json, context: Context) -> Errors:
        status, before = new.get("status") or {}, old.get("status") or {}
        errors: Errors = []
        allocation, was = status.get("allocation"), before.get("allocation")
        consumers = status.get("reservedFor") or []
        if len(consumers) > MAX_RESERVED:
            return [too_many("status.reservedFor", len(consumers), MAX_RESERVED)]
        uids = [consumer.get("uid") for consumer in consumers]
        for i, consumer in enumerate(consumers):
            for field in ("resource", "name", "uid"):
                if not consumer.get(field):
                    errors.append(required(f"status.reservedFor[{i}].{field}"))
            if uids[i] in uids[:i]:
                errors.append(duplicate(f"status.reservedFor[{i}]", uids[i]))
        if consumers and not allocation:
            errors.append(forbidden("status.reservedFor", "may not be specified when `allocated` is not set"))
        if allocation and was and allocation != was:
            errors.append(invalid("status.allocation", allocation, "field is immutable"))
        return errors + _device_status_errors(status, allocation or {})


def _device_status_errors(status: Json, allocation: Json) -> Errors:
    results = (allocation.get("devices") or {}).get("results") or []
    allocated = {
        (item.get("driver"), item.get("pool"), item.get("device"), item.get("shareID") or "") for item in results
    }
    errors: Errors = []
    for i, device in enumerate(status.get("devices") or ()):
        key = (device.get("driver"), device.get("pool"), device.get("device"), device.get("shareID") or "")
        if key not in allocated:
            shown = dict(zip(("Driver", "Pool", "Device", "ShareID"), key, strict=True))
            errors.append(invalid(f"status.devices[{i}]", shown, "must be an allocated device in the claim"))
    return errors


def default_claim_spec(spec: Json) -> None:
    """Set how devices are counted. `spec` is changed."""
    for request in (spec.get("devices") or {}).get("requests") or ():
        exactly = request.get("exactly")
        for wanted in ([exactly] if exactly is not None else []) + (request.get("firstAvailable") or []):
            wanted["allocationMode"] = wanted.get("allocationMode") or "ExactCount"
            if wanted["allocationMode"] == "ExactCount" and not wanted.get("count"):
                wanted["count"] = 1


def claim_errors(spec: Json, path: str) -> Errors:
    """The wrong fields of a claim's specification."""
    devices, path = spec.get("devices") or {}, f"{path}.devices"
    requests = devices.get("requests") or []
    if len(requests) > MAX_REQUESTS:
        return [too_many(f"{path}.requests", len(requests), MAX_REQUESTS)]
    errors: Errors = []
    for i, request in enumerate(requests):
        errors += _request_errors(request, f"{path}.requests[{i}]")
    given = [request.get("name") for request in requests]
    errors += [duplicate(f"{path}.requests[{i}]", name) for i, name in enumerate(given) if name in given[:i]]
    known = set(given) | {
        f"{request.get('name')}/{sub.get('name')}"
        for request in requests
        for sub in request.get("firstAvailable") or ()
    }
    for i, constraint in enumerate(devices.get("constraints") or ()):
        at = f"{path}.constraints[{i}]"
        errors += _reference_errors(constraint.get("requests") or [], known, f"{at}.requests")
        attribute = str(constraint.get("matchAttribute") or constraint.get("distinctAttribute") or "")
        if not attribute:
            errors.append(required(f"{at}.matchAttribute"))
        elif "/" not in attribute:
            detail = "a fully qualified name must be a domain and a name separated by a slash"
            errors.append(invalid(f"{at}.matchAttribute", attribute, detail))
    for i, config in enumerate(devices.get("config") or ()):
        at = f"{path}.config[{i}]"
        errors += _reference_errors(config.get("requests") or [], known, f"{at}.requests")
        errors += _opaque_errors(config, at)
    return errors


def _request_errors(request: Json, path: str) -> Errors:
    name = str(request.get("name") or "")
    errors = _label_errors(name, f"{path}.name")
    exactly, first = request.get("exactly"), request.get("firstAvailable") or []
    if exactly is None and not first:
        return [*errors, required(path, _EXACTLY)]
    if exactly is not None and first:
        return [*errors, invalid(path, None, f"{_EXACTLY}, but multiple fields are set")]
    if exactly is not None:
        return errors + _wanted_errors(exactly, f"{path}.exactly")
    for i, wanted in enumerate(first):
        at = f"{path}.firstAvailable[{i}]"
        errors += _label_errors(str(wanted.get("name") or ""), f"{at}.name") + _wanted_errors(wanted, at)
    return errors


def _wanted_errors(wanted: Json, path: str) -> Errors:
    name, mode, count = str(wanted.get("deviceClassName") or ""), wanted["allocationMode"], wanted.get("count") or 0
    at = f"{path}.deviceClassName"
    errors = invalids(at, name, names.dns_subdomain_errors(name)) if name else [required(at)]
    errors += _selector_errors(wanted.get("selectors") or [], f"{path}.selectors")
    if mode not in MODES:
        errors.append(not_supported(f"{path}.allocationMode", mode, MODES))
    elif mode == "All" and count:
        errors.append(invalid(f"{path}.count", count, "must not be specified when allocationMode is 'All'"))
    elif mode == "ExactCount" and count <= 0:
        errors.append(invalid(f"{path}.count", count, "must be greater than zero"))
    return errors


def _label_errors(name: str, path: str) -> Errors:
    return invalids(path, name, names.dns_label_errors(name)) if name else [required(path)]


def _selector_errors(selectors: list[Json], path: str) -> Errors:
    return [required(f"{path}[{i}].cel") for i, selector in enumerate(selectors) if not selector.get("cel")]


def _reference_errors(requests: list[str], known: set[object], path: str) -> Errors:
    detail = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
    return [invalid(f"{path}[{i}]", name, detail) for i, name in enumerate(requests) if name not in known]


def _opaque_errors(config: Json, path: str) -> Errors:
    opaque = config.get("opaque")
    if opaque is None:
        return [required(f"{path}.opaque")]
    driver = str(opaque.get("driver") or "")
    errors = _driver_errors(driver, f"{path}.opaque.driver")
    if opaque.get("parameters") is None:
        errors.append(required(f"{path}.opaque.parameters"))
    return errors


def _driver_errors(driver: str, path: str) -> Errors:
    return invalids(path, driver, names.dns_subdomain_errors(driver)) if driver else [required(path)]


def _shown_claim(spec: Json) -> Json:
    devices = spec.get("devices") or {}
    return {"Devices": {field.capitalize(): devices.get(field) for field in ("requests", "constraints", "config")}}


class ClaimTemplateStrategy(ObjectStrategy):
    """The strategy of ResourceClaimTemplates."""

    def default(self, new: Json, old: Json | None, context: Context) -> None:
        spec = new["spec"] = new.get("spec") or {}
        spec["metadata"] = spec.get("metadata") or {}
        spec["spec"] = spec.get("spec") or {}
        default_claim_spec(spec["spec"])

    def validate(self, new: Json, context: Context) -> Errors:
        meta = struct_of(ObjectMeta, new["spec"]["metadata"], self.kind)
        return validate_template_metadata(meta, "spec.metadata") + claim_errors(new["spec"]["spec"], "spec.spec")

    def validate_change(self, new: Json, old: Json, context: Context) -> Errors:
        if new["spec"] == old.get("spec"):
            return []
        return [invalid("spec", {"Spec": _shown_claim(new["spec"]["spec"])}, "field is immutable")]


class ResourceSliceStrategy(ObjectStrategy):
    """The strategy of ResourceSlices."""

    has_generation = True

    def default(self, new: Json, old: Json | None, context: Context) -> None:
        spec = new["spec"] = new.get("spec") or {}
        pool = spec["pool"] = spec.get("pool") or {}
        pool["generation"] = pool.get("generation") or 0
        if not spec.get("devices"):
            spec.pop("devices", None)
        for device in spec.get("devices") or ():
            for capacity in (device.get("capacity") or {}).values():
                canonical_amounts(capacity, "value")

    def admit(self, new: Json, old: Json | None, context: Context) -> None:
        if old is None:
            restrict_slice(self.kind, new, context)

    def prepare_delete(self, new: Json, context: Context) -> None:
        restrict_slice(self.kind, new, context, "delete")

    def validate(self, new: Json, context: Context) -> Errors:
        spec, pool = new["spec"], new["spec"]["pool"]
        errors = _driver_errors(str(spec.get("driver") or ""), "spec.driver")
        name = str(pool.get("name") or "")
        if not name:
            errors.append(required("spec.pool.name"))
        for part in name.split("/") if name else ():
            errors += invalids("spec.pool.name", part, names.dns_subdomain_errors(part))
        if (pool.get("resourceSliceCount") or 0) <= 0:
            count = pool.get("resourceSliceCount") or 0
            errors.append(invalid("spec.pool.resourceSliceCount", count, "must be greater than zero"))
        if pool["generation"] < 0:
            detail = "must be greater than or equal to zero"
            errors.append(invalid("spec.pool.generation", pool["generation"], detail))
        errors += _place_errors(spec)
        return errors + _device_errors(spec.get("devices") or [])

    def validate_change(self, new: Json, old: Json, context: Context) -> Errors:
        errors = self.validate(new, context)
        spec, before = new["spec"], old["spec"]
        errors += immutable_errors(spec.get("driver"), before.get("driver"), "spec.driver")
        errors += immutable_errors(spec["pool"].get("name"), before["pool"].get("name"), "spec.pool.name")
        return errors + immutable_errors(spec.get("nodeName"), before.get("nodeName"), "spec.nodeName")


def _place_errors(spec: Json) -> Errors:
    errors: Errors = []
    if node := str(spec.get("nodeName") or ""):
        errors += invalids("spec.nodeName", node, names.dns_subdomain_errors(node))
    given = [f"`{field}`" for field in _PLACES if spec.get(field)]
    detail = f"exactly one of {', '.join(f'`{field}`' for field in _PLACES)} is required"
    if not given:
        errors.append(required("spec", detail))
    elif len(given) > 1:
        errors.append(invalid("spec", f"{{{', '.join(given)}}}", f"{detail}, but multiple fields are set"))
    return errors


def _device_errors(devices: list[Json]) -> Errors:
    if len(devices) > MAX_DEVICES:
        return [too_many("spec.devices", len(devices), MAX_DEVICES)]
    errors: Errors = []
    seen: set[object] = set()
    for i, device in enumerate(devices):
        at = f"spec.devices[{i}]"
        errors += _label_errors(str(device.get("name") or ""), f"{at}.name")
        for field in ("attributes", "capacity"):
            for key, part in sorted((device.get(field) or {}).items()):
                errors += _identifier_errors(key, f"{at}.{field}")
                if field == "attributes" and len(part) != 1:
                    shown = part or ""
                    errors.append(invalid(f"{at}.attributes[{key}]", shown, "exactly one value must be specified"))
        if device.get("name") in seen:
            errors.append(duplicate(at, device.get("name")))
        seen.add(device.get("name"))
    return errors


def _identifier_errors(key: str, path: str) -> Errors:
    domain, _, name = key.rpartition("/")
    errors = invalids(path, domain, names.dns_subdomain_errors(domain)) if domain else []
    if not _IDENTIFIER.fullmatch(name):
        detail = (
            "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric "
            "characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is '[A-Za-z_][A-Za-z0-9_]*')"
        )
        errors.append(invalid(path, name, detail))
    return errors


class DeviceClassStrategy(ObjectStrategy):
    """The strategy of DeviceClasses."""

    has_generation = True

    def default(self, new: Json, old: Json | None, context: Context) -> None:
        new["spec"] = new.get("spec") or {}

    def validate(self, new: Json, context: Context) -> Errors:
        spec = new["spec"]
        errors = _selector_errors(spec.get("selectors") or [], "spec.selectors")
        for i, config in enumerate(spec.get("config") or ()):
            errors += _opaque_errors(config, f"spec.config[{i}]")
        name = spec.get("extendedResourceName")
        if name and not is_extended(str(name)):
            errors.append(invalid("spec.extendedResourceName", name, "must be a valid extended resource name"))
        return errors
