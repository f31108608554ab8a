"""Reads from the configuration of a sandbox in CRI what its network needs. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet_cri_docker.network.model import Bandwidth, MappedPort, ResolverConfig, SandboxNetwork

INGRESS_ANNOTATION = "kubernetes.io/ingress-bandwidth"
EGRESS_ANNOTATION = "kubernetes.io/egress-bandwidth"
_PROTOCOLS = {pb.UDP: "udp", pb.SCTP: "sctp"}


def network_of(
    container_id: str, netns: str, config: pb.PodSandboxConfig, ip_ranges: Sequence[str] = ()
) -> SandboxNetwork:
    """The network of a sandbox. `netns`, `ip_ranges`: as in `SandboxNetwork`; ranges are those of the node, if the kubelet has sent any."""
    dns = config.dns_config
    return SandboxNetwork(
        container_id=container_id,
        netns=netns,
        namespace=config.metadata.namespace,
        name=config.metadata.name,
        uid=config.metadata.uid,
        ports=tuple(
            MappedPort(port.host_port, port.container_port, _PROTOCOLS.get(port.protocol, "tcp"), port.host_ip)
            for port in config.port_mappings
            if port.host_port > 0
        ),
        bandwidth=Bandwidth(
            config.annotations.get(INGRESS_ANNOTATION, ""), config.annotations.get(EGRESS_ANNOTATION, "")
        ),
        dns=ResolverConfig(tuple(dns.servers), tuple(dns.searches), tuple(dns.options))
        if config.HasField("dns_config")
        else None,
        ip_ranges=tuple(ip_ranges),
        cgroup_path=config.linux.cgroup_parent,
    )
