from __future__ import annotations

from typing import Any

import pytest
from act.runtime.failures import refusal
from act.runtime.rendering import SETTINGS, make_pod

from pykubelet.act.runtime.render.context import RenderSettings
from pykubelet.act.runtime.render.dns import (
    PodName,
    Resolver,
    dns_config,
    etc_hosts_content,
    name_pod,
    parse_resolv_conf,
    resolv_conf_warnings,
)
from pykubelet.act.runtime.start_error import ContainerStartError
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import replace

CLUSTER_SEARCH = ["shop.svc.cluster.local", "svc.cluster.local", "cluster.local"]
MISSING = (
    'kubelet does not have ClusterDNS IP configured and cannot create Pod using "ClusterFirst" policy. '
    'Falling back to "Default" policy.'
)


def resolve(
    pod: Pod, settings: RenderSettings = SETTINGS
) -> tuple[list[str], list[str], list[str], list[tuple[str, str]]]:
    """Servers, searches, options; reasons and messages of the events."""
    config, recorder = dns_config(pod, settings)
    return (
        list(config.servers),
        list(config.searches),
        list(config.options),
        [(h.reason, h.message) for h in recorder],
    )


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, (["10.96.0.10"], [*CLUSTER_SEARCH, "example.org"], ["ndots:5"], [])),
        ({"hostNetwork": True}, (["192.0.2.1"], ["example.org"], ["timeout:2"], [])),
        (
            {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"},
            (["10.96.0.10"], [*CLUSTER_SEARCH, "example.org"], ["ndots:5"], []),
        ),
        ({"dnsPolicy": "Default"}, (["192.0.2.1"], ["example.org"], ["timeout:2"], [])),
        ({"dnsPolicy": "None"}, ([], [], [], [])),
        (
            {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["1.1.1.1"], "searches": ["a.b"]}},
            (["1.1.1.1"], ["a.b"], [], []),
        ),
        (
            {
                "dnsConfig": {
                    "nameservers": ["10.96.0.10", "1.1.1.1"],
                    "searches": ["cluster.local", "x.y"],
                    "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}],
                }
            },
            (["10.96.0.10", "1.1.1.1"], [*CLUSTER_SEARCH, "example.org", "x.y"], ["ndots:2", "edns0"], []),
        ),
    ],
)
def test_policies(
    spec: dict[str, Any], expected: tuple[list[str], list[str], list[str], list[tuple[str, str]]]
) -> None:
    assert resolve(make_pod(**spec)) == expected


@pytest.mark.parametrize(
    ("spec", "servers"),
    [
        ({"dnsPolicy": "Default"}, ["2001:db8::1", "192.0.2.1"]),
        ({"dnsPolicy": "Default", "hostNetwork": True}, ["fe80::1%3", "2001:db8::1", "fe80::2%eth0"]),
        ({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["fe80::1%3"]}}, ["fe80::1%3"]),
    ],
)
def test_servers_on_a_link_of_the_node_are_for_pods_on_its_network_alone(
    spec: dict[str, Any], servers: list[str]
) -> None:
    text = "nameserver fe80::1%3\nnameserver 2001:db8::1\nnameserver fe80::2%eth0\nnameserver 192.0.2.1\n"
    assert resolve(make_pod(**spec), replace(SETTINGS, resolv_conf=text))[0] == servers


def test_cluster_first_without_cluster_dns_falls_back_and_reports_it() -> None:
    servers, searches, _, recorder = resolve(make_pod(), replace(SETTINGS, cluster_dns=()))
    assert (servers, searches) == (["192.0.2.1"], ["example.org"])
    assert recorder == [
        ("MissingClusterDNS", MISSING),
        ("MissingClusterDNS", f'pod: "web_shop(uid-1)". {MISSING}'),
    ]


def test_no_cluster_domain_adds_no_domains() -> None:
    assert resolve(make_pod(), replace(SETTINGS, cluster_domain=""))[1] == ["example.org"]


@pytest.mark.parametrize(
    ("ips", "servers"),
    [(("10.0.0.1",), ["127.0.0.1"]), (("fd00::1", "10.0.0.1"), ["::1", "127.0.0.1"]), ((), ["127.0.0.1"])],
)
def test_switched_off_host_file_lets_no_lookup_out(ips: tuple[str, ...], servers: list[str]) -> None:
    settings = replace(SETTINGS, resolv_conf=None, node=replace(SETTINGS.node, ips=ips))
    assert resolve(make_pod(dnsPolicy="Default"), settings) == (servers, ["."], [], [])


def test_limits_are_applied_with_events() -> None:
    config = {"nameservers": ["1.1.1.1", "1.1.1.2", "1.1.1.3"], "searches": [f"d{i}.example" for i in range(40)]}
    servers, searches, _, recorder = resolve(make_pod(dnsConfig=config))
    assert servers == ["10.96.0.10", "1.1.1.1", "1.1.1.2"]
    assert len(searches) == 32
    assert recorder == [
        (
            "DNSConfigForming",
            "Nameserver limits were exceeded, some nameservers have been omitted, "
            "the applied nameserver line is: 10.96.0.10 1.1.1.1 1.1.1.2",
        ),
        (
            "DNSConfigForming",
            "Search Line limits were exceeded, some search paths have been omitted, "
            "the applied search line is: " + " ".join(searches),
        ),
    ]


def test_long_domains_and_lines_are_cut() -> None:
    too_long = "x" * 254
    fine = ["y" * 250 for _ in range(1)] + [f"{i}" + "z" * 249 for i in range(9)]
    pod = make_pod(dnsPolicy="None", dnsConfig={"nameservers": ["1.1.1.1"], "searches": [too_long, *fine]})
    _, searches, _, recorder = resolve(pod)
    assert searches == fine[:8]
    assert len(" ".join(searches)) <= 2048
    assert [reason for reason, _ in recorder] == ["DNSConfigForming"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Resolver()),
        ("# nameserver 9.9.9.9\n\nnameserver 1.1.1.1\nnameserver   1.1.1.2 extra\n", Resolver(("1.1.1.1", "1.1.1.2"))),
        ("search a b\nsearch c. .\n", Resolver(searches=("c",))),
        ("options ndots:5 rotate\noptions ndots:1\n", Resolver(options=("ndots:1", "rotate"))),
        ("domain example.org\nsortlist 1.2.3.4\n", Resolver()),
    ],
)
def test_reading_the_host_file(text: str, expected: Resolver) -> None:
    assert parse_resolv_conf(text) == expected


def test_a_nameserver_without_address_is_an_error() -> None:
    with pytest.raises(ContainerStartError, match="nameserver list is empty "):
        parse_resolv_conf("nameserver\n")
    with pytest.raises(ContainerStartError) as caught:
        dns_config(make_pod(), replace(SETTINGS, resolv_conf="nameserver\n"))
    assert caught.value.message == "Encountered error while parsing resolv conf file. Error: nameserver list is empty "
    assert caught.value.reason == "CreatePodSandboxError"


def test_an_unreadable_host_file_refuses_the_sandbox() -> None:
    with pytest.raises(ContainerStartError, match="no such file") as caught:
        dns_config(make_pod(), replace(SETTINGS, resolv_conf_error="open /etc/r: no such file or directory"))
    assert caught.value.reason == "CreatePodSandboxError"


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("search a b\n", []),
        (
            "search " + " ".join(f"d{i}" for i in range(30)),
            ["Resolv.conf file '/r' contains search line consisting of more than 29 domains!"],
        ),
        (
            "search " + "x" * 254,
            ['Resolv.conf file "/r" contains a search path which length is more than allowed 253 chars!'],
        ),
        (
            "search " + " ".join(f"{i}" + "x" * 249 for i in range(9)),
            ["Resolv.conf file '/r' contains search line which length is more than allowed 2048 chars!"],
        ),
        ("nameserver\n", ["nameserver list is empty "]),
    ],
)
def test_the_check_at_start(text: str, messages: list[str]) -> None:
    recorder = resolv_conf_warnings("/r", text, "cluster.local")
    assert [h.message for h in recorder] == messages
    assert all(h.reason == "CheckLimitsForResolvConf" and h.pod is None for h in recorder)


LOCAL = (
    "# Kubernetes-managed hosts file.\n"
    "127.0.0.1\tlocalhost\n"
    "::1\tlocalhost ip6-localhost ip6-loopback\n"
    "fe00::0\tip6-localnet\n"
    "fe00::0\tip6-mcastprefix\n"
    "fe00::1\tip6-allnodes\n"
    "fe00::2\tip6-allrouters\n"
)
LONG = "a" * 60 + ".bcd"


@pytest.mark.parametrize(
    ("metadata", "spec", "expected"),
    [
        ({}, {}, PodName("web", "", "web")),
        ({}, {"hostname": "h1"}, PodName("h1", "", "h1")),
        ({"name": "a" * 70}, {}, PodName("a" * 63, "", "a" * 63)),
        ({"name": "a" * 61 + "-.-b"}, {}, PodName("a" * 61, "", "a" * 61)),
        ({}, {"subdomain": "sub"}, PodName("web", "sub.shop.svc.cluster.local", "web")),
        (
            {},
            {"subdomain": "sub", "setHostnameAsFQDN": True},
            PodName("web", "sub.shop.svc.cluster.local", "web.sub.shop.svc.cluster.local"),
        ),
        ({}, {"setHostnameAsFQDN": True}, PodName("web", "", "web")),
        (
            {},
            {"hostnameOverride": "db.example.org", "hostname": "h1", "subdomain": "sub"},
            PodName("db.example.org", "", "db.example.org"),
        ),
        ({}, {"hostnameOverride": "a" * 60 + ".bcd"}, PodName(LONG, "", LONG)),
    ],
)
def test_names(metadata: dict[str, Any], spec: dict[str, Any], expected: PodName) -> None:
    assert name_pod(make_pod(metadata=metadata, **spec), SETTINGS.cluster_domain) == expected


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"hostname": "web", "subdomain": "s" * 40, "setHostnameAsFQDN": True},
            "failed to construct FQDN from pod hostname and cluster domain, FQDN "
            f"web.{'s' * 40}.shop.svc.cluster.local is too long "
            "(64 characters is the max, 67 characters requested)",
        ),
        (
            {"hostname": "Bad_Name"},
            'pod Hostname "Bad_Name" is not a valid DNS label: a lowercase RFC 1123 label must consist of',
        ),
        ({"subdomain": "x.y"}, 'pod Subdomain "x.y" is not a valid DNS label: '),
        ({"hostnameOverride": "x" * 65}, "must be no more than 64 bytes"),
    ],
)
def test_names_that_cannot_be(spec: dict[str, Any], message: str) -> None:
    result = refusal(name_pod, make_pod(**spec), SETTINGS.cluster_domain)
    assert message in result.message
    assert result.reason == "CreateContainerConfigError"


def test_content_lists_every_address_of_the_pod() -> None:
    text = etc_hosts_content(make_pod(), SETTINGS, ("10.1.0.7", "fd00::7"), "")
    assert text == LOCAL + "10.1.0.7\tweb\nfd00::7\tweb\n"


def test_content_with_a_domain_and_aliases() -> None:
    aliases = [{"ip": "192.0.2.5", "hostnames": ["one", "two"]}, {"ip": "192.0.2.6", "hostnames": ["three"]}]
    pod = make_pod(subdomain="sub", hostAliases=aliases)
    assert etc_hosts_content(pod, SETTINGS, ("10.1.0.7",), "") == (
        LOCAL + "10.1.0.7\tweb.sub.shop.svc.cluster.local\tweb\n"
        "\n# Entries added by HostAliases.\n192.0.2.5\tone\ttwo\n192.0.2.6\tthree\n"
    )


def test_pods_on_the_hosts_network_get_the_nodes_file() -> None:
    pod = make_pod(hostNetwork=True, hostAliases=[{"ip": "192.0.2.5", "hostnames": ["one"]}])
    assert etc_hosts_content(pod, SETTINGS, ("10.0.0.1",), "127.0.0.1 node\n") == (
        "# Kubernetes-managed hosts file (host network).\n127.0.0.1 node\n"
        "\n# Entries added by HostAliases.\n192.0.2.5\tone\n"
    )
