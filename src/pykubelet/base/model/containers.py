"""The containers of a pod by name, the field paths by which Events refer to them, and the hash that detects a changed definition. Pure.

The hash is that of the reference kubelet (1.31 and later), so containers keep running when this agent takes over the node
from it, or it from this agent: FNV-1a (32 bits) over the Go dump `([]uint8)[123 34 ...]` of the bytes of the JSON object
`{"image":...,"name":...}`. No other field of the definition counts. The tests contain the reference kubelet's test value.
"""

from __future__ import annotations

import json
from functools import lru_cache

from pykubelet.base.api.core import Container, EphemeralContainer, Pod
from pykubelet.base.kit.fnv import fnv1a_32
from pykubelet.base.kit.values import remember_last


def container_field_path(pod: Pod, name: str) -> str:
    """`spec.containers{name}`, `spec.initContainers{name}` or `spec.ephemeralContainers{name}`; empty when unknown."""
    found = _by_name(pod).get(name)
    return f"spec.{found[0]}{{{name}}}" if found is not None else ""


def find_container(pod: Pod, name: str) -> Container | EphemeralContainer | None:
    """The container of that name among regular, init and ephemeral ones."""
    found = _by_name(pod).get(name)
    return found[1] if found is not None else None


def is_regular(pod: Pod, name: str) -> bool:
    """Whether the container of that name is neither an init nor an ephemeral one."""
    found = _by_name(pod).get(name)
    return found is not None and found[0] == "containers"


@remember_last
def _by_name(pod: Pod) -> dict[str, tuple[str, Container | EphemeralContainer]]:
    """The containers by name, each with the list that it is in."""
    spec = pod.spec
    found: dict[str, tuple[str, Container | EphemeralContainer]] = {}
    for where, containers in (
        ("ephemeralContainers", spec.ephemeralContainers),
        ("initContainers", spec.initContainers),
        ("containers", spec.containers),
    ):
        found.update((container.name, (where, container)) for container in containers)
    return found


def every_container(pod: Pod) -> tuple[Container | EphemeralContainer, ...]:
    """All regular, init and ephemeral containers of the pod."""
    return (*pod.spec.containers, *pod.spec.initContainers, *pod.spec.ephemeralContainers)


# Go escapes these characters in JSON strings, Python does not.
_GO_ESCAPES = str.maketrans(
    {char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}  # both escape all others in the same way
)


def container_hash(container: Container | EphemeralContainer) -> str:
    """The hash in lower-case hexadecimal without leading zeros, as in the annotation `io.kubernetes.container.hash`."""
    return _hash(container.image, container.name)


@lru_cache(maxsize=4096)
def _hash(image: str, name: str) -> str:
    text = json.dumps({"image": image, "name": name}, separators=(",", ":"), ensure_ascii=False)
    dump = "([]uint8)[" + " ".join(map(str, text.translate(_GO_ESCAPES).encode())) + "]"
    return f"{fnv1a_32(dump.encode()):x}"


def container_kind(pod: Pod, container: Container | EphemeralContainer) -> str:
    """The kind of a container as metrics name it."""
    if isinstance(container, EphemeralContainer):
        return "ephemeral_container"
    is_init = any(init.name == container.name for init in pod.spec.initContainers)
    return "init_container" if is_init else "container"
