"""A node, pods and services as the streams see them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pykubelet_local_api.objects import Json, name_of, namespace_of

_PLURALS = {"Node": "nodes", "Pod": "pods", "Service": "services", "Endpoints": "endpoints"}


class Objects:
    """A `View` of the given objects."""

    now = 0.0

    def __init__(self, *objects: Json) -> None:
        self._objects = {(_PLURALS[each["kind"]], namespace_of(each), name_of(each)): each for each in objects}

    def get(self, resource: str, namespace: str, name: str) -> Json | None:
        return self._objects.get((resource, namespace, name))

    def list(self, resource: str, namespace: str = "") -> Iterable[Json]:
        return [found for key, found in self._objects.items() if key[0] == resource and namespace in ("", key[1])]


def node(port: int, host: str = "127.0.0.1", name: str = "n1") -> Json:
    return {
        "kind": "Node",
        "metadata": {"name": name},
        "status": {
            "addresses": [{"type": "Hostname", "address": name}, {"type": "InternalIP", "address": host}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        },
    }


def pod(name: str = "x", ip: str = "10.1.0.7", *, ready: bool = True, **spec: Any) -> Json:
    return {
        "kind": "Pod",
        "metadata": {"namespace": "default", "name": name, "labels": {"app": "web"}},
        "spec": {"nodeName": "n1", "containers": [{"name": "app"}], **spec},
        "status": {
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


def service(*ports: Json, selector: dict[str, str] | None = None) -> Json:
    return {
        "kind": "Service",
        "metadata": {"namespace": "default", "name": "s"},
        "spec": {"ports": list(ports), "selector": {"app": "web"} if selector is None else selector},
    }
