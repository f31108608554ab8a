"""What an API server warns of in a pod that it admits. Pure. Source: KEP-1693; the API reference of Pod."""

from __future__ import annotations

from collections.abc import Iterator

from pykubelet.base.api.quantity import QuantityError, parse
from pykubelet_local_api.objects import Json

_OLD_LABELS = {
    "beta.kubernetes.io/arch": ("v1.14", "kubernetes.io/arch"),
    "beta.kubernetes.io/os": ("v1.14", "kubernetes.io/os"),
    "beta.kubernetes.io/instance-type": ("v1.17", "node.kubernetes.io/instance-type"),
    "failure-domain.beta.kubernetes.io/region": ("v1.17", "topology.kubernetes.io/region"),
    "failure-domain.beta.kubernetes.io/zone": ("v1.17", "topology.kubernetes.io/zone"),
}
_OLD_VOLUMES = {
    "gitRepo": "deprecated in v1.11, and disabled by default in v1.33+",
    "glusterfs": "deprecated in v1.25, non-functional in v1.26+",
    "photonPersistentDisk": "deprecated in v1.11, non-functional in v1.16+",
    "scaleIO": "deprecated in v1.16, non-functional in v1.22+",
    "storageos": "deprecated in v1.22, non-functional in v1.25+",
    "cephfs": "deprecated in v1.28, non-functional in v1.31+",
    "rbd": "deprecated in v1.28, non-functional in v1.31+",
    "flocker": "deprecated in v1.22, non-functional in v1.25+",
    "quobyte": "deprecated in v1.22, non-functional in v1.25+",
}
_APPARMOR = "container.apparmor.security.beta.kubernetes.io/"
_BYTES = ("memory", "ephemeral-storage")
#: So many warnings of one pod at most: two of its lists multiply.
MAX_WARNINGS = 100


def api_warnings(pod: Json) -> list[str]:
    """The warnings about a pod with its defaults, in the API server's words."""
    found: list[str] = []
    for warning in _warnings(pod["metadata"], pod["spec"]):
        found.append(warning)
        if len(found) == MAX_WARNINGS:
            break
    return found


def _warnings(meta: Json, spec: Json) -> Iterator[str]:
    for key in sorted(spec.get("nodeSelector") or {}):
        if key in _OLD_LABELS:
            since, other = _OLD_LABELS[key]
            yield f'spec.nodeSelector[{key}]: deprecated since {since}; use "{other}" instead'
    for key in sorted(meta.get("annotations") or {}):
        if key.startswith(_APPARMOR):
            yield f'metadata.annotations[{key}]: deprecated since v1.30; use the "appArmorProfile" field instead'
    for i, volume in enumerate(spec.get("volumes") or ()):
        for source, text in _OLD_VOLUMES.items():
            if source in volume:
                yield f"spec.volumes[{i}].{source}: {text}"
    for i, constraint in enumerate(spec.get("topologySpreadConstraints") or ()):
        if constraint.get("labelSelector") is None:
            path = f"spec.topologySpreadConstraints[{i}].labelSelector"
            yield f"{path}: a null labelSelector results in matching no pod"
    names: dict[str, str] = {}
    for field in ("initContainers", "containers"):
        for i, container in enumerate(spec.get(field) or ()):
            at = f"spec.{field}[{i}]"
            yield from _fractions(container, at)
            yield from _hidden_variables(container, at)
            yield from _ports(container, at)
            yield from _port_names(container, at, names)


def _fractions(container: Json, at: str) -> Iterator[str]:
    resources = container.get("resources") or {}
    for name in _BYTES:
        for field in ("limits", "requests"):
            amount = (resources.get(field) or {}).get(name)
            try:
                if amount is not None and parse(amount).milli_value() % 1000:
                    path = f"{at}.resources.{field}[{name}]"
                    yield f'{path}: fractional byte value "{amount}" is invalid, must be an integer'
            except QuantityError:
                continue


def _hidden_variables(container: Json, at: str) -> Iterator[str]:
    seen: set[str] = set()
    for i, variable in enumerate(container.get("env") or ()):
        name, text = str(variable.get("name")), str(variable.get("value") or "")
        uses_it = "valueFrom" not in variable and f"$({name})" in text and text != f"$({name})"
        if name in seen and not uses_it:
            yield f'{at}.env[{i}]: hides previous definition of "{name}", which may be dropped when using apply'
        seen.add(name)


def _ports(container: Json, at: str) -> Iterator[str]:
    """Ports that are listed twice, or overlap because one of them has no address."""
    earlier: dict[tuple[object, object, object], dict[object, list[int]]] = {}
    for i, port in enumerate(container.get("ports") or ()):
        address = port.get("hostIP") or ""
        key = (port.get("containerPort"), port.get("protocol"), port.get("hostPort") or 0)
        if address and not port.get("hostPort"):
            shown = f"{{Name:{port.get('name') or ''} HostPort:0 ContainerPort:{key[0]} Protocol:{key[1]} HostIP:{address}}}"
            yield f"{at}.ports[{i}]: hostIP set without hostPort: {shown}"
        # each of these earlier ports is worth a warning, so their number bounds the work
        by_address = earlier.setdefault(key, {})
        overlapping = by_address if not address else {other: by_address.get(other, []) for other in (address, "")}
        found = sorted((j, other) for other, numbers in overlapping.items() for j in numbers)
        for j, other in found:
            what = "duplicate" if other == address else "overlapping"
            yield f"{at}.ports[{i}]: {what} port definition with {at}.ports[{j}]"
        by_address.setdefault(address, []).append(i)


def _port_names(container: Json, at: str, names: dict[str, str]) -> Iterator[str]:
    """Names of ports that an earlier container has too. Of init containers, only sidecars count."""
    if at.startswith("spec.initContainers") and container.get("restartPolicy") != "Always":
        return
    for i, port in enumerate(container.get("ports") or ()):
        name = port.get("name")
        if not name:
            continue
        first = names.setdefault(str(name), f"{at}.ports[{i}]")
        if not first.startswith(f"{at}."):
            yield (
                f'{at}.ports[{i}]: duplicate port name "{name}" with {first}, '
                f"services and probes that select ports by name will use {first}"
            )
