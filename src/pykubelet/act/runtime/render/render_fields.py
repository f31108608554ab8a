"""Pod fields and container resources as text, for environment variables. Pure.

Source: Kubernetes docs, "Downward API". `provide/volumes` writes the files of downwardAPI volumes, which support fewer
fields.
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.act.runtime.render.context import AnyContainer
from pykubelet.act.runtime.start_error import ContainerStartError
from pykubelet.base.api.core import ObjectFieldSelector, Pod, ResourceFieldSelector
from pykubelet.base.api.fieldpaths import split_subscript
from pykubelet.base.model import fieldrefs
from pykubelet.base.model.fieldrefs import FieldRefError, metadata_text


def field_text(pod: Pod, selector: ObjectFieldSelector, pod_ips: tuple[str, ...], host_ips: tuple[str, ...]) -> str:
    """The value of a `fieldRef`. ContainerStartError for an unsupported field."""
    if selector.apiVersion not in ("", "v1"):
        raise ContainerStartError(f"unsupported pod version: {selector.apiVersion}")
    path = selector.fieldPath
    match path:
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
                raise ContainerStartError("the node has no known address")
            return host_ips[0] if path == "status.hostIP" else ",".join(host_ips)
    try:
        text = metadata_text(pod, path)
    except FieldRefError as error:
        raise ContainerStartError(str(error)) from error
    if text is None:
        problem = "not supported" if split_subscript(path) is None else "does not support subscript"
        raise ContainerStartError(f"field label {problem}: {path}")
    return text


def resource_text(
    pod: Pod, container: AnyContainer, selector: ResourceFieldSelector, allocatable: Mapping[str, int]
) -> str:
    """The value of a `resourceFieldRef`; without a name it refers to `container`. ContainerStartError for an invalid reference."""
    try:
        return fieldrefs.variable_resource_text(pod, container, selector, allocatable)
    except FieldRefError as error:
        raise ContainerStartError(str(error)) from error
