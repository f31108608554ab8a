"""Pods and circumstances that the tests of rendering start from."""

from __future__ import annotations

from typing import Any

import msgspec

from pykubelet.act.runtime.render.context import ContainerContext, RenderSettings
from pykubelet.base.api import core
from pykubelet.base.api.codec import from_object
from pykubelet.base.model.node import NodeView
from pykubelet.base.model.paths import Paths

GIB = 1 << 30

NODE = NodeView(
    name="node-1",
    hostname="node-1",
    ips=("10.0.0.1",),
    capacity={"cpu": 4000, "memory": 16 * GIB},
    allocatable={"cpu": 3500, "memory": 15 * GIB, "ephemeral-storage": 100 * GIB},
)
SETTINGS = RenderSettings(
    paths=Paths(root="/var/lib/kubelet", logs="/var/log/pods"),
    node=NODE,
    cluster_domain="cluster.local",
    cluster_dns=("10.96.0.10",),
    resolv_conf="nameserver 192.0.2.1\nsearch example.org\noptions timeout:2\n",
)
CONTEXT = ContainerContext(image_ref="sha256:abc", pod_ips=("10.1.0.7",), host_ips=("10.0.0.1",))


def make_container(**fields: Any) -> core.Container:
    return from_object(core.Container, {"name": "app", "image": "busybox:1", **fields})


def make_pod(
    *containers: core.Container,
    metadata: dict[str, Any] | None = None,
    init: tuple[core.Container, ...] = (),
    **spec: Any,
) -> core.Pod:
    """A pod with one plain container unless others are given; `spec` in the words of a manifest."""
    plain = msgspec.to_builtins
    given = {
        "metadata": {"name": "web", "namespace": "shop", "uid": "uid-1", **(metadata or {})},
        "spec": {
            "enableServiceLinks": True,
            "dnsPolicy": "ClusterFirst",
            "containers": [plain(container) for container in containers or (make_container(),)],
            "initContainers": [plain(container) for container in init],
            **spec,
        },
    }
    return from_object(core.Pod, given)


def with_resources(name: str = "app", *, requests: Any = None, limits: Any = None, **fields: Any) -> core.Container:
    resources = {"requests": requests or {}, "limits": limits or {}}
    return make_container(name=name, resources=resources, **fields)
