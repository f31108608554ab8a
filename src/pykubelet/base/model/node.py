"""The node as its pods see it (`NodeView`), the API server's Node (`ApiNode`), and whether the runtime and the API server
answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pykubelet.base.api.core import NodeAddress, Taint
from pykubelet.base.kit.values import Value, field

DEFAULT_OBJECT_TTL_S = 60.0


class ApiNode(Value):
    """The API server's Node of this node. The fields are empty while there is no Node, and always without an API server.

    `registered`: a Node of this name exists. `addresses`: those of its status. `object_ttl_s`: for how many seconds ConfigMaps
    and Secrets may be used without reading them again, where they are not watched (annotation `node.alpha.kubernetes.io/ttl`).
    `deleting`: the Node has a deletion timestamp. `read_at`: the monotonic second at which the newest request that answers a
    `NodeWanted` began; None before the first. The other fields are not older than that. `read_error`: why that request failed.
    `volumes_in_use`, `volumes_attached`: unique names of volumes in its status, the latter with the path of the device.
    """

    registered: bool = False
    uid: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    addresses: tuple[NodeAddress, ...] = ()
    object_ttl_s: float = DEFAULT_OBJECT_TTL_S
    deleting: bool = False
    read_at: float | None = None
    read_error: str = ""
    volumes_in_use: frozenset[str] = frozenset()
    volumes_attached: Mapping[str, str] = field(default_factory=dict)


class NodeView(Value):
    """The node's name, addresses (primary family first), and resources: `cpu` in milli, the others in bytes or pieces.

    `labels`: of the API server's Node if there is one, else those that the node would register with.
    `addresses`: those that a cloud provider has written into the Node; None: there is no provider, and `ips` are used.
    `registered`, `uid`, `taints`, `read_at`, `read_error`, `deleting`: as in `ApiNode`.
    `warning`: what the machine lacks and can do without, shown with the condition `Ready`.
    """

    name: str
    hostname: str
    ips: tuple[str, ...] = ()
    capacity: Mapping[str, int] = field(default_factory=dict)
    allocatable: Mapping[str, int] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    page_sizes: tuple[int, ...] = ()
    registered: bool = False
    uid: str = ""
    taints: tuple[Taint, ...] = ()
    read_at: float | None = None
    read_error: str = ""
    addresses: tuple[NodeAddress, ...] | None = None
    deleting: bool = False
    warning: str = ""

    @property
    def host_ips(self) -> tuple[str, ...]:
        """The node's own addresses as its pods get them: one of each family, the primary one first."""
        listed = [[a.address for a in self.addresses or () if a.type == kind] for kind in ("InternalIP", "ExternalIP")]
        ips = (*listed[0], *listed[1])
        if not ips:
            return self.ips
        others = (ip for ip in ips if (":" in ip) != (":" in ips[0]))
        return (ips[0], *((other,) if (other := next(others, None)) is not None else ()))


class NodeWanted(Value):
    """Posted to report/node: a decision needs the Node as the API server has it now, not as the watch last delivered it."""


class HandlerFeatures(Value):
    recursive_read_only_mounts: bool = False
    user_namespaces: bool = False


class RuntimeReady(Value):
    """The status that the container runtime reports of itself. Errors are empty if there is none.

    `checked`: the runtime was asked at least once. `epoch` grows with every restart of the runtime that the agent noticed.
    `answer_error`: why the last status call got no answer; this becomes a `runtime_error` only after a while. `away`: nothing
    listened on the runtime's socket, and it has not answered since. `since`: the wall second at which this state began.
    `pleg_error`: why the PLEG is not healthy. `unseen_since`: the wall second of the last relist, or of the agent's start, once
    the next relist is late. `next_at`: when the runtime is asked again; a change of this alone wakes no reader.
    """

    checked: bool = False
    runtime_error: str = "container runtime status check may not have completed yet"
    network_error: str = ""
    name: str = ""
    version: str = ""
    handlers: Mapping[str, HandlerFeatures] = field(default_factory=dict)
    supplemental_groups_policy: bool = False
    mount_options: bool = False
    epoch: int = 0
    answer_error: str = ""
    away: bool = False
    since: float = 0.0
    pleg_error: str = ""
    unseen_since: float | None = None
    next_at: float | None = None

    @property
    def ok(self) -> bool:
        """Whether the runtime has answered and reports no error."""
        return self.checked and not self.runtime_error

    @property
    def takes_calls(self) -> bool:
        """Whether the runtime is ready and its socket answers, so that calls to it need not wait."""
        return self.ok and not self.away


#: The declared features that need the same of the runtime (KEP-5855).
BIND_OPTIONS = "VolumeBindMountOptions"


def declared_features(features: Iterable[str], runtime: RuntimeReady) -> tuple[str, ...]:
    """Those of the agent's features that work with this runtime."""
    return tuple(name for name in features if name != BIND_OPTIONS or runtime.mount_options)


class ApiState(Value):
    """The state of the connection to the API server, for users and for components that wait for it. Times are wall seconds.

    Written by report/node alone.

    `server`: its URL; empty without an API server. `error`: why it cannot be reached; empty while it answers. `ok_at`: the
    last good answer. `since`: when `error` began to hold, or to be empty. `next_at`: the next request. `node_error`: why the
    Node's status cannot be reported; empty if it can. `node_since`: when `node_error` began to hold. `node_next_at`: the next
    attempt to report the status or to create the Node.
    """

    server: str = ""
    error: str = ""
    ok_at: float | None = None
    since: float | None = None
    next_at: float | None = None
    node_error: str = ""
    node_since: float | None = None
    node_next_at: float | None = None

    def is_back_since(self, before: ApiState) -> bool:
        """Whether the lease or the Node's status got a good answer again."""
        return bool(before.error and not self.error) or bool(before.node_error and not self.node_error)
