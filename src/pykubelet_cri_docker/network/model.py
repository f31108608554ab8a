"""What a pod asks of its network, and what the network has given it. Pure.

Source: the CNI specification, and its conventions for capabilities (`CONVENTIONS.md`).
"""

from __future__ import annotations

from typing import Any

from pykubelet.base.kit.values import Value, field

#: A JSON object as Python has it.
JsonObject = dict[str, Any]
#: The interface of a pod's network. Its loopback interface is no attachment.
POD_INTERFACE = "eth0"


class CniError(Exception):
    """A network could not be read, attached or detached. The text is shown to users. `code`: the plugin's error code; 0: none."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class MappedPort(Value):
    """A port of the node that leads to one of the pod. `protocol`: `tcp`, `udp` or `sctp`. `host_ip`: empty for all addresses."""

    host_port: int
    container_port: int
    protocol: str = "tcp"
    host_ip: str = ""


class Bandwidth(Value):
    """The limits of a pod's traffic as its annotations have them: quantities of bits each second. Empty: no limit."""

    ingress: str = ""
    egress: str = ""


class ResolverConfig(Value):
    """What a resolver file has."""

    servers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


class SandboxNetwork(Value):
    """A pod sandbox that is to have a network.

    `netns`: the path of its network namespace; empty when the sandbox does not run, because a path of a process that has ended may
    be of another process by now. `ip_ranges`: subnets such as `10.1.0.0/24`, from which the network may choose.
    """

    container_id: str
    netns: str
    namespace: str
    name: str
    uid: str
    ports: tuple[MappedPort, ...] = ()
    bandwidth: Bandwidth = Bandwidth()
    dns: ResolverConfig | None = None
    ip_ranges: tuple[str, ...] = ()
    cgroup_path: str = ""


class NetworkInterface(Value):
    """An interface that a plugin has made. `sandbox`: the network namespace that it is in; empty for one of the host."""

    name: str
    mac: str = ""
    sandbox: str = ""
    mtu: int = 0


class NetworkAddress(Value):
    """An address. `address`: with the length of the prefix, `10.1.0.5/24`. `interface`: the index of its interface in the result."""

    address: str
    gateway: str = ""
    interface: int | None = None


class NetworkRoute(Value):
    """A route of the pod. `destination`: a subnet. `gateway`: empty if the destination is on the link."""

    destination: str
    gateway: str = ""


class NetworkResult(Value):
    """What a network has given to a pod, whatever the version of the plugins is."""

    interfaces: tuple[NetworkInterface, ...] = ()
    addresses: tuple[NetworkAddress, ...] = ()
    routes: tuple[NetworkRoute, ...] = ()
    name_servers: tuple[str, ...] = ()
    domain: str = ""
    searches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    @property
    def pod_ips(self) -> tuple[str, ...]:
        """The addresses of the pod without prefixes, those of IPv4 first. Addresses of the host's interfaces are left out."""
        ips = dict.fromkeys(entry.address.partition("/")[0] for entry in self.addresses if self._is_of_pod(entry))
        return tuple(sorted(ips, key=lambda ip: ":" in ip))

    def _is_of_pod(self, entry: NetworkAddress) -> bool:
        if entry.interface is None or not self.interfaces:
            return True
        return entry.interface < len(self.interfaces) and bool(self.interfaces[entry.interface].sandbox)


class Attachment(Value):
    """A network of a container, as it is kept on disk from before ADD until after DEL.

    `config`: the text of the configuration list that was used. `arguments`: those of `CNI_ARGS`. `capabilities`: what plugins may
    get as `runtimeConfig`. `result`: that of the last plugin; None until ADD has ended.
    """

    network: str
    container_id: str
    interface: str
    netns: str
    config: bytes
    arguments: tuple[tuple[str, str], ...] = ()
    capabilities: JsonObject = field(default_factory=dict)
    result: JsonObject | None = None

    @property
    def pod(self) -> str:
        """`namespace/name` if the arguments have it, or else the container's id: for messages."""
        known = dict(self.arguments)
        names = (known.get("K8S_POD_NAMESPACE", ""), known.get("K8S_POD_NAME", ""))
        return "/".join(names) if all(names) else self.container_id
