"""The Pod Security Standards: what pods of a namespace may do, by its labels. Pure.

Enforced and warned of as the admission plugin PodSecurity does; `audit` has no effect, as there is no audit log. Versions before
`latest` are evaluated as the latest, except for checks that are newer.
Source: the Kubernetes documentation "Pod Security Standards" and "Pod Security Admission".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from pykubelet.base.kit.values import Value
from pykubelet.base.manifests.validation.errors import Errors, invalid
from pykubelet_local_api.errors import forbidden
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.objects import Json
from pykubelet_local_api.strategies.common import shown_name
from pykubelet_local_api.strategies.pod_admission import containers_of
from pykubelet_local_api.strategies.strategy import Context

PREFIX = "pod-security.kubernetes.io/"
LEVELS = ("privileged", "baseline", "restricted")
_VERSION = re.compile(r"v1\.(0|[1-9]\d{0,3})", re.ASCII)
_MODES = ("enforce", "audit", "warn")


class Violation(Value):
    """What a pod may not do, and where it does."""

    what: str
    detail: str

    def __str__(self) -> str:
        return f"{self.what} ({self.detail})"


Check = Callable[[Json], Violation | None]


def label_errors(labels: Json) -> Errors:
    """Labels of a namespace with a level or a version that does not exist."""
    errors: Errors = []
    for mode in _MODES:
        level, version = labels.get(PREFIX + mode), labels.get(f"{PREFIX}{mode}-version")
        if level is not None and level not in LEVELS:
            detail = "must be one of privileged, baseline, restricted"
            errors.append(invalid(f"metadata.labels[{PREFIX}{mode}]", level, detail))
        if version is not None and version != "latest" and not _VERSION.fullmatch(version):
            errors.append(invalid(f"metadata.labels[{PREFIX}{mode}-version]", version, 'must be "latest" or "v1.x"'))
    return errors


def admit_security(kind: ResourceKind, pod: Json, context: Context) -> None:
    """Refuse a pod that the level of its namespace does not allow. Raises `StatusError` (403)."""
    if context.subresource == "resize":
        return
    level, version = _policy(pod, context, "enforce")
    if found := violations(pod, level, version):
        why = f'violates PodSecurity "{level}:{version}": {", ".join(map(str, found))}'
        raise forbidden(kind, shown_name(pod), why)


def security_warnings(pod: Json, context: Context) -> list[str]:
    """The warning about a pod that its namespace only warns of."""
    level, version = _policy(pod, context, "warn")
    found = violations(pod, level, version)
    return [f'would violate PodSecurity "{level}:{version}": {", ".join(map(str, found))}'] if found else []


def _policy(pod: Json, context: Context, mode: str) -> tuple[str, str]:
    namespace = context.view.get("namespaces", "", str(pod["metadata"].get("namespace") or ""))
    labels = (namespace["metadata"].get("labels") or {}) if namespace else {}
    return str(labels.get(PREFIX + mode) or "privileged"), str(labels.get(f"{PREFIX}{mode}-version") or "latest")


def violations(pod: Json, level: str, version: str = "latest") -> list[Violation]:
    """What the level does not allow, in the order in which messages list it."""
    if level not in ("baseline", "restricted"):
        return []
    match = _VERSION.fullmatch(version)
    minor = int(match[1]) if match else 9999
    checks: Iterable[tuple[Check, int]] = _BASELINE
    if level == "restricted":
        checks = [*(item for item in _BASELINE if item[0] not in _OVERRIDDEN), *_RESTRICTED]
    found = [
        _app_armor(pod["spec"], pod["metadata"]),
        *(check(pod["spec"]) for check, since in checks if minor >= since),
    ]
    return [violation for violation in found if violation is not None]


# What the checks share


def _context(part: Json) -> Json:
    return part.get("securityContext") or {}


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _containers(names: list[str]) -> str:
    return f"container{'s' if len(names) > 1 else ''} {_quoted(names)}"


def _setters(pod: bool, names: list[str], joint: str = "and") -> str:
    """`pod and container "a"`, or one of both."""
    if pod and names:
        return f"pod {joint} {_containers(names)}"
    return "pod" if pod else _containers(names)


def _each(spec: Json) -> Iterator[tuple[str, Json, Json]]:
    for container in containers_of(spec):
        yield str(container.get("name")), container, _context(container)


def _is_windows(spec: Json) -> bool:
    return (spec.get("os") or {}).get("name") == "windows"


# Baseline

_APPARMOR = "container.apparmor.security.beta.kubernetes.io/"
_DEFAULT_CAPABILITIES = frozenset(
    (
        *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE"),
        *("SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
    )
)
_SELINUX_TYPES = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
_SAFE_SYSCTLS = frozenset(
    (
        *("kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start"),
        *("net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports"),
        *("net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl"),
        *("net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"),
    )
)


def _app_armor(spec: Json, meta: Json) -> Violation | None:
    def is_bad(context: Json) -> bool:
        return (context.get("appArmorProfile") or {}).get("type", "RuntimeDefault") not in (
            "RuntimeDefault",
            "Localhost",
        )

    pod = is_bad(_context(spec))
    names = [name for name, _, context in _each(spec) if is_bad(context)]
    contexts = [*([_context(spec)] if pod else []), *(context for _, _, context in _each(spec) if is_bad(context))]
    values = sorted({f'"{context["appArmorProfile"]["type"]}"' for context in contexts})
    annotations = sorted(
        f'"{key}="{text}""'
        for key, text in (meta.get("annotations") or {}).items()
        if key.startswith(_APPARMOR) and text not in ("", "runtime/default") and not text.startswith("localhost/")
    )
    if not (pod or names or annotations):
        return None
    who = _setters(pod, names) if pod or names else ""
    if annotations:
        plural = "annotations" if len(annotations) > 1 else "annotation"
        who = f"{who} and {plural}" if who else plural
    what = "forbidden AppArmor profiles" if len(values) + len(annotations) > 1 else "forbidden AppArmor profile"
    return Violation(what, f"{who} must not set AppArmor profile type to {', '.join([*values, *annotations])}")


def _capabilities(spec: Json) -> Violation | None:
    names, added = [], set()
    for name, _, context in _each(spec):
        wrong = set((context.get("capabilities") or {}).get("add") or ()) - _DEFAULT_CAPABILITIES
        if wrong:
            names.append(name)
            added |= wrong
    if not names:
        return None
    detail = f"{_containers(names)} must not include {_quoted(sorted(added))} in securityContext.capabilities.add"
    return Violation("non-default capabilities", detail)


def _host_namespaces(spec: Json) -> Violation | None:
    found = [f"{field}=true" for field in ("hostNetwork", "hostPID", "hostIPC") if spec.get(field)]
    return Violation("host namespaces", ", ".join(found)) if found else None


def _host_paths(spec: Json) -> Violation | None:
    found = [str(volume.get("name")) for volume in spec.get("volumes") or () if volume.get("hostPath") is not None]
    return Violation("hostPath volumes", f"volume{'s' if len(found) > 1 else ''} {_quoted(found)}") if found else None


def _host_ports(spec: Json) -> Violation | None:
    names: list[str] = []
    ports: set[int] = set()
    for name, container, _ in _each(spec):
        used = {int(port["hostPort"]) for port in container.get("ports") or () if port.get("hostPort")}
        if used:
            names.append(name)
            ports |= used
    if not names:
        return None
    verb = "use" if len(names) > 1 else "uses"
    listed = ", ".join(sorted(map(str, ports)))
    return Violation("hostPort", f"{_containers(names)} {verb} hostPort{'s' if len(ports) > 1 else ''} {listed}")


def _handler_hosts(spec: Json) -> Violation | None:
    names: list[str] = []
    hosts: set[str] = set()
    for name, container, _ in _each(spec):
        handlers = [container.get(field) or {} for field in ("livenessProbe", "readinessProbe", "startupProbe")]
        hooks = container.get("lifecycle") or {}
        handlers += [hooks.get(field) or {} for field in ("postStart", "preStop")]
        used = {
            str(host)
            for handler in handlers
            for field in ("httpGet", "tcpSocket")
            if (host := (handler.get(field) or {}).get("host"))
        }
        if used:
            names.append(name)
            hosts |= used
    if not names:
        return None
    verb = "use" if len(names) > 1 else "uses"
    plural = "s" if len(hosts) > 1 else ""
    detail = f"{_containers(names)} {verb} probe or lifecycle host{plural} {_quoted(sorted(hosts))}"
    return Violation("probe or lifecycle host", detail)


def _privileged(spec: Json) -> Violation | None:
    names = [name for name, _, context in _each(spec) if context.get("privileged")]
    detail = f"{_containers(names)} must not set securityContext.privileged=true"
    return Violation("privileged", detail) if names else None


def _proc_mount(spec: Json) -> Violation | None:
    if spec.get("hostUsers") is False:
        return None
    found = [
        (name, str(mount)) for name, _, c in _each(spec) if (mount := c.get("procMount") or "Default") != "Default"
    ]
    if not found:
        return None
    kinds = _quoted(sorted({mount for _, mount in found}))
    return Violation(
        "procMount", f"{_containers([name for name, _ in found])} must not set securityContext.procMount to {kinds}"
    )


def _se_linux(spec: Json) -> Violation | None:
    types: set[str] = set()
    flaws: set[str] = set()

    def is_bad(context: Json) -> bool:
        options = context.get("seLinuxOptions") or {}
        wrong = {field for field in ("user", "role") if options.get(field)}
        flaws.update(wrong)
        if options.get("type", "") not in _SELINUX_TYPES:
            types.add(str(options["type"]))
            return True
        return bool(wrong)

    pod = is_bad(_context(spec))
    names = [name for name, _, context in _each(spec) if is_bad(context)]
    if not (pod or names):
        return None
    found = [f"type{'s' if len(types) > 1 else ''} {_quoted(sorted(types))}"] if types else []
    found += [f"{field} may not be set" for field in ("user", "role") if field in flaws]
    return Violation(
        "seLinuxOptions", f"{_setters(pod, names)} set forbidden securityContext.seLinuxOptions: {'; '.join(found)}"
    )


def _seccomp_type(context: Json) -> str:
    return str((context.get("seccompProfile") or {}).get("type") or "")


def _seccomp(spec: Json) -> Violation | None:
    pod = _seccomp_type(_context(spec)) == "Unconfined"
    names = [name for name, _, context in _each(spec) if _seccomp_type(context) == "Unconfined"]
    detail = f'{_setters(pod, names)} must not set securityContext.seccompProfile.type to "Unconfined"'
    return Violation("seccompProfile", detail) if pod or names else None


def _sysctls(spec: Json) -> Violation | None:
    found = [
        str(item.get("name")) for item in _context(spec).get("sysctls") or () if item.get("name") not in _SAFE_SYSCTLS
    ]
    return Violation("forbidden sysctls", ", ".join(found)) if found else None


def _host_process(spec: Json) -> Violation | None:
    pod = bool((_context(spec).get("windowsOptions") or {}).get("hostProcess"))
    names = [name for name, _, context in _each(spec) if (context.get("windowsOptions") or {}).get("hostProcess")]
    detail = f"{_setters(pod, names)} must not set securityContext.windowsOptions.hostProcess=true"
    return Violation("hostProcess", detail) if pod or names else None


# Restricted

_FREE_VOLUMES = frozenset(
    (
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "image",
        "persistentVolumeClaim",
        "projected",
        "secret",
    )
)


def _escalation(spec: Json) -> Violation | None:
    if _is_windows(spec):
        return None
    names = [name for name, _, context in _each(spec) if context.get("allowPrivilegeEscalation") is not False]
    detail = f"{_containers(names)} must set securityContext.allowPrivilegeEscalation=false"
    return Violation("allowPrivilegeEscalation != false", detail) if names else None


def _few_capabilities(spec: Json) -> Violation | None:
    if _is_windows(spec):
        return None
    undropped, adding = [], []
    added: set[str] = set()
    for name, _, context in _each(spec):
        listed = context.get("capabilities") or {}
        if "ALL" not in (listed.get("drop") or ()):
            undropped.append(name)
        wrong = set(listed.get("add") or ()) - {"NET_BIND_SERVICE"}
        if wrong:
            adding.append(name)
            added |= wrong
    details = [f'{_containers(undropped)} must set securityContext.capabilities.drop=["ALL"]'] if undropped else []
    if adding:
        listed = _quoted(sorted(added))
        details.append(f"{_containers(adding)} must not include {listed} in securityContext.capabilities.add")
    return Violation("unrestricted capabilities", "; ".join(details)) if details else None


def _few_volumes(spec: Json) -> Violation | None:
    names, kinds = [], set()
    for volume in spec.get("volumes") or ():
        source = next((field for field, part in volume.items() if field != "name" and part is not None), "")
        if source and source not in _FREE_VOLUMES:
            names.append(str(volume.get("name")))
            kinds.add(source)
    if not names:
        return None
    volumes = f"volumes {_quoted(names)} use" if len(names) > 1 else f"volume {_quoted(names)} uses"
    types = f"restricted volume type{'s' if len(kinds) > 1 else ''} {_quoted(sorted(kinds))}"
    return Violation("restricted volume types", f"{volumes} {types}")


def _non_root(spec: Json) -> Violation | None:
    if spec.get("hostUsers") is False:
        return None
    pod = _context(spec).get("runAsNonRoot")
    wrong = [name for name, _, context in _each(spec) if context.get("runAsNonRoot") is False]
    unset = [name for name, _, context in _each(spec) if context.get("runAsNonRoot") is None] if not pod else []
    what = "runAsNonRoot != true"
    if pod is False or wrong:
        return Violation(what, f"{_setters(pod is False, wrong)} must not set securityContext.runAsNonRoot=false")
    if unset:
        return Violation(what, f"pod or {_containers(unset)} must set securityContext.runAsNonRoot=true")
    return None


def _root_user(spec: Json) -> Violation | None:
    if spec.get("hostUsers") is False:
        return None
    pod = _context(spec).get("runAsUser") == 0
    names = [name for name, _, context in _each(spec) if context.get("runAsUser") == 0]
    return Violation("runAsUser=0", f"{_setters(pod, names)} must not set runAsUser=0") if pod or names else None


def _some_seccomp(spec: Json) -> Violation | None:
    if _is_windows(spec):
        return None
    if found := _seccomp(spec):
        return found
    if _seccomp_type(_context(spec)):
        return None
    names = [name for name, _, context in _each(spec) if not _seccomp_type(context)]
    detail = (
        f'pod or {_containers(names)} must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"'
    )
    return Violation("seccompProfile", detail) if names else None


#: The checks in the order of messages, each with the minor version since which it exists.
_BASELINE: tuple[tuple[Check, int], ...] = (
    (_capabilities, 0),
    (_host_namespaces, 0),
    (_host_paths, 0),
    (_host_ports, 0),
    (_handler_hosts, 34),
    (_privileged, 0),
    (_proc_mount, 0),
    (_se_linux, 0),
    (_seccomp, 19),
    (_sysctls, 0),
    (_host_process, 0),
)
_RESTRICTED: tuple[tuple[Check, int], ...] = (
    (_escalation, 8),
    (_few_capabilities, 22),
    (_few_volumes, 0),
    (_non_root, 0),
    (_root_user, 23),
    (_some_seccomp, 19),
)
#: Checks of the baseline in the place of which stricter ones are.
_OVERRIDDEN = (_capabilities, _host_paths, _seccomp)
