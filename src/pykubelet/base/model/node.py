"""The node as its pods need to know it. `NodeView` and `RuntimeReady` are written by report/node alone."""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.api.core import NodeAddress, Taint
from pykubelet.base.kit.values import Value, field

DEFAULT_OBJECT_TTL_S = 60.0


class NodeView(Value):
    """Name, addresses (primary family first), and resources: `cpu` in milli, the others in bytes or pieces.

    `labels`: of the API's Node where there is one, else those the node would register with. `registered`: the API
    server has a Node of this name; never True without an API server. `uid`, `taints`: of the API's Node, empty
    while there is none. `read_at`: the monotonic second at which somebody's wish (`NodeWanted`) began to be read at the
    API server, None before the first; `read_error`: why it refused that.
    `addresses`: those a cloud provider has written into the Node; None: there is no provider, the node tells `ips`.
    `object_ttl_s`: for how long ConfigMaps and Secrets may be taken as they were read, where they are not watched.
    `deleting`: the Node is going.
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
    object_ttl_s: float = DEFAULT_OBJECT_TTL_S
    deleting: bool = False

    @property
    def host_ips(self) -> tuple[str, ...]:
        """The node's own addresses as its pods are told them: one of each family, the primary one first."""
        told = [[a.address for a in self.addresses or () if a.type == kind] for kind in ("InternalIP", "ExternalIP")]
        ips = (*told[0], *told[1])
        if not ips:
            return self.ips
        others = (ip for ip in ips if (":" in ip) != (":" in ips[0]))
        return (ips[0], *((other,) if (other := next(others, None)) is not None else ()))


class NodeWanted(Value):
    """Posted to report/node: a decision needs the Node as the API server has it now, not as its watch told it last."""


class HandlerFeatures(Value):
    recursive_read_only_mounts: bool = False
    user_namespaces: bool = False


class RuntimeReady(Value):
    """The runtime's own account of itself. Errors are empty when all is well; `None` fields: not asked yet.

    `epoch` grows with every restart of the runtime that was noticed. `answer_error`: why its last answer is missing,
    which counts as a `runtime_error` only after a while; `away`: there was nobody to answer, nor has it answered since.
    `since`: the wall second from which on all this holds.
    `pleg_error`: why the look at all its pods counts as lost. `unseen_since`: the wall second of the last such look, or of
    the agent's start, once the next one is late. `next_at`: when the runtime is asked again; nobody is woken for that.
    """

    checked: bool = False
    runtime_error: str = "container runtime status check may not have completed yet"
    network_error: str = ""
    name: str = ""
    version: str = ""
    handlers: Mapping[str, HandlerFeatures] = field(default_factory=dict)
    supplemental_groups_policy: bool = False
    epoch: int = 0
    answer_error: str = ""
    away: bool = False
    since: float = 0.0
    pleg_error: str = ""
    unseen_since: float | None = None
    next_at: float | None = None

    @property
    def ok(self) -> bool:
        return self.checked and not self.runtime_error

    @property
    def takes_calls(self) -> bool:
        """It is well, and there: what needs the runtime need not wait."""
        return self.ok and not self.away
