"""Validates object metadata, and the annotations of pods that have their own rules. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from pykubelet.base.api import labels as names
from pykubelet.base.api.core import ObjectMeta, OwnerReference, PodSpec
from pykubelet.base.manifests.validation.errors import (
    Errors,
    forbidden,
    invalid,
    invalids,
    nonnegative,
    required,
    too_long,
)

ANNOTATIONS_LIMIT = 256 * 1024
STANDARD_FINALIZERS = frozenset({"kubernetes", "orphan", "foregroundDeletion"})
MIRROR = "kubernetes.io/config.mirror"
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_DELETION_COST = re.compile(r"0|-?[1-9]\d{0,9}", re.ASCII)


def validate_labels(labels: Mapping[str, str], path: str) -> Errors:
    """Keys and values of a label map."""
    errors: Errors = []
    for key, value in sorted(labels.items()):
        errors += invalids(path, key, names.qualified_name_errors(key))
        errors += invalids(path, value, names.label_value_errors(value))
    return errors


def validate_annotations(annotations: Mapping[str, str], path: str) -> Errors:
    """Keys (upper or lower case) and the total size."""
    errors: Errors = []
    size = 0
    for key, value in sorted(annotations.items()):
        errors += invalids(path, key, names.qualified_name_errors(key.lower()))
        size += len(key.encode()) + len(value.encode())
    if size > ANNOTATIONS_LIMIT:
        errors.append(too_long(path, ANNOTATIONS_LIMIT))
    return errors


def validate_metadata(
    meta: ObjectMeta,
    path: str,
    *,
    is_namespaced: bool = True,
    name_errors: Callable[[str], list[str]] = names.dns_subdomain_errors,
) -> Errors:
    """Metadata of an object. `name_errors`: the rule of its name, by default a DNS subdomain."""
    errors: Errors = []
    if meta.generateName:
        prefix = meta.generateName
        masked = prefix[:-1] + "a" if len(prefix) > 1 and prefix.endswith("-") else prefix
        errors += invalids(f"{path}.generateName", prefix, name_errors(masked))
    if not meta.name:
        errors.append(required(f"{path}.name", "name or generateName is required"))
    else:
        errors += invalids(f"{path}.name", meta.name, name_errors(meta.name))
    if not is_namespaced:
        if meta.namespace:
            errors.append(forbidden(f"{path}.namespace", "not allowed on this type"))
    elif not meta.namespace:
        errors.append(required(f"{path}.namespace"))
    else:
        errors += invalids(f"{path}.namespace", meta.namespace, names.dns_label_errors(meta.namespace))
    errors += nonnegative(f"{path}.generation", meta.generation)
    errors += validate_labels(meta.labels, f"{path}.labels")
    errors += validate_annotations(meta.annotations, f"{path}.annotations")
    errors += _validate_owners(meta.ownerReferences, f"{path}.ownerReferences")
    errors += _validate_finalizers(meta.finalizers, f"{path}.finalizers")
    return errors


def _validate_owners(owners: tuple[OwnerReference, ...], path: str) -> Errors:
    """The owners. As in the reference, the errors of all have the path of the list."""
    errors: Errors = []
    controller, is_reported = "", False
    for owner in owners:
        if not owner.apiVersion:
            errors.append(invalid(f"{path}.apiVersion", owner.apiVersion, "version must not be empty"))
        for field in ("kind", "name", "uid"):
            if not getattr(owner, field):
                errors.append(invalid(f"{path}.{field}", "", "must not be empty"))
        if owner.apiVersion == "v1" and owner.kind == "Event":
            errors.append(invalid(path, owner, "/v1, Kind=Event is disallowed from being an owner"))
        if owner.controller:
            shown = f"{owner.kind}/{owner.name}"
            if controller and not is_reported:
                is_reported = True  # once: each error lists all owners
                detail = (
                    "Only one reference can have Controller set to true. "
                    f'Found "true" in references for {controller} and {shown}'
                )
                errors.append(invalid(path, owners, detail))
            controller = shown
    return errors


def _validate_finalizers(finalizers: tuple[str, ...], path: str) -> Errors:
    errors: Errors = []
    for i, name in enumerate(finalizers):
        errors += invalids(path, name, names.qualified_name_errors(name))
        if "/" not in name and name not in STANDARD_FINALIZERS:
            detail = "name is neither a standard finalizer name nor is it fully qualified"
            errors.append(invalid(f"{path}[{i}]", name, detail))
    if {"orphan", "foregroundDeletion"} <= set(finalizers):
        detail = "finalizer orphan and foregroundDeletion cannot be both set"
        errors.append(invalid(path, finalizers, detail))
    return errors


def validate_pod_annotations(annotations: Mapping[str, str], spec: PodSpec, path: str) -> Errors:
    """Annotations of a pod that the node or controllers interpret."""
    errors: Errors = []
    if MIRROR in annotations and not spec.nodeName:
        detail = "must set spec.nodeName if mirror pod annotation is set"
        errors.append(invalid(f"{path}[{MIRROR}]", annotations[MIRROR], detail))
    if DELETION_COST in annotations:
        cost = annotations[DELETION_COST]
        if not _DELETION_COST.fullmatch(cost) or not -(1 << 31) <= int(cost) < 1 << 31:
            errors.append(invalid(f"{path}[{DELETION_COST}]", cost, "must be a 32bit integer"))
    return errors


def validate_template_metadata(meta: ObjectMeta, path: str) -> Errors:
    """Metadata of an embedded template: labels and annotations, nothing else."""
    errors = validate_annotations(meta.annotations, f"{path}.annotations")
    errors += validate_labels(meta.labels, f"{path}.labels")
    for field in meta.__struct_fields__:
        if field not in ("labels", "annotations") and getattr(meta, field) != getattr(_EMPTY, field):
            errors.append(forbidden(f"{path}.{field}", "cannot be set"))
    return errors


_EMPTY = ObjectMeta()
