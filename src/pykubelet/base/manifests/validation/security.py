"""Validates security contexts of pods and containers. Pure."""

from __future__ import annotations

import re

from pykubelet.base.api import labels as names
from pykubelet.base.api.core import (
    AppArmorProfile,
    PodSecurityContext,
    PodSpec,
    SeccompProfile,
    SecurityContext,
    WindowsSecurityContextOptions,
)
from pykubelet.base.manifests.validation.errors import (
    Errors,
    descending_path_errors,
    duplicate,
    forbidden,
    invalid,
    invalids,
    not_supported,
    required,
    too_long,
)

PROFILE_TYPES = ("Localhost", "RuntimeDefault", "Unconfined")
PATH_LIMIT = 4095
_SYSCTL_SEGMENT = "[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
_SYSCTL = "(" + _SYSCTL_SEGMENT + r"[\./])*" + _SYSCTL_SEGMENT
_SYSCTL_COMPILED = re.compile(_SYSCTL, re.ASCII)


def _validate_seccomp(profile: SeccompProfile | None, path: str) -> Errors:
    if profile is None:
        return []
    errors: Errors = []
    if not profile.type:
        errors.append(required(f"{path}.type", "type is required when seccompProfile is set"))
    elif profile.type not in PROFILE_TYPES:
        errors.append(not_supported(f"{path}.type", profile.type, PROFILE_TYPES))
    if profile.type == "Localhost":
        if not profile.localhostProfile:
            errors.append(required(f"{path}.localhostProfile", "must be set when seccomp type is Localhost"))
        else:
            errors += descending_path_errors(profile.localhostProfile, f"{path}.localhostProfile")
    elif profile.localhostProfile:
        detail = "can only be set when seccomp type is Localhost"
        errors.append(invalid(f"{path}.localhostProfile", profile, detail))
    return errors


def _validate_apparmor(profile: AppArmorProfile | None, path: str) -> Errors:
    if profile is None:
        return []
    at = f"{path}.localhostProfile"
    name = profile.localhostProfile
    match profile.type:
        case "Localhost":
            if not name.strip() and name == name.strip():
                return [required(at, "must be set when AppArmor type is Localhost")]
            errors: Errors = []
            if name != name.strip():
                errors.append(invalid(at, name, "must not be padded with whitespace"))
            if len(name.encode()) > PATH_LIMIT:
                errors.append(too_long(at, PATH_LIMIT))
            return errors
        case "RuntimeDefault" | "Unconfined":
            return [invalid(at, name, "can only be set when AppArmor type is Localhost")] if name else []
        case "":
            return [required(f"{path}.type", "type is required when appArmorProfile is set")]
        case other:
            return [not_supported(f"{path}.type", other, PROFILE_TYPES)]


def _validate_windows(options: WindowsSecurityContextOptions | None, path: str) -> Errors:
    if options is None:
        return []
    errors: Errors = []
    if options.gmsaCredentialSpecName:
        name = options.gmsaCredentialSpecName
        errors += invalids(f"{path}.gmsaCredentialSpecName", name, names.dns_subdomain_errors(name))
    if len(options.gmsaCredentialSpec) > 64 * 1024:
        errors.append(too_long(f"{path}.gmsaCredentialSpec", 64 * 1024))
    return errors


def _validate_ids(context: SecurityContext | PodSecurityContext, fields: tuple[str, ...], path: str) -> Errors:
    errors: Errors = []
    for field in fields:
        number: int | None = getattr(context, field)
        if number is not None:
            errors += invalids(f"{path}.{field}", number, names.id_errors(number))
    return errors


def validate_container_security(context: SecurityContext, host_users: bool, path: str) -> Errors:
    """securityContext of a container. `host_users`: the pod shares the host's user namespace."""
    errors = _validate_ids(context, ("runAsUser", "runAsGroup"), path)
    if context.procMount:
        if context.procMount not in ("Default", "Unmasked"):
            errors.append(not_supported(f"{path}.procMount", context.procMount, ("Default", "Unmasked")))
        elif context.procMount == "Unmasked" and host_users:
            detail = "`hostUsers` must be false to use `Unmasked`"
            errors.append(invalid(f"{path}.procMount", context.procMount, detail))
    errors += _validate_seccomp(context.seccompProfile, f"{path}.seccompProfile")
    if context.allowPrivilegeEscalation is False:
        if context.privileged:
            detail = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"
            errors.append(invalid(path, context, detail))
        if context.capabilities and "CAP_SYS_ADMIN" in context.capabilities.add:
            detail = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN"
            errors.append(invalid(path, context, detail))
    errors += _validate_windows(context.windowsOptions, f"{path}.windowsOptions")
    return errors + _validate_apparmor(context.appArmorProfile, f"{path}.appArmorProfile")


def _sysctl_namespace(name: str) -> str:
    """The namespace of a sysctl: `net`, `ipc` or empty."""
    separator = name.replace("/", ".")
    if separator.startswith("net."):
        return "net"
    if separator.startswith(("kernel.shm", "kernel.msg", "fs.mqueue.")) or separator == "kernel.sem":
        return "ipc"
    return ""


def _validate_sysctls(context: PodSecurityContext, spec: PodSpec, path: str) -> Errors:
    errors: Errors = []
    seen: set[str] = set()
    for i, sysctl in enumerate(context.sysctls):
        at = f"{path}[{i}].name"
        name = sysctl.name
        if not name:
            errors.append(required(at))
        elif len(name) > 253 or not _SYSCTL_COMPILED.fullmatch(name):
            errors.append(invalid(at, name, f"must have at most 253 characters and match regex ^{_SYSCTL}$"))
        elif name in seen:
            errors.append(duplicate(at, name))
        namespace = _sysctl_namespace(name)
        if spec.hostNetwork and namespace == "net":
            errors.append(invalid(at, name, "may not be specified when 'hostNetwork' is true"))
        elif spec.hostIPC and namespace == "ipc":
            errors.append(invalid(at, name, "may not be specified when 'hostIPC' is true"))
        seen.add(name)
    return errors


def validate_pod_security(spec: PodSpec, path: str) -> Errors:
    """spec.securityContext, and the namespaces shared with the host. `path`: that of the spec."""
    errors: Errors = []
    if spec.shareProcessNamespace and spec.hostPID:
        detail = "ShareProcessNamespace and HostPID cannot both be enabled"
        errors.append(invalid(f"{path}.securityContext.shareProcessNamespace", True, detail))
    context = spec.securityContext
    if context is None:
        return errors
    at = f"{path}.securityContext"
    errors += _validate_ids(context, ("fsGroup", "runAsUser", "runAsGroup"), at)
    for i, gid in enumerate(context.supplementalGroups):
        errors += invalids(f"{at}.supplementalGroups[{i}]", gid, names.id_errors(gid))
    errors += _validate_sysctls(context, spec, f"{at}.sysctls")
    choices = (
        ("fsGroupChangePolicy", ("Always", "OnRootMismatch")),
        ("supplementalGroupsPolicy", ("Merge", "Strict")),
        ("seLinuxChangePolicy", ("MountOption", "Recursive")),
    )
    for field, supported in choices:
        chosen = getattr(context, field)
        if chosen and chosen not in supported:
            errors.append(not_supported(f"{at}.{field}", chosen, supported))
    errors += _validate_seccomp(context.seccompProfile, f"{at}.seccompProfile")
    errors += _validate_windows(context.windowsOptions, f"{at}.windowsOptions")
    return errors + _validate_apparmor(context.appArmorProfile, f"{at}.appArmorProfile")


def validate_host_users(spec: PodSpec, path: str) -> Errors:
    """spec.hostUsers: a pod with its own user namespace must not use the host's other namespaces or block devices."""
    if spec.hostUsers is not False:
        return []
    errors: Errors = []
    detail = "when `pod.Spec.HostUsers` is false"
    if spec.hostNetwork:
        errors.append(forbidden(f"{path}.hostNetwork", detail))
    if spec.hostPID:
        errors.append(forbidden(f"{path}.HostPID", detail))
    if spec.hostIPC:
        errors.append(forbidden(f"{path}.HostIPC", detail))
    for kind, containers in (("containers", spec.containers), ("initContainers", spec.initContainers)):
        for i, container in enumerate(containers):
            if container.volumeDevices:
                errors.append(forbidden(f"{path}.{kind}[{i}].volumeDevices", detail))
    return errors


_WINDOWS_POD = (
    "appArmorProfile seLinuxOptions seccompProfile fsGroup fsGroupChangePolicy sysctls runAsUser runAsGroup "
    "supplementalGroups supplementalGroupsPolicy seLinuxChangePolicy"
)
_WINDOWS_SPEC = "hostUsers hostPID hostIPC shareProcessNamespace"
_WINDOWS_CONTAINER = (
    "appArmorProfile seLinuxOptions seccompProfile capabilities readOnlyRootFilesystem privileged "
    "allowPrivilegeEscalation procMount runAsUser runAsGroup"
)


def _forbid_set(holder: object, fields: str, path: str) -> Errors:
    detail = "cannot be set for a windows pod"
    unset = (None, "", (), False)
    return [forbidden(f"{path}.{field}", detail) for field in fields.split(" ") if getattr(holder, field) not in unset]


def validate_os(spec: PodSpec, path: str) -> Errors:
    """spec.os, and the fields that do not exist on that operating system."""
    if spec.os is None:
        return []
    name = spec.os.name
    if not name:
        return [required(f"{path}.os.name")]
    if name not in ("linux", "windows"):
        return [not_supported(f"{path}.os", name, ("linux", "windows"))]
    errors: Errors = []
    contexts: list[tuple[str, SecurityContext | PodSecurityContext | None]] = [
        (f"{path}.securityContext", spec.securityContext)
    ]
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        for i, container in enumerate(getattr(spec, kind)):
            contexts.append((f"{path}.{kind}[{i}].securityContext", container.securityContext))
    if name == "windows":
        errors += _forbid_set(spec, _WINDOWS_SPEC, path)
    for at, context in contexts:
        if context is None:
            continue
        if name == "windows":
            fields = _WINDOWS_POD if isinstance(context, PodSecurityContext) else _WINDOWS_CONTAINER
            errors += _forbid_set(context, fields, at)
        elif context.windowsOptions is not None:
            errors.append(forbidden(f"{at}.windowsOptions", "windows options cannot be set for a linux pod"))
    return errors
