"""The values that the Node's registration and status are made from."""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.api.core import ContainerImage, NodeSystemInfo, Taint
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.evictions import NodePressure
from pykubelet.base.model.node import NodeView, RuntimeReady
from pykubelet.edges.kubeapi.listwatch import WatchPeriods

#: Annotation and taint keys of a Node.
CONTROLLER_ATTACH = "volumes.kubernetes.io/controller-managed-attach-detach"
OBJECT_TTL = "node.alpha.kubernetes.io/ttl"
PROVIDED_NODE_IP = "alpha.kubernetes.io/provided-node-ip"
UNINITIALIZED = Taint(key="node.cloudprovider.kubernetes.io/uninitialized", value="true", effect="NoSchedule")


class NodeRegistration(Value):
    """The facts of the node's registration, which do not change while the agent runs.

    `labels`: the node's own and the given ones. `node_ips`: of `--node-ip`. `info`: without the runtime's version. `features`:
    the declared features (KEP-5328). `max_images` < 0: all. `reset_extended`: set extended resources of an earlier run to 0,
    because they have no plugin any more. `local_storage`: `localStorageCapacityIsolation`, whether
    pods can request `ephemeral-storage`. `reads_forbidden`: when the API server forbids to create the Node, see whether it
    exists (off with the gate KubeletRegistrationGetOnExistsOnly). `decimal_storage`: as in `Behavior`.
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
    local_storage: bool = True
    reads_forbidden: bool = True
    decimal_storage: bool = True


class NodeInputs(Value):
    """The inputs of the node's status, at one moment. `volumes_in_use`: as `Mounts.in_use`; None keeps what the Node shows.
    `shutting_down`: the machine is shutting down."""

    view: NodeView
    runtime: RuntimeReady
    pressure: NodePressure
    images: tuple[ContainerImage, ...] = ()
    volumes_in_use: tuple[str, ...] | None = None
    shutting_down: bool = False


class NodePeriods(Value):
    """Seconds.

    `update`: between two comparisons of the status. `report`: until an unchanged status is sent again. `retry`: the first
    back-off after a failed request, doubling to `retry_max`. `images`: between two lists of images. `first_answer`: how long to
    wait for the runtime's first answer before a status is sent without it. `watch`: the periods of the Node's watch.
    """

    update: float = 10.0
    report: float = 300.0
    retry: float = 0.1
    retry_max: float = 7.0
    images: float = 30.0
    first_answer: float = 3.0
    watch: WatchPeriods = WatchPeriods()
