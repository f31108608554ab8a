"""Validates containers of all kinds: regular, init (and restartable init), ephemeral. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Set

from pykubelet.base.api import labels as names
from pykubelet.base.api.core import (
    Container,
    ContainerPort,
    EphemeralContainer,
    PodSpec,
    Volume,
    VolumeDevice,
    VolumeMount,
)
from pykubelet.base.kit.values import Value
from pykubelet.base.manifests.validation.env import validate_env, validate_env_from
from pykubelet.base.manifests.validation.errors import (
    Errors,
    backstep_errors,
    descending_path_errors,
    duplicate,
    forbidden,
    invalid,
    invalids,
    not_found,
    not_supported,
    one_of,
    required,
    too_many,
)
from pykubelet.base.manifests.validation.handlers import (
    validate_lifecycle,
    validate_readiness_probe,
    validate_restart_probe,
)
from pykubelet.base.manifests.validation.resources import validate_requirements
from pykubelet.base.manifests.validation.security import validate_container_security
from pykubelet.base.manifests.validation.volumes import PULL_POLICIES

PROTOCOLS = ("SCTP", "TCP", "UDP")
MESSAGE_POLICIES = ("File", "FallbackToLogsOnError")
PROPAGATIONS = ("Bidirectional", "HostToContainer", "None")
BIND_OPTIONS = ("nodev", "noexec", "nosuid")
RECURSIVE = ("Disabled", "Enabled", "IfPossible")
RESTART_POLICIES = ("Always", "Never", "OnFailure")
RULE_ACTIONS = ("Restart", "RestartAllContainers")
MAX_RULES = 20
MAX_EXIT_CODES = 255
NOT_FOR_INIT = "may not be set for init containers without restartPolicy=Always"
NOT_FOR_EPHEMERAL = "cannot be set for an Ephemeral Container"
AnyContainer = Container | EphemeralContainer


class PodFacts(Value):
    """The facts about a pod that the rules of its containers need."""

    spec: PodSpec
    volumes: Mapping[str, Volume]
    claims: Set[str]

    @property
    def grace_s(self) -> int | None:
        """The pod's termination grace period in seconds, None if it has none."""
        return self.spec.terminationGracePeriodSeconds

    @property
    def os_name(self) -> str:
        """The value of `spec.os.name`, empty if the pod names no operating system."""
        return self.spec.os.name if self.spec.os else ""

    @property
    def empty_dirs(self) -> Set[str]:
        """The names of the pod's `emptyDir` volumes."""
        return {name for name, volume in self.volumes.items() if volume.emptyDir is not None}


def validate_containers(facts: PodFacts, path: str) -> Errors:
    """spec.containers."""
    containers = facts.spec.containers
    if not containers:
        return [required(path)]
    errors: Errors = []
    seen: set[str] = set()
    for i, container in enumerate(containers):
        at = f"{path}[{i}]"
        errors += _validate_common(container, facts, at)
        if container.name in seen:
            errors.append(duplicate(f"{at}.name", container.name))
        seen.add(container.name)
        errors += _validate_long_running(container, facts, at)
        errors += _validate_restart(container, at)
    return errors + _host_port_conflicts(containers, path)


def validate_init_containers(facts: PodFacts, path: str) -> Errors:
    """spec.initContainers: ordinary ones, which run to completion, and sidecars (restartPolicy Always)."""
    errors: Errors = []
    seen = {container.name for container in facts.spec.containers}
    for i, container in enumerate(facts.spec.initContainers):
        at = f"{path}[{i}]"
        errors += _validate_common(container, facts, at)
        errors += _validate_restart(container, at)
        if container.name in seen:
            errors.append(duplicate(f"{at}.name", container.name))
        elif container.name:
            seen.add(container.name)
        errors += _host_port_conflicts((container,), path)
        if container.restartPolicy == "Always":
            errors += _validate_long_running(container, facts, at)
            continue
        for field in ("lifecycle", "livenessProbe", "readinessProbe", "startupProbe"):
            if getattr(container, field) is not None:
                errors.append(forbidden(f"{at}.{field}", NOT_FOR_INIT))
    return errors


def validate_ephemeral_containers(facts: PodFacts, path: str) -> Errors:
    """spec.ephemeralContainers: the rules of each. That a pod must have none at its creation is checked elsewhere."""
    spec = facts.spec
    if not spec.ephemeralContainers:
        return []
    errors: Errors = []
    others = {container.name for container in (*spec.containers, *spec.initContainers)}
    seen = set(others)
    forbidden_fields = (
        *("ports", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "resizePolicy"),
        *("restartPolicy", "restartPolicyRules"),
    )
    for i, container in enumerate(spec.ephemeralContainers):
        at = f"{path}[{i}]"
        errors += _validate_common(container, facts, at)
        if container.name in seen:
            errors.append(duplicate(f"{at}.name", container.name))
        seen.add(container.name)
        if container.targetContainerName and container.targetContainerName not in others:
            errors.append(not_found(f"{at}.targetContainerName", container.targetContainerName))
        for field in forbidden_fields:
            if getattr(container, field):
                errors.append(forbidden(f"{at}.{field}", NOT_FOR_EPHEMERAL))
        if container.resources and (container.resources.limits or container.resources.requests):
            errors.append(forbidden(f"{at}.resources", NOT_FOR_EPHEMERAL))
        for j, mount in enumerate(container.volumeMounts):
            for field in ("subPath", "subPathExpr"):
                if getattr(mount, field):
                    errors.append(forbidden(f"{at}.volumeMounts[{j}].{field}", NOT_FOR_EPHEMERAL))
    return errors


def _validate_common(container: AnyContainer, facts: PodFacts, path: str) -> Errors:
    errors: Errors = []
    if not container.name:
        errors.append(required(f"{path}.name"))
    else:
        errors += invalids(f"{path}.name", container.name, names.dns_label_errors(container.name))
    if not container.image:
        errors.append(required(f"{path}.image"))
    elif container.image != container.image.strip():
        errors.append(invalid(f"{path}.image", container.image, "must not have leading or trailing whitespace"))
    errors += one_of(f"{path}.terminationMessagePolicy", container.terminationMessagePolicy, MESSAGE_POLICIES)
    errors += _validate_ports(container.ports, f"{path}.ports")
    if container.env:
        errors += validate_env(container.env, set(facts.volumes), facts.empty_dirs, f"{path}.env")
    if container.envFrom:
        errors += validate_env_from(container.envFrom, f"{path}.envFrom")
    errors += _validate_mounts(container, facts.volumes, f"{path}.volumeMounts")
    errors += _validate_devices(container, facts.volumes, f"{path}.volumeDevices")
    errors += one_of(f"{path}.imagePullPolicy", container.imagePullPolicy, PULL_POLICIES)
    if container.resources is not None:
        errors += validate_requirements(container.resources, facts.claims, f"{path}.resources")
    errors += _validate_resize(container, facts.spec.restartPolicy, f"{path}.resizePolicy")
    if container.securityContext is not None:
        host_users = facts.spec.hostUsers is not False
        errors += validate_container_security(container.securityContext, host_users, f"{path}.securityContext")
    return errors


def _validate_long_running(container: Container, facts: PodFacts, path: str) -> Errors:
    errors: Errors = []
    if container.lifecycle is not None:
        errors += validate_lifecycle(container.lifecycle, facts.grace_s, facts.os_name, f"{path}.lifecycle")
    if container.livenessProbe is not None:
        errors += validate_restart_probe(container.livenessProbe, facts.grace_s, f"{path}.livenessProbe")
    if container.readinessProbe is not None:
        errors += validate_readiness_probe(container.readinessProbe, facts.grace_s, f"{path}.readinessProbe")
    if container.startupProbe is not None:
        errors += validate_restart_probe(container.startupProbe, facts.grace_s, f"{path}.startupProbe")
    return errors


def _validate_restart(container: Container, path: str) -> Errors:
    """The container's own restart policy and rules (KEP-5307)."""
    errors: Errors = []
    rules = container.restartPolicyRules
    if not container.restartPolicy:
        if rules:
            detail = "must specify restartPolicy when restart rules are used"
            errors.append(required(f"{path}.restartPolicy", detail))
    elif container.restartPolicy not in RESTART_POLICIES:
        errors.append(not_supported(f"{path}.restartPolicy", container.restartPolicy, RESTART_POLICIES))
    if len(rules) > MAX_RULES:
        errors.append(too_many(f"{path}.restartPolicyRules", len(rules), MAX_RULES))
    for i, rule in enumerate(rules):
        at = f"{path}.restartPolicyRules[{i}]"
        if rule.action not in RULE_ACTIONS:
            errors.append(not_supported(f"{at}.action", rule.action, RULE_ACTIONS))
        if rule.exitCodes is None:
            errors.append(required(f"{at}.exitCodes", "must be specified"))
            continue
        if rule.exitCodes.operator not in ("In", "NotIn"):
            errors.append(not_supported(f"{at}.exitCodes.operator", rule.exitCodes.operator, ("In", "NotIn")))
        if len(rule.exitCodes.values) > MAX_EXIT_CODES:
            errors.append(too_many(f"{at}.exitCodes.values", len(rule.exitCodes.values), MAX_EXIT_CODES))
    return errors


def _validate_ports(ports: tuple[ContainerPort, ...], path: str) -> Errors:
    errors: Errors = []
    seen: set[str] = set()
    for i, port in enumerate(ports):
        at = f"{path}[{i}]"
        if port.name:
            reasons = names.port_name_errors(port.name)
            errors += invalids(f"{at}.name", port.name, reasons)
            if not reasons and port.name in seen:
                errors.append(duplicate(f"{at}.name", port.name))
            seen.add(port.name)
        if port.containerPort == 0:
            errors.append(required(f"{at}.containerPort"))
        else:
            errors += invalids(f"{at}.containerPort", port.containerPort, names.port_number_errors(port.containerPort))
        if port.hostPort:
            errors += invalids(f"{at}.hostPort", port.hostPort, names.port_number_errors(port.hostPort))
        errors += one_of(f"{at}.protocol", port.protocol, PROTOCOLS)
    return errors


def _host_port_conflicts(containers: tuple[Container, ...], path: str) -> Errors:
    errors: Errors = []
    taken: set[str] = set()
    for i, container in enumerate(containers):
        for j, port in enumerate(container.ports):
            if port.hostPort:
                claim = f"{port.protocol}/{port.hostIP}/{port.hostPort}"
                if claim in taken:
                    errors.append(duplicate(f"{path}[{i}].ports[{j}].hostPort", claim))
                taken.add(claim)
    return errors


def _validate_mounts(container: AnyContainer, volumes: Mapping[str, Volume], path: str) -> Errors:
    errors: Errors = []
    taken: set[str] = set()
    device_names = {device.name for device in container.volumeDevices}
    device_paths = {device.devicePath for device in container.volumeDevices}
    for i, mount in enumerate(container.volumeMounts):
        at = f"{path}[{i}]"
        if not mount.name:
            errors.append(required(f"{at}.name"))
        if mount.name not in volumes:
            errors.append(not_found(f"{at}.name", mount.name))
        if not mount.mountPath:
            errors.append(required(f"{at}.mountPath"))
        if mount.mountPath in taken:
            errors.append(invalid(f"{at}.mountPath", mount.mountPath, "must be unique"))
        taken.add(mount.mountPath)
        if mount.name in device_names:
            errors.append(invalid(f"{at}.name", mount.name, "must not already exist in volumeDevices"))
        if mount.mountPath in device_paths:
            detail = "must not already exist as a path in volumeDevices"
            errors.append(invalid(f"{at}.mountPath", mount.mountPath, detail))
        errors += _validate_mount_options(mount, container, at, path)
        errors += _bind_option_errors(mount, volumes.get(mount.name), f"{at}.bindMountOptions")
    return errors


def _bind_option_errors(mount: VolumeMount, volume: Volume | None, path: str) -> Errors:
    """The flags of a bind mount (KEP-5855)."""
    errors: Errors = []
    if mount.bindMountOptions and volume is not None and volume.image is not None:
        errors.append(forbidden(path, "may not be specified for image volumes"))
    seen: set[str] = set()
    for i, option in enumerate(mount.bindMountOptions):
        if option not in BIND_OPTIONS:
            errors.append(not_supported(f"{path}[{i}]", option, BIND_OPTIONS))
        elif option in seen:
            errors.append(duplicate(f"{path}[{i}]", option))
        seen.add(option)
    return errors


def _validate_mount_options(mount: VolumeMount, container: AnyContainer, at: str, path: str) -> Errors:
    """Sub-paths, propagation, recursion. As in the reference, most errors have the path of the list, not of its element."""
    errors: Errors = []
    if mount.subPath:
        errors += descending_path_errors(mount.subPath, f"{path}.subPath")
    if mount.subPathExpr:
        if mount.subPath:
            detail = "subPathExpr and subPath are mutually exclusive"
            errors.append(invalid(f"{at}.subPathExpr", mount.subPathExpr, detail))
        errors += descending_path_errors(mount.subPathExpr, f"{path}.subPathExpr")
    if mount.mountPropagation:
        where = f"{path}.mountPropagation"
        if mount.mountPropagation not in PROPAGATIONS:
            errors.append(not_supported(where, mount.mountPropagation, PROPAGATIONS))
        privileged = container.securityContext is not None and container.securityContext.privileged
        if mount.mountPropagation == "Bidirectional" and not privileged:
            detail = "Bidirectional mount propagation is available only to privileged containers"
            errors.append(forbidden(where, detail))
    where = f"{path}.recursiveReadOnly"
    match mount.recursiveReadOnly:
        case "" | "Disabled":
            pass
        case "Enabled" | "IfPossible":
            if not mount.readOnly:
                errors.append(forbidden(where, "may only be specified when readOnly is true"))
            if mount.mountPropagation not in ("", "None"):
                detail = "may only be specified when mountPropagation is None or not specified"
                errors.append(forbidden(where, detail))
        case other:
            errors.append(not_supported(where, other, RECURSIVE))
    return errors


def _validate_devices(container: AnyContainer, volumes: Mapping[str, Volume], path: str) -> Errors:
    errors: Errors = []
    mount_names = {mount.name for mount in container.volumeMounts}
    mount_paths = {mount.mountPath for mount in container.volumeMounts}
    seen: set[str] = set()
    taken: set[str] = set()
    for i, device in enumerate(container.volumeDevices):
        at = f"{path}[{i}]"
        errors += _device_source_errors(device, volumes, seen, at)
        if not device.devicePath:
            errors.append(required(f"{at}.devicePath"))
        if device.devicePath in taken:
            errors.append(invalid(f"{at}.devicePath", device.devicePath, "must be unique"))
        if backstep_errors(device.devicePath, at):
            errors.append(invalid(f"{at}.devicePath", device.devicePath, "can not contain backsteps ('..')"))
        else:
            taken.add(device.devicePath)
        if device.name in mount_names:
            errors.append(invalid(f"{at}.name", device.name, "must not already exist in volumeMounts"))
        if device.devicePath in mount_paths:
            detail = "must not already exist as a path in volumeMounts"
            errors.append(invalid(f"{at}.devicePath", device.devicePath, detail))
        if device.name:
            seen.add(device.name)
    return errors


def _device_source_errors(device: VolumeDevice, volumes: Mapping[str, Volume], seen: Set[str], path: str) -> Errors:
    errors: Errors = []
    at = f"{path}.name"
    if not device.name:
        errors.append(required(at))
    if device.name in seen:
        errors.append(invalid(at, device.name, "must be unique"))
    volume = volumes.get(device.name)
    if volume is None:
        errors.append(not_found(at, device.name))
    elif volume.persistentVolumeClaim is None and volume.ephemeral is None:
        detail = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"
        errors.append(invalid(at, device.name, detail))
    return errors


def _validate_resize(container: AnyContainer, pod_policy: str, path: str) -> Errors:
    errors: Errors = []
    seen: set[str] = set()
    for i, policy in enumerate(container.resizePolicy):
        if policy.resourceName in seen:
            errors.append(duplicate(f"{path}[{i}]", policy.resourceName))
        seen.add(policy.resourceName)
        errors += one_of(path, policy.resourceName, ("cpu", "memory"))
        errors += one_of(path, policy.restartPolicy, ("NotRequired", "RestartContainer"))
        if pod_policy == "Never" and policy.restartPolicy != "NotRequired":
            detail = "must be 'NotRequired' when `restartPolicy` is 'Never'"
            errors.append(invalid(path, policy.restartPolicy, detail))
    return errors
