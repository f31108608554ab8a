"""Decides on the labels, addresses and capacity of the node, and makes its `NodeView`. Pure.

Rules for the addresses; the first that gives one applies:
- the given node IPs, if they are usable: on an interface, and not loopback, multicast, link-local or unspecified;
- the node name, if it is an address;
- the resolver's usable addresses for the node name, the preferred family first;
- the address of the interface with the default route, the preferred family first.
The preferred family is IPv4, unless the given node IP is `::`.
Source: the Kubernetes documentation "Nodes", section "Addresses", and the help of `--node-ip`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence

from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.node import ApiNode, NodeView
from pykubelet.base.model.placement import Placements
from pykubelet.edges.host.proc.netlink import InterfaceAddress
from pykubelet.edges.host.proc.procfs import DefaultRoute

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class NodeFacts(Value):
    """The properties of the node that do not change while the agent runs.

    `node_ips`: of `--node-ip`. `capacity`, `allocatable`: as in `NodeView`. `labels`: all of the node's.
    `external_cloud`: a cloud provider writes the addresses into the Node. `warning`: as in `NodeView`.
    """

    name: str
    hostname: str
    node_ips: tuple[str, ...] = ()
    capacity: Mapping[str, int] = field(default_factory=dict)
    allocatable: Mapping[str, int] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    page_sizes: tuple[int, ...] = ()
    external_cloud: bool = False
    warning: str = ""


class Addresses(Value):
    """The node's addresses, primary first, or why there are none. `ask_resolver`: the resolver's answer could change them."""

    ips: tuple[str, ...] = ()
    problem: str = ""
    ask_resolver: bool = False


def node_capacity(
    machine: Mapping[str, int], max_pods: int, pods_per_core: int, *, local_storage: bool = True
) -> dict[str, int]:
    """The machine's resources and the number of pods; `pid` is included for reservations. `pods_per_core` 0: no such limit.

    `local_storage`: `localStorageCapacityIsolation`; without it there is no `ephemeral-storage` to request.
    """
    pods = max_pods
    if pods_per_core > 0:
        pods = min(machine.get("cpu", 0) // 1000 * pods_per_core, max_pods)
    found = {**machine, "pods": pods}
    if not local_storage:
        found.pop("ephemeral-storage", None)
    return found


def node_labels(hostname: str, architecture: str, given: Mapping[str, str]) -> dict[str, str]:
    """The default labels of a node, overridden by the given ones."""
    own = {"kubernetes.io/hostname": hostname, "kubernetes.io/os": "linux", "kubernetes.io/arch": architecture}
    beta = {"beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": architecture}
    return {**beta, **own, **given}


def node_view(facts: NodeFacts, ips: tuple[str, ...], api_node: ApiNode, placements: Placements) -> NodeView:
    """The view of the node with these addresses, the contents of the API server's Node, and the devices of plugins.

    All devices count in the capacity, healthy ones are allocatable. A resource without a plugin has 0 of both.
    """
    gone = dict.fromkeys(placements.removed_devices, 0)
    devices = placements.devices.items()
    listed = {name: len(resource.healthy) + len(resource.unhealthy) for name, resource in devices}
    healthy = {name: len(resource.healthy) for name, resource in devices}
    return NodeView(
        name=facts.name,
        hostname=facts.hostname,
        ips=ips,
        capacity={**facts.capacity, **gone, **listed},
        allocatable={**facts.allocatable, **gone, **healthy},
        labels=api_node.labels if api_node.registered else facts.labels,
        page_sizes=facts.page_sizes,
        registered=api_node.registered,
        uid=api_node.uid,
        taints=api_node.taints,
        read_at=api_node.read_at,
        read_error=api_node.read_error,
        addresses=api_node.addresses if facts.external_cloud else None,
        deleting=api_node.deleting,
        warning=facts.warning,
    )


def choose_addresses(
    facts: NodeFacts,
    interfaces: Sequence[InterfaceAddress],
    routes: Sequence[DefaultRoute],
    resolved: Iterable[str],
) -> Addresses:
    """The node's addresses. `resolved`: the resolver's answer for the node's name, empty when it was not asked or has none."""
    given = [ipaddress.ip_address(text) for text in facts.node_ips]
    specified = [ip for ip in given if not ip.is_unspecified]
    if specified:
        problems = [problem for ip in specified if (problem := _refused(ip, interfaces))]
        if problems:
            return Addresses(problem=f"failed to validate nodeIP: {problems[0]}")
        return Addresses(tuple(str(ip) for ip in specified))
    try:
        return Addresses((str(ipaddress.ip_address(facts.name)),))
    except ValueError:
        version = 6 if given and given[0].version == 6 else 4
    usable = [ip for ip in map(ipaddress.ip_address, _without_zone(resolved)) if not _refused(ip, interfaces)]
    found = _preferred(usable, version) or _preferred(_default_route_ips(interfaces, routes), version)
    if found is None:
        return Addresses(problem=f"can't get ip address of node {facts.name}: no default route", ask_resolver=True)
    return Addresses((str(found),), ask_resolver=True)


def _without_zone(texts: Iterable[str]) -> list[str]:
    return [text.partition("%")[0] for text in texts]


def _preferred(ips: Sequence[IPAddress], version: int) -> IPAddress | None:
    return next((ip for ip in ips if ip.version == version), ips[0] if ips else None)


def _refused(ip: IPAddress, interfaces: Sequence[InterfaceAddress]) -> str:
    """Why the address is not usable; empty if it is."""
    if ip.is_loopback:
        return "nodeIP can't be loopback address"
    if ip.is_multicast:
        return "nodeIP can't be a multicast address"
    if ip.is_link_local:
        return "nodeIP can't be a link-local unicast address"
    if ip.is_unspecified:
        return "nodeIP can't be an all zeros address"
    if all(ipaddress.ip_address(found.address) != ip for found in interfaces):
        return f'node IP: "{ip}" not found in the host\'s network interfaces'
    return ""


def _default_route_ips(interfaces: Sequence[InterfaceAddress], routes: Sequence[DefaultRoute]) -> list[IPAddress]:
    """One address for each default route that has one, the lowest metric first."""
    found = []
    for route in routes:
        for address in interfaces:
            ip = ipaddress.ip_address(address.address)
            if address.interface != route.interface or address.is_v6 != route.is_v6 or not address.usable:
                continue
            if not (ip.is_link_local or ip.is_loopback or ip.is_multicast):
                found.append(ip)
                break
    return found
