"""Decides with which SELinux context a volume is mounted (`-o context=`), so that its files need not be relabeled. Pure.

Rules:
 1. The host has SELinux, the volume's plugin can mount with a context, and the pod does not ask for `Recursive`.
 2. The volume's sole access mode is ReadWriteOncePod; with the gate SELinuxMount, it may have any.
 3. The context follows from the user and level of the containers with the volume, which must all have the same. Without a level,
    the runtime chooses one for each container, and the volume is mounted without a context.
 4. Users, roles, types and levels are words that SELinux allows: mount(8) would read other text as further options.
 5. A volume is mounted with one context at a time on the node.
Source: KEP-1710; texts are those of the reference kubelet.
"""

from __future__ import annotations

from collections.abc import Collection

from pykubelet.base.api.core import Container, EphemeralContainer, Pod, SELinuxOptions
from pykubelet.base.kit.values import remember_last
from pykubelet.base.model.containers import every_container
from pykubelet.base.model.selinux import SelinuxHost, options_problem
from pykubelet.provide.volumes.kind import PlanInputs, VolumesError

MULTIPLE = "multiple SELinux labels found: "
_SHORT = {"ReadWriteMany": "RWX", "ReadOnlyMany": "ROX", "ReadWriteOnce": "RWO", "ReadWriteOncePod": "RWOP"}
_RWOP = ("ReadWriteOncePod",)
_MAX_PARTS = 4
_CONFLICT = "conflicting SELinux labels of volume "
_OTHER_LABEL = "different pod with a different SELinux label"


def mount_context(inputs: PlanInputs) -> str:
    """The context to mount the volume with, if its plugin can do that; "" for none.

    VolumesError if its containers disagree, or if their options cannot be a part of a context.
    """
    host, claimed = inputs.selinux, inputs.claimed
    if not host.is_enabled or claimed is None or claimed.is_block:
        return ""
    contexts = container_contexts(inputs.pod, inputs.volume.name, host)
    if not (host.mounts_all or claimed.volume.spec.accessModes == _RWOP):
        return ""
    if len(contexts) > 1:
        raise VolumesError(f"{MULTIPLE}{', '.join(sorted(contexts))}", step="")
    security = inputs.pod.spec.securityContext
    if security is not None and security.seLinuxChangePolicy == "Recursive":
        return ""
    return next(iter(contexts), "")


def container_contexts(pod: Pod, volume: str, host: SelinuxHost) -> frozenset[str]:
    """The contexts that the containers with the volume need its files to have; "" for one that any may have. VolumesError."""
    of_pod = pod.spec.securityContext.seLinuxOptions if pod.spec.securityContext is not None else None
    found = set()
    for container in _containers_with(pod).get(volume, ()):
        own = container.securityContext.seLinuxOptions if container.securityContext is not None else None
        options = own or of_pod
        if options is None:
            continue
        if problem := options_problem(options):
            raise VolumesError(f"container {container.name}: {problem}", step="")
        found.add(file_context(options, host.file_context))
    return frozenset(found)


@remember_last
def _containers_with(pod: Pod) -> dict[str, list[Container | EphemeralContainer]]:
    """The containers that mount a volume, by the name of the volume."""
    found: dict[str, list[Container | EphemeralContainer]] = {}
    for container in every_container(pod):
        for name in dict.fromkeys(mount.name for mount in container.volumeMounts):
            found.setdefault(name, []).append(container)
    return found


def file_context(options: SELinuxOptions, default: str) -> str:
    """The context of files that a container with these options can use; "" if it is not known before the container runs.

    `default`: that of files of containers on this host. Role and type of the options are those of processes. The options have
    no `options_problem`.
    """
    parts = default.split(":", _MAX_PARTS - 1)
    if not options.level or len(parts) < _MAX_PARTS - 1:
        return ""
    return ":".join((options.user or parts[0], parts[1], parts[2], options.level))


def mount_option(context: str) -> tuple[str, ...]:
    """The mount option for a context; none for ""."""
    return (f'context="{context}"',) if context else ()


def is_context_problem(error: str) -> bool:
    """Whether the error is that of `conflict` or `unmount_awaited`."""
    return error.startswith(_CONFLICT) or error.endswith(_OTHER_LABEL)


def conflict(volume: str, there: str, wanted: str) -> str:
    """Why a volume cannot be mounted for a pod: another pod wants it with another context."""
    return f'{_CONFLICT}{volume}: "{there}" and "{wanted}"'


def short_mode(modes: Collection[str]) -> str:
    """The access mode of a persistent volume in metrics: of several, the widest."""
    return next((short for mode, short in _SHORT.items() if mode in modes), "unknown")


def unmount_awaited(device: str) -> str:
    """Why a volume cannot be mounted for a pod yet: it is mounted with another context."""
    return f'waiting for unmount of volume "{device}", because it is already mounted to a {_OTHER_LABEL}'
