"""What the network of a sandbox needs, from its configuration in CRI."""

from __future__ import annotations

from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet_cri_docker.network.from_cri import network_of
from pykubelet_cri_docker.network.model import Bandwidth, MappedPort, ResolverConfig, SandboxNetwork


def test_everything_that_a_sandbox_may_ask_for() -> None:
    config = pb.PodSandboxConfig(
        metadata=pb.PodSandboxMetadata(namespace="default", name="web", uid="u-1"),
        annotations={"kubernetes.io/ingress-bandwidth": "1M", "kubernetes.io/egress-bandwidth": "2M", "a": "b"},
        dns_config=pb.DNSConfig(servers=["10.0.0.10"], searches=["a.local"], options=["ndots:5"]),
        port_mappings=[
            pb.PortMapping(protocol=pb.TCP, container_port=80, host_port=8080, host_ip="127.0.0.1"),
            pb.PortMapping(protocol=pb.UDP, container_port=53, host_port=5353),
            pb.PortMapping(protocol=pb.SCTP, container_port=90),
        ],
        linux=pb.LinuxPodSandboxConfig(cgroup_parent="/kubepods/pod1"),
    )
    assert network_of("c1", "/proc/7/ns/net", config, ["10.1.0.0/24"]) == SandboxNetwork(
        container_id="c1",
        netns="/proc/7/ns/net",
        namespace="default",
        name="web",
        uid="u-1",
        ports=(MappedPort(8080, 80, "tcp", "127.0.0.1"), MappedPort(5353, 53, "udp")),
        bandwidth=Bandwidth("1M", "2M"),
        dns=ResolverConfig(("10.0.0.10",), ("a.local",), ("ndots:5",)),
        ip_ranges=("10.1.0.0/24",),
        cgroup_path="/kubepods/pod1",
    )


def test_a_sandbox_that_asks_for_nothing() -> None:
    config = pb.PodSandboxConfig(metadata=pb.PodSandboxMetadata(namespace="default", name="web", uid="u-1"))
    assert network_of("c1", "", config) == SandboxNetwork("c1", "", "default", "web", "u-1")
