"""Takes the API objects that a pod's start needs from `Content`: ConfigMaps, Secrets, Services, its RuntimeClass. Pure.

Owns: how an answer in `Content` becomes a value for rendering, and the environment variables of Services.
Source: the Kubernetes documentation "Service" (environment variables), "Runtime Class", "Secrets".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from pykubelet.act.runtime.render.context import AnyContainer, ApiObjects, Unavailable
from pykubelet.act.runtime.start_error import ContainerStartError
from pykubelet.base.api.core import ConfigMap, Pod, RuntimeClass, Secret, Service
from pykubelet.base.model.content import Absent, Content, ContentKind, Found, ObjectKey, Present, Unreadable
from pykubelet.base.model.needs import environment_keys, runtime_class_key
from pykubelet.base.model.reasons import CREATE_POD_SANDBOX_ERROR
from pykubelet.base.model.roster import is_static

T = TypeVar("T")

#: Every pod gets the environment variables of this service of the namespace `default`.
MASTER = "kubernetes"
MASTER_NAMESPACE = "default"
#: Ports of services of which variables are made. Those of more do not fit into a program's environment.
MAX_SERVICE_PORTS = 10_000


def environment_objects(pod: Pod, container: AnyContainer, content: Content) -> ApiObjects | None:
    """The objects that the container's environment refers to; None without an API server. All must have answers."""
    if not content.available:
        return None
    config_maps: dict[str, ConfigMap | Unavailable] = {}
    secrets: dict[str, Secret | Unavailable] = {}
    for key in environment_keys(pod, container):
        if key.kind is ContentKind.CONFIG_MAP:
            config_maps[key.name] = _value(content, key, ConfigMap)
        else:
            secrets[key.name] = _value(content, key, Secret)
    return ApiObjects(config_maps, secrets)


def _value(content: Content, key: ObjectKey, kind: type[T]) -> T | Unavailable:
    match content.objects.get(key):
        case Present(value) if isinstance(value, kind):
            return value
        case Absent(message):
            return Unavailable(message, not_found=True)
        case Unreadable(message):
            return Unavailable(message)
        case found:
            raise RuntimeError(f"asked for {key} and found {_type_of(found)}")


def _type_of(found: Found | None) -> str:
    """The type of the answer, without its content."""
    return type(found.value if isinstance(found, Present) else found).__name__


def service_environment(pod: Pod, content: Content) -> dict[str, str] | None:
    """The variables of Services; empty without an API server, None while the API server's services are not known.

    Raises ContainerStartError if they have more than `MAX_SERVICE_PORTS`.
    """
    if not content.available:
        return {}
    if content.services is None:
        return None
    links = bool(pod.spec.enableServiceLinks)
    chosen: dict[str, Service] = {}
    for service in content.services:
        name, namespace = service.metadata.name, service.metadata.namespace
        if service.spec.clusterIP in ("", "None"):
            continue
        if namespace == MASTER_NAMESPACE and name == MASTER:
            chosen.setdefault(name, service)
        elif namespace == pod.metadata.namespace and links:
            chosen[name] = service
    ports = sum(len(service.spec.ports) for service in chosen.values())
    if ports > MAX_SERVICE_PORTS:
        raise ContainerStartError(
            f"the services of the pod's namespace have {ports} ports, and variables are made of {MAX_SERVICE_PORTS} at most: "
            "set enableServiceLinks to false"
        )
    return service_variables(chosen.values())


def service_variables(services: Iterable[Service]) -> dict[str, str]:
    """`{NAME}_SERVICE_HOST`, `{NAME}_SERVICE_PORT` and the older variables of linked containers."""
    variables: dict[str, str] = {}
    for service in services:
        name, address = _variable(service.metadata.name), service.spec.clusterIP
        host = f"[{address}]" if ":" in address else address
        variables[f"{name}_SERVICE_HOST"] = address
        for index, port in enumerate(service.spec.ports):
            protocol = port.protocol or "TCP"
            url = f"{protocol.lower()}://{host}:{port.port}"
            if index == 0:
                variables[f"{name}_SERVICE_PORT"] = str(port.port)
                variables[f"{name}_PORT"] = url
            if port.name:
                variables[f"{name}_SERVICE_PORT_{_variable(port.name)}"] = str(port.port)
            prefix = f"{name}_PORT_{port.port}_{protocol.upper()}"
            variables[prefix] = url
            variables[f"{prefix}_PROTO"] = protocol.lower()
            variables[f"{prefix}_PORT"] = str(port.port)
            variables[f"{prefix}_ADDR"] = address
    return variables


def _variable(name: str) -> str:
    return name.upper().replace("-", "_")


def waits_for_services(pod: Pod, content: Content) -> bool:
    """Whether the pod must wait until the services were listed once; static pods do not wait."""
    return content.available and content.services is None and not is_static(pod)


def unanswered(keys: Iterable[ObjectKey], content: Content) -> ObjectKey | None:
    """The first of these keys without an answer in `Content`; None if all have one that can have one."""
    return next((key for key in keys if content.may_answer(key) and key not in content.objects), None)


def runtime_handler(pod: Pod, content: Content) -> str:
    """The handler of the pod's RuntimeClass; "" for the runtime's default. Raises ContainerStartError for a class that is not
    known: its isolation was asked for."""
    key = runtime_class_key(pod)
    if key is None:
        return ""
    match content.objects.get(key):
        case Present(RuntimeClass() as found):
            return found.handler
        case Absent(message):
            raise ContainerStartError(message, CREATE_POD_SANDBOX_ERROR)
        case Unreadable(message):
            raise ContainerStartError(f"failed to lookup RuntimeClass {key.name}: {message}", CREATE_POD_SANDBOX_ERROR)
        case None if not content.may_answer(key):
            raise ContainerStartError(f"nothing knows the RuntimeClass {key.name}", CREATE_POD_SANDBOX_ERROR)
        case found:
            raise RuntimeError(f"asked for {key} and found {_type_of(found)}")
