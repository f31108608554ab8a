"""What report/node tells the API server, as private values."""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.api.core import ContainerImage, NodeSystemInfo, Taint
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.node import NodeView, RuntimeReady
from pykubelet.base.model.pressure import Pressure

#: Annotation and taint keys of a Node.
CONTROLLER_ATTACH = "volumes.kubernetes.io/controller-managed-attach-detach"
OBJECT_TTL = "node.alpha.kubernetes.io/ttl"
PROVIDED_NODE_IP = "alpha.kubernetes.io/provided-node-ip"
UNINITIALIZED = Taint(key="node.cloudprovider.kubernetes.io/uninitialized", value="true", effect="NoSchedule")


class Registration(Value):
    """How the node presents itself; nothing of it changes while the agent runs.

    `labels`: the node's own and the given ones. `node_ips`: of `--node-ip`. `info`: without
    the runtime's version. `features`: declared ones (KEP-5328). `max_images` < 0: all. `reset_extended`: no plugin can
    stand behind extended resources that an earlier life of the node has left. `root_dir`: `--root-dir`. `local_storage`:
    `localStorageCapacityIsolation`, the node has `ephemeral-storage` to request.
    """

    name: str
    hostname: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    register: bool = True
    provider_id: str = ""
    external_cloud: bool = False
    node_ips: tuple[str, ...] = ()
    controller_attach: bool = True
    info: NodeSystemInfo = field(default_factory=NodeSystemInfo)
    port: int = 10250
    features: tuple[str, ...] = ()
    max_images: int = 50
    reset_extended: bool = True
    root_dir: str = "/var/lib/kubelet"
    local_storage: bool = True


class NodeInputs(Value):
    """What the node's status is made of, at one moment. `are_volumes_mounted`: some that another kubelet attached are."""

    view: NodeView
    runtime: RuntimeReady
    pressure: Pressure
    images: tuple[ContainerImage, ...] = ()
    are_volumes_mounted: bool = False


class NodePeriods(Value):
    """Seconds: between two looks at what nobody announces; until an unchanged status is told again; before a failed
    request is repeated, doubling; for the runtime's first answer before the status is told without it."""

    update: float = 10.0
    report: float = 300.0
    retry: float = 0.1
    retry_max: float = 7.0
    images: float = 30.0
    first_answer: float = 3.0
