"""Writes labels and annotations of sandboxes and containers, and reads annotations back. Pure.

They are read back for containers whose pod is not known any more: after a restart of the agent, only the annotations show
how to stop such a pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from pykubelet.act.runtime.render.context import AnyContainer
from pykubelet.base.api.core import ContainerPort, HTTPGetAction, LifecycleHandler, Pod
from pykubelet.base.kit.values import Value
from pykubelet.base.model import labels
from pykubelet.base.model.containers import container_hash

T = TypeVar("T")


def sandbox_labels(pod: Pod) -> dict[str, str]:
    """The CRI labels of a sandbox: the pod's labels, name, namespace and UID."""
    return {**pod.metadata.labels, **_identity(pod)}


def container_labels(pod: Pod, container: AnyContainer) -> dict[str, str]:
    """The CRI labels of one container: its pod's identity and its name."""
    return {**_identity(pod), labels.CONTAINER_NAME: container.name}


def _identity(pod: Pod) -> dict[str, str]:
    metadata = pod.metadata
    return {
        labels.POD_NAME: metadata.name,
        labels.POD_NAMESPACE: metadata.namespace,
        labels.POD_UID: metadata.uid,
    }


def container_annotations(
    pod: Pod, container: AnyContainer, restart_count: int, from_devices: Mapping[str, str]
) -> dict[str, str]:
    """The CRI annotations of one container. `from_devices`: those of device plugins, which cannot replace the agent's own."""
    annotations = {
        **from_devices,
        labels.CONTAINER_HASH: container_hash(container),
        labels.CONTAINER_RESTART_COUNT: str(restart_count),
        labels.CONTAINER_TERMINATION_MESSAGE_PATH: container.terminationMessagePath,
        labels.CONTAINER_TERMINATION_MESSAGE_POLICY: container.terminationMessagePolicy,
    }
    if pod.metadata.deletionGracePeriodSeconds is not None:
        annotations[labels.POD_DELETION_GRACE_PERIOD] = str(pod.metadata.deletionGracePeriodSeconds)
    if pod.spec.terminationGracePeriodSeconds is not None:
        annotations[labels.POD_TERMINATION_GRACE_PERIOD] = str(pod.spec.terminationGracePeriodSeconds)
    if container.lifecycle is not None and container.lifecycle.preStop is not None:
        annotations[labels.CONTAINER_PRE_STOP_HANDLER] = _json(_handler(container.lifecycle.preStop))
    if container.ports:
        annotations[labels.CONTAINER_PORTS] = _json([_port(port) for port in container.ports])
    return annotations


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in ("", None, (), 0)}


def _port(port: ContainerPort) -> dict[str, Any]:
    """A port with the reference kubelet's order of fields; that of the structs is alphabetical."""
    return {
        **_given({"name": port.name, "hostPort": port.hostPort}),
        "containerPort": port.containerPort,
        **_given({"protocol": port.protocol, "hostIP": port.hostIP}),
    }


def _handler(handler: LifecycleHandler) -> dict[str, Any]:
    """A hook with the reference kubelet's order of fields."""
    return _given(
        {
            "exec": handler.exec,
            "httpGet": _http_get(handler.httpGet) if handler.httpGet is not None else None,
            "tcpSocket": handler.tcpSocket,
            "sleep": handler.sleep,
        }
    )


def _http_get(action: HTTPGetAction) -> dict[str, Any]:
    return {
        **_given({"path": action.path}),
        "port": action.port,
        **_given({"host": action.host, "scheme": action.scheme, "httpHeaders": action.httpHeaders}),
    }


class RestoredContainer(Value):
    """The fields in a container's annotations. None or "": missing or invalid."""

    hash: str = ""
    restart_count: int = 0
    deletion_grace_s: int | None = None
    termination_grace_s: int | None = None
    termination_message_path: str = ""
    termination_message_policy: str = ""
    pre_stop: LifecycleHandler | None = None
    ports: tuple[ContainerPort, ...] = ()


def restored_container(annotations: Mapping[str, str]) -> RestoredContainer:
    """Read the annotations of a container. Invalid values count as missing."""
    return RestoredContainer(
        hash=annotations.get(labels.CONTAINER_HASH, ""),
        restart_count=_number(annotations, labels.CONTAINER_RESTART_COUNT) or 0,
        deletion_grace_s=_number(annotations, labels.POD_DELETION_GRACE_PERIOD),
        termination_grace_s=_number(annotations, labels.POD_TERMINATION_GRACE_PERIOD),
        termination_message_path=annotations.get(labels.CONTAINER_TERMINATION_MESSAGE_PATH, ""),
        termination_message_policy=annotations.get(labels.CONTAINER_TERMINATION_MESSAGE_POLICY, ""),
        pre_stop=_decoded(annotations, labels.CONTAINER_PRE_STOP_HANDLER, LifecycleHandler),
        ports=_decoded(annotations, labels.CONTAINER_PORTS, tuple[ContainerPort, ...]) or (),
    )


def _number(annotations: Mapping[str, str], key: str) -> int | None:
    try:
        return int(annotations[key])
    except (KeyError, ValueError):
        return None


def _decoded(annotations: Mapping[str, str], key: str, kind: type[T]) -> T | None:
    text = annotations.get(key)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError:
        return None
