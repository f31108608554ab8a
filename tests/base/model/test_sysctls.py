from typing import Any

import pytest
from act.runtime.rendering import make_pod

from pykubelet.base.api.core import Pod
from pykubelet.base.model.sysctls import SAFE_1_36, forbidden_sysctl, normalized, sysctls_of, with_defaults


def pod_with(*names: str, **spec: Any) -> Pod:
    return make_pod(securityContext={"sysctls": [{"name": name, "value": "1"} for name in names]}, **spec)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("net.ipv4.tcp_syncookies", "net.ipv4.tcp_syncookies"),
        ("net/ipv4/tcp_syncookies", "net.ipv4.tcp_syncookies"),
        ("net/ipv4/conf/eno2.100/rp_filter", "net.ipv4.conf.eno2/100.rp_filter"),
        ("net.ipv4.conf.eno2/100.rp_filter", "net.ipv4.conf.eno2/100.rp_filter"),
        ("plain", "plain"),
        ("", ""),
    ],
)
def test_spelling(name: str, expected: str) -> None:
    assert normalized(name) == expected


def test_parameters_of_a_pod() -> None:
    assert sysctls_of(pod_with("net/core/somaxconn")) == {"net.core.somaxconn": "1"}
    assert sysctls_of(make_pod()) == {}


@pytest.mark.parametrize(
    ("pod", "allowed", "message"),
    [
        (pod_with("kernel.shm_rmid_forced"), (), None),
        (pod_with("net/ipv4/tcp_syncookies"), (), None),
        (pod_with("kernel.msgmax"), (), 'forbidden sysctl: "kernel.msgmax" not allowlisted'),
        (pod_with("kernel.msgmax"), ("kernel.msg*",), None),
        (pod_with("net.core.somaxconn"), ("net/core/somaxconn",), None),
        (
            pod_with("net.core.somaxconn2"),
            ("net.core.somaxconn",),
            'forbidden sysctl: "net.core.somaxconn2" not allowlisted',
        ),
        (
            pod_with("net.ipv4.tcp_syncookies", hostNetwork=True),
            (),
            'forbidden sysctl: "net.ipv4.tcp_syncookies" not allowed with host Net enabled',
        ),
        (
            pod_with("kernel.shm_rmid_forced", hostIPC=True),
            (),
            'forbidden sysctl: "kernel.shm_rmid_forced" not allowed with host IPC enabled',
        ),
        (
            pod_with("kernel.sem", hostIPC=True),
            ("kernel.sem",),
            'forbidden sysctl: "kernel.sem" not allowed with host IPC enabled',
        ),
        (pod_with("kernel.shm_rmid_forced", hostNetwork=True), (), None),
        (make_pod(), (), None),
    ],
)
def test_admission(pod: Pod, allowed: tuple[str, ...], message: str | None) -> None:
    assert forbidden_sysctl(pod, allowed) == message


@pytest.mark.parametrize("name", ["net.ipv4.tcp_slow_start_after_idle", "net/ipv4/tcp_notsent_lowat"])
def test_what_is_safe_since_1_37(name: str) -> None:
    assert forbidden_sysctl(pod_with(name), (), (5, 10)) is None
    refused = f'forbidden sysctl: "{normalized(name)}" not allowlisted'
    assert forbidden_sysctl(pod_with(name), (), (4, 5)) == refused
    assert forbidden_sysctl(pod_with(name), (), (5, 10), SAFE_1_36) == refused
    shared = f'forbidden sysctl: "{normalized(name)}" not allowed with host Net enabled'
    assert forbidden_sysctl(pod_with(name, hostNetwork=True), (), (5, 10)) == shared


def test_a_kernel_that_does_not_keep_it_per_namespace() -> None:
    pod = pod_with("net.ipv4.tcp_rmem")
    assert forbidden_sysctl(pod, (), (4, 14)) == 'forbidden sysctl: "net.ipv4.tcp_rmem" not allowlisted'
    assert forbidden_sysctl(pod, (), (4, 15)) is None


DEFAULTS = {
    "net.core.somaxconn": "1024",
    "kernel.sem": "1",
    "fs.mqueue.msg_max": "2",
    "kernel.domainname": "d",
    "user.x": "3",
}


@pytest.mark.parametrize(
    ("spec", "left_out"),
    [
        ({"hostUsers": False}, set()),
        ({}, {"user.x"}),
        ({"hostUsers": True}, {"user.x"}),
        ({"hostUsers": False, "hostNetwork": True}, {"net.core.somaxconn", "kernel.domainname"}),
        ({"hostUsers": False, "hostIPC": True}, {"kernel.sem", "fs.mqueue.msg_max"}),
    ],
)
def test_the_nodes_sysctls_are_for_namespaces_of_the_pods_own(spec: dict[str, Any], left_out: set[str]) -> None:
    assert DEFAULTS.keys() - with_defaults(make_pod(**spec), DEFAULTS).keys() == left_out


def test_the_pods_own_value_counts_before_the_nodes() -> None:
    found = with_defaults(pod_with("net/core/somaxconn", "kernel.msgmax"), DEFAULTS)
    assert (found["net.core.somaxconn"], found["kernel.msgmax"], found["kernel.sem"]) == ("1", "1", "1")
    assert with_defaults(pod_with("net.core.somaxconn"), {}) == {"net.core.somaxconn": "1"}
