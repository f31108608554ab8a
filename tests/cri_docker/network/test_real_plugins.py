"""Networks of pods with the plugins of the distribution, in network namespaces of the test's own: nothing is done to the machine's."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.cni import known, sandbox_network

from pykubelet.base.kit.values import replace
from pykubelet_cri_docker.network.model import CniError, MappedPort, NetworkRoute, SandboxNetwork
from pykubelet_cri_docker.network.pinned_namespaces import PinnedNamespaces
from pykubelet_cri_docker.network.pod_networks import CniDirectories, PodNetworks

pytestmark = pytest.mark.integration
PLUGINS = Path("/usr/lib/cni")
SERVE = "import socket; s = socket.create_server(('0.0.0.0', 80)); print(flush=True); s.accept()[0].sendall(b'hello')"
READ = "import socket; print(socket.create_connection(('10.177.0.1', 8080), 20).recv(9).decode())"


class Node:
    """A node that is a network namespace: the plugins run in it. `pod`: a sandbox with a namespace of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.prefix = f"pykcni-{secrets.token_hex(3)}"
        self._spaces: list[str] = []
        self.path = self.add_namespace("node")
        self.run(self.path, "ip", "link", "set", "lo", "up")
        for name in ("bin", "net.d"):
            (folder / name).mkdir()
        for plugin in ("bridge", "host-local", "portmap", "loopback"):
            path = folder / "bin" / plugin
            path.write_text(f'#!/bin/sh\nexec nsenter --net={self.path} {PLUGINS}/{plugin} "$@"\n')
            path.chmod(0o755)
        self.configure("10.177.0.10")
        self.pinned = PinnedNamespaces(f"{folder}/netns")
        directories = CniDirectories(f"{folder}/net.d", (f"{folder}/bin",), f"{folder}/kept")
        self.networks = PodNetworks(directories, self.pinned)

    def configure(self, last: str) -> None:
        """A network with the addresses from 10.177.0.2 to `last`."""
        ranges = [[{"subnet": "10.177.0.0/24", "rangeStart": "10.177.0.2", "rangeEnd": last}]]
        ipam = {
            "type": "host-local",
            "dataDir": f"{self.folder}/ipam",
            "ranges": ranges,
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        bridge = {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "ipMasq": True,
            "hairpinMode": True,
            "ipam": ipam,
        }
        plugins = [bridge, {"type": "portmap", "capabilities": {"portMappings": True}}]
        document = {"cniVersion": "0.4.0", "name": "real", "plugins": plugins}
        (self.folder / "net.d/10-real.conflist").write_text(json.dumps(document))

    def add_namespace(self, name: str) -> str:
        """A network namespace; returns its path."""
        subprocess.run(["ip", "netns", "add", f"{self.prefix}-{name}"], check=True)
        self._spaces.append(name)
        return f"/run/netns/{self.prefix}-{name}"

    def remove_namespace(self, name: str) -> None:
        """Remove a network namespace."""
        subprocess.run(["ip", "netns", "delete", f"{self.prefix}-{name}"], check=True)
        self._spaces.remove(name)

    def pod(self, name: str) -> SandboxNetwork:
        """A sandbox with a port of the node, and a new namespace."""
        return sandbox_network(name, self.add_namespace(name), ports=(MappedPort(8080, 80),))

    def run(self, netns: str, *command: str) -> str:
        """The output of a command in a namespace."""
        words = ["nsenter", f"--net={netns}", *command]
        return subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout

    @contextmanager
    def served(self, pod: SandboxNetwork) -> Iterator[None]:
        """A server in the pod."""
        with subprocess.Popen(
            ["nsenter", f"--net={pod.netns}", "python3", "-c", SERVE], stdout=subprocess.PIPE
        ) as server:
            assert server.stdout is not None and server.stdout.readline() == b"\n"
            try:
                yield
            finally:
                server.kill()

    def addresses_in_use(self) -> list[str]:
        """The addresses that host-local has given away."""
        return sorted(path.name for path in (self.folder / "ipam/real").glob("10.*"))

    def port_rules(self) -> list[str]:
        """The NAT rules about the pods' ports."""
        return [line for line in self.run(self.path, "iptables-save", "-t", "nat").splitlines() if "8080" in line]

    def masquerade_chains(self) -> list[str]:
        """The chains of the NAT table about the pods' addresses."""
        lines = self.run(self.path, "iptables-save", "-t", "nat").splitlines()
        return [
            line for line in lines if line.startswith(":CNI-") and not line.startswith((":CNI-HOSTPORT", ":CNI-DN"))
        ]

    def kept(self) -> list[str]:
        """The names of the files of attachments."""
        return sorted(os.listdir(self.folder / "kept/results"))

    def close(self) -> None:
        """Remove all namespaces."""
        for container_id in self.pinned.containers():
            self.pinned.release(container_id)
        for name in list(self._spaces):
            self.remove_namespace(name)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.close()


async def test_a_pod_has_a_network(node: Node) -> None:
    pod = node.pod("a")
    assert await node.networks.status() == ""
    result = await node.networks.add(pod)
    assert result.pod_ips == ("10.177.0.2",)
    assert result.addresses[0].gateway == "10.177.0.1"
    assert result.routes == (NetworkRoute("0.0.0.0/0"),)
    assert {known.sandbox for known in result.interfaces if known.name == "eth0"} == {node.pinned.path("a")}
    links = {link["ifname"]: link for link in json.loads(node.run(pod.netns, "ip", "-j", "address"))}
    assert "10.177.0.2" in [address["local"] for address in links["eth0"]["addr_info"]]
    assert "127.0.0.1" in [address["local"] for address in links["lo"]["addr_info"]] and "UP" in links["lo"]["flags"]
    with node.served(pod):
        assert node.run(node.path, "python3", "-c", READ) == "hello\n"
    assert node.port_rules()
    for _again in range(2):
        await node.networks.delete(pod)
        assert (node.addresses_in_use(), node.port_rules(), node.kept()) == ([], [], [])


async def test_a_network_that_is_not_as_it_was_set_up(node: Node) -> None:
    pod = replace(node.pod("a"), ports=())  # portmap looks for rules of IPv6, which IPv4 alone does not have
    await node.networks.add(pod)
    await node.networks.check(pod)
    node.run(pod.netns, "ip", "link", "delete", "eth0")
    with pytest.raises(CniError, match=r'pod default/web: network "real": plugin type="bridge" failed \(check\): '):
        await node.networks.check(pod)


async def test_a_pod_whose_namespace_is_gone_is_removed(node: Node) -> None:
    pod = node.pod("a")
    await node.networks.add(pod)
    assert len(node.masquerade_chains()) == 1
    node.remove_namespace("a")
    await node.networks.delete(pod)
    assert (node.addresses_in_use(), node.port_rules(), node.kept()) == ([], [], [])
    assert node.masquerade_chains() == [] and node.pinned.containers() == []


async def test_what_is_left_of_pods_is_collected(node: Node) -> None:
    await node.networks.add(node.pod("a"))
    await node.networks.add(node.pod("b"))
    node.remove_namespace("a")
    await node.networks.collect(known("b"))
    assert (node.addresses_in_use(), node.kept()) == (["10.177.0.3"], ["real-b-eth0"])
    assert len(node.masquerade_chains()) == 1 and node.pinned.containers() == ["b"]


async def test_a_pod_without_an_address_leaves_nothing(node: Node) -> None:
    node.configure("10.177.0.2")
    await node.networks.add(node.pod("a"))
    before = node.port_rules()
    with pytest.raises(CniError, match="no IP addresses available in range set"):
        await node.networks.add(node.pod("b"))
    assert (node.addresses_in_use(), node.kept(), node.port_rules()) == (["10.177.0.2"], ["real-a-eth0"], before)


async def test_a_namespace_that_is_not_there(node: Node) -> None:
    with pytest.raises(CniError, match=r"pod default/web: mount .*/netns/a: no such file or directory"):
        await node.networks.add(sandbox_network("a", f"/run/netns/{node.prefix}-none"))
    assert (node.addresses_in_use(), node.kept(), node.pinned.containers()) == ([], [], [])
