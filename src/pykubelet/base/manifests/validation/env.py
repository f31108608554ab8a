"""Validates the environment of containers: names, sources, and references to pod fields and resources. Pure."""

from __future__ import annotations

from collections.abc import Set

from pykubelet.base.api import labels as names
from pykubelet.base.api.core import (
    ConfigMapKeySelector,
    EnvFromSource,
    EnvVar,
    FileKeySelector,
    ObjectFieldSelector,
    ResourceFieldSelector,
    SecretKeySelector,
)
from pykubelet.base.api.fieldpaths import split_subscript
from pykubelet.base.api.quantity import QuantityError, canonical, parse
from pykubelet.base.manifests.validation.errors import (
    Errors,
    invalid,
    invalids,
    local_path_errors,
    not_found,
    not_supported,
    required,
)

ENV_FIELDS = frozenset(
    {
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "spec.nodeName",
        "spec.serviceAccountName",
        "status.hostIP",
        "status.hostIPs",
        "status.podIP",
        "status.podIPs",
    }
)
VOLUME_FIELDS = frozenset(
    {"metadata.name", "metadata.namespace", "metadata.labels", "metadata.annotations", "metadata.uid"}
)
_KNOWN_FIELDS = ENV_FIELDS | VOLUME_FIELDS | {"spec.restartPolicy", "spec.schedulerName", "status.phase"}
CONTAINER_FIELDS = (
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
)
_HUGEPAGES = ("requests.hugepages-", "limits.hugepages-")
_BYTE_DIVISORS = ("1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei")


def validate_field_ref(ref: ObjectFieldSelector, allowed: Set[str], path: str) -> Errors:
    """A reference to a field of the pod. `allowed`: the field paths that may be used here."""
    if not ref.apiVersion:
        return [required(f"{path}.apiVersion")]
    if not ref.fieldPath:
        return [required(f"{path}.fieldPath")]
    subscript = split_subscript(ref.fieldPath)
    field = ref.fieldPath if subscript is None else subscript[0]
    if ref.apiVersion != "v1":
        detail = f"error converting fieldPath: unsupported pod version: {ref.apiVersion}"
        return [invalid(f"{path}.fieldPath", ref.fieldPath, detail)]
    if field not in _KNOWN_FIELDS and field != "spec.host":
        detail = f"error converting fieldPath: field label not supported: {ref.fieldPath}"
        return [invalid(f"{path}.fieldPath", ref.fieldPath, detail)]
    field = "spec.nodeName" if field == "spec.host" else field
    if subscript is not None:
        key = subscript[1]
        match field:
            case "metadata.annotations":
                return invalids(path, key.lower(), names.qualified_name_errors(key.lower()))
            case "metadata.labels":
                return invalids(path, key, names.qualified_name_errors(key))
            case _:
                return [invalid(path, field, "does not support subscript")]
    if field not in allowed:
        return [not_supported(f"{path}.fieldPath", field, sorted(allowed))]
    return []


def validate_resource_ref(ref: ResourceFieldSelector, in_volume: bool, path: str) -> Errors:
    """A reference to a request or limit of a container."""
    errors: Errors = []
    if in_volume and not ref.containerName:
        errors.append(required(f"{path}.containerName"))
    elif not ref.resource:
        errors.append(required(f"{path}.resource"))
    elif ref.resource not in CONTAINER_FIELDS and not ref.resource.startswith(_HUGEPAGES):
        errors.append(not_supported(f"{path}.resource", ref.resource, CONTAINER_FIELDS))
    if ref.divisor is not None:
        errors += _divisor_errors(ref, f"{path}.divisor")
    return errors


def _divisor_errors(ref: ResourceFieldSelector, path: str) -> Errors:
    divisor = ref.divisor
    if divisor is None:
        return []
    try:
        if parse(divisor).nano == 0:
            return []
        written = canonical(divisor)
    except QuantityError as error:
        return [invalid(path, divisor, str(error))]
    if ref.resource.endswith(".cpu"):
        supported: tuple[str, ...] = ("1m", "1")
        what = "cpu"
    else:
        supported = _BYTE_DIVISORS
        what = "memory"
        if ref.resource.endswith(".ephemeral-storage"):
            what = "local ephemeral storage"
        elif ".hugepages-" in ref.resource:
            what = "hugepages"
    if written in supported:
        return []
    values = " and ".join(supported) if what == "cpu" else ", ".join(supported)
    return [invalid(path, ref.resource, f"only divisor's values {values} are supported with the {what} resource")]


def _validate_key_ref(ref: ConfigMapKeySelector | SecretKeySelector, path: str) -> Errors:
    errors = invalids(f"{path}.name", ref.name, names.dns_subdomain_errors(ref.name))
    if not ref.key:
        errors.append(required(f"{path}.key"))
    else:
        errors += invalids(f"{path}.key", ref.key, names.config_key_errors(ref.key))
    return errors


def _validate_file_ref(ref: FileKeySelector, empty_dirs: Set[str], volumes: Set[str], path: str) -> Errors:
    errors: Errors = []
    if not ref.key:
        errors.append(required(f"{path}.key"))
    else:
        errors += invalids(f"{path}.key", ref.key, names.env_name_errors(ref.key))
    if not ref.volumeName:
        errors.append(required(f"{path}.volumeName"))
    elif ref.volumeName not in volumes:
        errors.append(not_found(f"{path}.volumeName", ref.volumeName))
    elif ref.volumeName not in empty_dirs:
        errors.append(invalid(f"{path}.volumeName", ref.volumeName, "referenced volume must be of type emptyDir"))
    if not ref.path:
        errors.append(required(f"{path}.path"))
    else:
        errors += local_path_errors(ref.path, f"{path}.path")
    return errors


def validate_env(env: tuple[EnvVar, ...], volumes: Set[str], empty_dirs: Set[str], path: str) -> Errors:
    """The variables of a container. `volumes`: names of the pod's volumes; `empty_dirs`: those that are emptyDirs."""
    errors: Errors = []
    for i, variable in enumerate(env):
        at = f"{path}[{i}]"
        if not variable.name:
            errors.append(required(f"{at}.name"))
        else:
            errors += invalids(f"{at}.name", variable.name, names.env_name_errors(variable.name))
        if variable.valueFrom is not None:
            errors += _validate_value_from(variable, volumes, empty_dirs, f"{at}.valueFrom")
    return errors


def _validate_value_from(variable: EnvVar, volumes: Set[str], empty_dirs: Set[str], path: str) -> Errors:
    source = variable.valueFrom
    if source is None:
        return []
    errors: Errors = []
    given = 0
    if source.fieldRef is not None:
        given += 1
        errors += validate_field_ref(source.fieldRef, ENV_FIELDS, f"{path}.fieldRef")
    if source.resourceFieldRef is not None:
        given += 1
        errors += validate_resource_ref(source.resourceFieldRef, False, f"{path}.resourceFieldRef")
    if source.configMapKeyRef is not None:
        given += 1
        errors += _validate_key_ref(source.configMapKeyRef, f"{path}.configMapKeyRef")
    if source.secretKeyRef is not None:
        given += 1
        errors += _validate_key_ref(source.secretKeyRef, f"{path}.secretKeyRef")
    if source.fileKeyRef is not None:
        given += 1
        errors += _validate_file_ref(source.fileKeyRef, empty_dirs, volumes, f"{path}.fileKeyRef")
    if given == 0:
        detail = (
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
        )
        errors.append(invalid(path, "", detail))
    elif variable.value:
        errors.append(invalid(path, "", "may not be specified when `value` is not empty"))
    elif given > 1:
        errors.append(invalid(path, "", "may not have more than one field specified at a time"))
    return errors


def validate_env_from(sources: tuple[EnvFromSource, ...], path: str) -> Errors:
    """envFrom: ConfigMaps and Secrets of which all keys become variables."""
    errors: Errors = []
    for i, source in enumerate(sources):
        at = f"{path}[{i}]"
        if source.prefix:
            errors += invalids(f"{at}.prefix", source.prefix, names.env_name_errors(source.prefix))
        given = [("configMapRef", source.configMapRef), ("secretRef", source.secretRef)]
        for field, ref in given:
            if ref is not None and not ref.name:
                errors.append(required(f"{at}.{field}.name"))
            elif ref is not None:
                errors += invalids(f"{at}.{field}.name", ref.name, names.dns_subdomain_errors(ref.name))
        count = sum(ref is not None for _, ref in given)
        if count == 0:
            errors.append(invalid(path, "", "must specify one of: `configMapRef` or `secretRef`"))
        elif count > 1:
            errors.append(invalid(path, "", "may not have more than one field specified at a time"))
    return errors
