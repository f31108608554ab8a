from typing import Any

import pytest
from act.runtime.failures import refusal
from act.runtime.rendering import SETTINGS, make_pod

from pykubelet.act.runtime.render.etc_hosts import PodName, etc_hosts_content, name_pod

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
