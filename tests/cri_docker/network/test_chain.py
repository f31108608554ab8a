"""What plugins get."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.cni import sandbox_network

from pykubelet_cri_docker.network.chain import (
    BURST_BITS,
    CniCommand,
    arguments_of,
    attachment_input,
    capabilities_of,
    network_input,
)
from pykubelet_cri_docker.network.config import read_list
from pykubelet_cri_docker.network.model import (
    Attachment,
    Bandwidth,
    CniError,
    MappedPort,
    ResolverConfig,
    SandboxNetwork,
)

PORT = MappedPort(8080, 80, "TCP", "127.0.0.1")
NETWORK = read_list(
    b'{"cniVersion": "1.1.0", "name": "net", "plugins": ['
    b'{"type": "bridge", "name": "other", "cniVersion": "0.1.0", "capabilities": {"ipRanges": true, "dns": false}},'
    b'{"type": "portmap", "capabilities": {"portMappings": true}}]}'
)


def given(
    pod: SandboxNetwork, plugin: int, previous: dict[str, Any] | None = None
) -> tuple[dict[str, str], dict[str, Any]]:
    kept = Attachment("net", "c1", "eth0", "/ns", b"", arguments_of(pod), capabilities_of(pod))
    found = attachment_input(CniCommand.ADD, NETWORK, NETWORK.plugins[plugin], kept, previous)
    return dict(found.variables), json.loads(found.stdin)


def test_the_environment() -> None:
    variables, _ = given(sandbox_network(), 0)
    assert variables == {
        "CNI_COMMAND": "ADD",
        "CNI_CONTAINERID": "c1",
        "CNI_NETNS": "/ns",
        "CNI_IFNAME": "eth0",
        "CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID=c1;K8S_POD_UID=u-1",
    }


def test_name_and_version_are_those_of_the_list() -> None:
    _, config = given(sandbox_network(), 0)
    assert (config["name"], config["cniVersion"]) == ("net", "1.1.0")
    assert "prevResult" not in config and "runtimeConfig" not in config


def test_each_plugin_gets_only_what_it_is_capable_of() -> None:
    pod = sandbox_network(ports=(PORT,), ip_ranges=("10.1.0.0/24",), dns=ResolverConfig(("10.0.0.1",)))
    assert given(pod, 0)[1]["runtimeConfig"] == {"ipRanges": [[{"subnet": "10.1.0.0/24"}]]}
    _, config = given(pod, 1, {"ips": []})
    assert config["prevResult"] == {"ips": []}
    mapping = {"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": "127.0.0.1"}
    assert config["runtimeConfig"] == {"portMappings": [mapping]}


def test_all_capabilities() -> None:
    pod = sandbox_network(
        bandwidth=Bandwidth(ingress="1M"),
        dns=ResolverConfig(("10.0.0.1",), ("a.local",), ("ndots:5",)),
        cgroup_path="/kubepods/pod1",
        ports=(MappedPort(0, 80),),
    )
    assert json.loads(json.dumps(capabilities_of(pod))) == {
        "bandwidth": {"ingressRate": 1_000_000, "ingressBurst": BURST_BITS},
        "dns": {"servers": ["10.0.0.1"], "searches": ["a.local"], "options": ["ndots:5"]},
        "cgroupPath": "/kubepods/pod1",
    }
    assert capabilities_of(sandbox_network()) == {}


@pytest.mark.parametrize("name", ["a;CNI_X=1", "a=b", "a\nb", "a" * 254])
def test_a_name_that_would_add_an_argument_is_refused(name: str) -> None:
    with pytest.raises(CniError, match=r"K8S_POD_NAME .* cannot be passed"):
        arguments_of(SandboxNetwork("c1", "", "default", name, "u-1"))


@pytest.mark.parametrize(("text", "bits"), [("1k", 1000), ("10M", 10_000_000), ("1P", 10**15), ("1Mi", 1 << 20)])
def test_bandwidth_is_a_quantity(text: str, bits: int) -> None:
    found = capabilities_of(sandbox_network(bandwidth=Bandwidth(egress=text)))
    assert found == {"bandwidth": {"egressRate": bits, "egressBurst": BURST_BITS}}


@pytest.mark.parametrize("text", [" ", "fast", "999", "2P", "-1M", "9" * 10_000])
def test_bandwidth_that_kubernetes_refuses(text: str) -> None:
    with pytest.raises(CniError, match="ingress bandwidth ") as caught:
        capabilities_of(sandbox_network(bandwidth=Bandwidth(ingress=text)))
    assert len(str(caught.value)) < 500


def test_collection_names_the_attachments_that_stay() -> None:
    found = network_input(CniCommand.GC, NETWORK, NETWORK.plugins[1], [("c1", "eth0")])
    assert found.variables == {"CNI_COMMAND": "GC"}
    attachments = [{"containerID": "c1", "ifname": "eth0"}]
    config = json.loads(found.stdin)
    assert (config["cni.dev/valid-attachments"], config["cni.dev/attachments"]) == (attachments, attachments)
    assert "cni.dev/valid-attachments" not in json.loads(
        network_input(CniCommand.STATUS, NETWORK, NETWORK.plugins[1]).stdin
    )
