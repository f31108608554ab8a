"""Pod fields and container resources as text, for environment variables. Pure.

Source: Kubernetes docs, "Downward API". Files of downwardAPI volumes are another room's; they know fewer fields.
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.act.runtime.context import AnyContainer, RenderError
from pykubelet.base.api.core import Container, ObjectFieldSelector, Pod, Quantity, ResourceFieldSelector
from pykubelet.base.api.labels import qualified_name_errors
from pykubelet.base.api.quantity import milli_value, value

DEFAULT_GRACE_S = 30
_HUGE_PAGES = "hugepages-"
_PLAIN = ("cpu", "memory", "ephemeral-storage")
# What stands in for a limit that is not set; pods cannot limit ephemeral storage as a whole.
_POD_LEVEL = ("cpu", "memory")


def field_text(pod: Pod, selector: ObjectFieldSelector, pod_ips: tuple[str, ...], host_ips: tuple[str, ...]) -> str:
    """The value of a `fieldRef`. RenderError for a field that is not offered."""
    if selector.apiVersion not in ("", "v1"):
        raise RenderError(f"unsupported pod version: {selector.apiVersion}")
    path = selector.fieldPath
    metadata = pod.metadata
    match path:
        case "metadata.name":
            return metadata.name
        case "metadata.namespace":
            return metadata.namespace
        case "metadata.uid":
            return metadata.uid
        case "spec.nodeName" | "spec.host":
            return pod.spec.nodeName
        case "spec.serviceAccountName":
            return pod.spec.serviceAccountName
        case "status.podIP":
            return pod_ips[0] if pod_ips else ""
        case "status.podIPs":
            return ",".join(pod_ips)
        case "status.hostIP" | "status.hostIPs":
            if not host_ips:
                raise RenderError("the node has no known address")
            return host_ips[0] if path == "status.hostIP" else ",".join(host_ips)
        case _:
            return _entry_text(pod, path)


def _entry_text(pod: Pod, path: str) -> str:
    """One label or annotation; "" when it is not there."""
    name, found, rest = path.partition("['")
    if not found or not name or not rest.endswith("']"):
        raise RenderError(f"field label not supported: {path}")
    key = rest[:-2]
    if name == "metadata.annotations":
        entries, problems = pod.metadata.annotations, qualified_name_errors(key.lower())
    elif name == "metadata.labels":
        entries, problems = pod.metadata.labels, qualified_name_errors(key)
    else:
        raise RenderError(f"field label does not support subscript: {path}")
    if problems:
        raise RenderError(f"invalid key subscript in {path}: {';'.join(problems)}")
    return entries.get(key, "")


def resource_text(
    pod: Pod, container: AnyContainer, selector: ResourceFieldSelector, allocatable: Mapping[str, int]
) -> str:
    """The value of a `resourceFieldRef` in whole divisors, rounded up.

    `container`: meant when the selector names none. `allocatable`: the node's, cpu in milli and the others in bytes; it
    (or the pod's own limit) stands in for a limit of the container that is not set. RenderError for an unknown resource.
    """
    chosen = container if not selector.containerName else _find(pod, selector.containerName)
    which, _, resource = selector.resource.partition(".")
    is_huge = resource.startswith(_HUGE_PAGES)
    if which not in ("limits", "requests") or not (resource in _PLAIN or is_huge):
        raise RenderError(f"unsupported container resource : {selector.resource}")
    resources = chosen.resources
    listed = {} if resources is None else resources.limits if which == "limits" else resources.requests
    amount = _amount(listed, resource)
    if amount == 0 and which == "limits" and not is_huge:
        amount = _stand_in(pod, resource, allocatable)
    divisor = _divisor(selector.divisor, resource)
    return str(-(-amount // divisor))


def _find(pod: Pod, name: str) -> Container:
    for container in (*pod.spec.containers, *pod.spec.initContainers):
        if container.name == name:
            return container
    raise RenderError(f"container {name} not found")


def _amount(listed: Mapping[str, Quantity], resource: str) -> int:
    return milli_value(listed.get(resource)) if resource == "cpu" else value(listed.get(resource))


def _stand_in(pod: Pod, resource: str, allocatable: Mapping[str, int]) -> int:
    of_node = allocatable.get(resource, 0)
    if of_node and resource in _POD_LEVEL and pod.spec.resources is not None:
        return _amount(pod.spec.resources.limits, resource) or of_node
    return of_node


def _divisor(divisor: Quantity | None, resource: str) -> int:
    one = 1000 if resource == "cpu" else 1
    return (milli_value(divisor) if resource == "cpu" else value(divisor)) or one
