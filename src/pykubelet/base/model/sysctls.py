"""Sysctls of a pod: their spelling, and which are allowed. Pure.

Only sysctls that the kernel keeps per namespace can be set. The safe ones are always allowed, others if the node's
`allowedUnsafeSysctls` lists them (or a prefix ending in `*`). None is allowed in a namespace that the pod shares with the
host. Source: Kubernetes docs, "Using sysctls in a Kubernetes Cluster".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from pykubelet.base.api.core import Pod

#: Sysctls with the first kernel (major and minor version) that keeps each per namespace.
Safe = Mapping[str, tuple[int, int]]
#: The safe sysctls of Kubernetes 1.36, and of 1.37.
SAFE_1_36: Safe = MappingProxyType(
    {
        "kernel.shm_rmid_forced": (0, 0),
        "net.ipv4.ip_local_port_range": (0, 0),
        "net.ipv4.tcp_syncookies": (0, 0),
        "net.ipv4.ping_group_range": (0, 0),
        "net.ipv4.ip_unprivileged_port_start": (0, 0),
        "net.ipv4.ip_local_reserved_ports": (3, 16),
        "net.ipv4.tcp_keepalive_time": (4, 5),
        "net.ipv4.tcp_fin_timeout": (4, 6),
        "net.ipv4.tcp_keepalive_intvl": (4, 5),
        "net.ipv4.tcp_keepalive_probes": (4, 5),
        "net.ipv4.tcp_rmem": (4, 15),
        "net.ipv4.tcp_wmem": (4, 15),
    }
)
SAFE_1_37: Safe = MappingProxyType(
    {**SAFE_1_36, "net.ipv4.tcp_notsent_lowat": (4, 6), "net.ipv4.tcp_slow_start_after_idle": (4, 15)}
)
_NEWEST_KERNEL = (1 << 16, 0)
_IPC_PREFIXES = ("kernel.shm", "kernel.msg", "fs.mqueue.")
#: Names that may be allowed with `allowedUnsafeSysctls`, besides all below a prefix; `kernel.shm` and `kernel.msg` stand for `kernel.shm*`.
_NAMESPACED = frozenset(
    {"kernel.sem", "kernel.shm", "kernel.shmall", "kernel.shmmax", "kernel.shmmni", "kernel.shm_rmid_forced"}
    | {"kernel.msg", "kernel.msgmax", "kernel.msgmnb", "kernel.msgmni"}
)
_NAMESPACED_PREFIXES = ("net.", "fs.mqueue.")
_MAX_PATTERN = 253
_PATTERN = r"([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*([a-z0-9][-_a-z0-9]*)?[a-z0-9*]"
_SWAP_SEPARATORS = str.maketrans("./", "/.")


def normalized(name: str) -> str:
    """Spell `net/ipv4/x` as `net.ipv4.x`. A name stays if its first separator is a dot, because its slashes are then literal."""
    first = next((char for char in name if char in "./"), ".")
    return name.translate(_SWAP_SEPARATORS) if first == "/" else name


def allowance_problem(pattern: str) -> str:
    """Why the node cannot allow this sysctl or prefix ending in `*`; "" if it can: the kernel keeps it per namespace."""
    if len(pattern) > _MAX_PATTERN or not re.fullmatch(_PATTERN, pattern):
        return f'sysctl "{pattern}" must have at most {_MAX_PATTERN} characters and match regex {_PATTERN}'
    name = normalized(pattern).partition("*")[0]
    if name in _NAMESPACED or name.startswith(_NAMESPACED_PREFIXES):
        return ""
    return f'the sysctls "{name}" are not known to be namespaced'


#: The sysctls that the node can set for all pods, besides those below a prefix, by the namespace that the kernel keeps them in.
_DEFAULTABLE = {
    "kernel.domainname": "UTS",
    **dict.fromkeys(("kernel.sem", "kernel.shmall", "kernel.shmmax", "kernel.shmmni", "kernel.shm_rmid_forced"), "IPC"),
    **dict.fromkeys(("kernel.msgmax", "kernel.msgmnb", "kernel.msgmni"), "IPC"),
}
_DEFAULTABLE_PREFIXES = {"net.": "Net", "fs.mqueue.": "IPC", "user.": "User"}
_SEGMENT = "[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
_NAME = re.compile(rf"{_SEGMENT}([./]{_SEGMENT})*")


def default_problem(name: str) -> str:
    """Why the node cannot set this sysctl for its pods (`defaultPodSysctls`); "" if it can."""
    if len(name) > _MAX_PATTERN or not _NAME.fullmatch(name):
        return f'"{name}" is not a valid sysctl name for defaultPodSysctls'
    if not _default_namespace(normalized(name)):
        return f'"{name}" is not known to be namespaced for defaultPodSysctls'
    return ""


def with_defaults(pod: Pod, defaults: Mapping[str, str]) -> dict[str, str]:
    """The pod's sysctls, and those of `defaults` in namespaces that it does not share with the host (KEP-5996).

    `defaults`: by normalized name.
    """
    spec, own = pod.spec, sysctls_of(pod)
    shared = {
        "Net": bool(spec.hostNetwork),
        "UTS": bool(spec.hostNetwork),
        "IPC": bool(spec.hostIPC),
        "User": spec.hostUsers is not False,
    }
    added = {name: value for name, value in defaults.items() if not shared.get(_default_namespace(name), True)}
    return {**added, **own}


def _default_namespace(name: str) -> str:
    prefixed = (namespace for prefix, namespace in _DEFAULTABLE_PREFIXES.items() if name.startswith(prefix))
    return _DEFAULTABLE.get(name) or next(prefixed, "")


def sysctls_of(pod: Pod) -> dict[str, str]:
    """The pod's sysctls by normalized name. If a name is given twice, the last one counts."""
    context = pod.spec.securityContext
    return {} if context is None else {normalized(sysctl.name): sysctl.value for sysctl in context.sysctls}


def forbidden_sysctl(
    pod: Pod, allowed_unsafe: tuple[str, ...], kernel: tuple[int, int] = _NEWEST_KERNEL, safe: Safe = SAFE_1_37
) -> str | None:
    """Why the node must not admit the pod (reason SysctlForbidden), or None. `kernel`: major and minor version."""
    for name in sysctls_of(pod):
        safe_since = safe.get(name)
        is_safe = safe_since is not None and kernel >= safe_since
        problem = _problem(pod, name, allowed_unsafe, is_safe=is_safe)
        if problem:
            return f'forbidden sysctl: "{name}" {problem}'
    return None


def _problem(pod: Pod, name: str, allowed_unsafe: tuple[str, ...], *, is_safe: bool) -> str:
    if not is_safe and not any(_covers(normalized(pattern), name) for pattern in allowed_unsafe):
        return "not allowlisted"
    namespace = _namespace(name)
    if namespace == "IPC" and pod.spec.hostIPC:
        return "not allowed with host IPC enabled"
    if namespace == "Net" and pod.spec.hostNetwork:
        return "not allowed with host Net enabled"
    return ""


def _covers(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def _namespace(name: str) -> str:
    if name == "kernel.sem" or name.startswith(_IPC_PREFIXES):
        return "IPC"
    return "Net" if name.startswith("net.") else ""
