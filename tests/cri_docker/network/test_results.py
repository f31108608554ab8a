"""Results and errors of plugins."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cni import RESULT

from pykubelet_cri_docker.network.model import (
    CniError,
    NetworkAddress,
    NetworkInterface,
    NetworkResult,
    NetworkRoute,
)
from pykubelet_cri_docker.network.results import MAX_ENTRIES, is_gone, read_failure, read_object, read_result


def test_a_result() -> None:
    assert read_result(RESULT, "1.0.0") == NetworkResult(
        interfaces=(NetworkInterface("cni0", "00:00:00:00:00:01"), NetworkInterface("eth0", sandbox="/proc/7/ns/net")),
        addresses=(NetworkAddress("10.1.0.5/24", "10.1.0.1", 1),),
        routes=(NetworkRoute("0.0.0.0/0"),),
        name_servers=("10.1.0.10",),
    )


@pytest.mark.parametrize(
    ("result", "ips"),
    [
        ({"cniVersion": "0.3.1", "ips": [{"version": "4", "address": "10.1.0.5/24"}]}, ("10.1.0.5",)),
        ({"ips": [{"address": "10.1.0.5/24"}], "interfaces": None, "routes": None}, ("10.1.0.5",)),
        ({"ip4": {"ip": "10.1.0.5/24", "gateway": "10.1.0.1"}, "ip6": {"ip": "fd00::5/64"}}, ("10.1.0.5", "fd00::5")),
        ({"ips": [{"address": "fd00::5/64"}, {"address": "10.1.0.5/24"}]}, ("10.1.0.5", "fd00::5")),
        ({"ips": [{"address": "10.1.0.5/24"}] * 2}, ("10.1.0.5",)),
        ({"interfaces": [{"name": "cni0"}], "ips": [{"address": "10.1.0.1/24", "interface": 0}]}, ()),
        ({"interfaces": [{"name": "cni0"}], "ips": [{"address": "10.1.0.1/24", "interface": 7}]}, ()),
        ({}, ()),
    ],
)
def test_addresses_of_the_pod(result: dict[str, Any], ips: tuple[str, ...]) -> None:
    assert read_result(result, "0.2.0").pod_ips == ips


def test_routes_and_resolver_of_an_old_result() -> None:
    result = {
        "cniVersion": "0.2.0",
        "ip4": {"ip": "10.1.0.5/24", "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}]},
        "dns": {"domain": "a.local", "search": ["b.local"], "options": ["ndots:2"]},
    }
    found = read_result(result, "0.2.0")
    assert found.routes == (NetworkRoute("0.0.0.0/0", "10.1.0.1"),)
    assert (found.domain, found.searches, found.options) == ("a.local", ("b.local",), ("ndots:2",))


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        ({"cniVersion": "9.0.0"}, "unknown version 9.0.0"),
        ({"ips": [{"address": "here"}]}, "'here', which is none"),
        ({"ips": [{}]}, "required field `address`"),
        ({"ips": "x"}, "Expected `array"),
        ({"ips": [{"address": "10.1.0.5/24"}] * (MAX_ENTRIES + 1)}, f"more than {MAX_ENTRIES} entries"),
    ],
)
def test_a_result_that_cannot_be_read(result: dict[str, Any], problem: str) -> None:
    with pytest.raises(CniError) as caught:
        read_result(result, "1.0.0")
    assert problem in str(caught.value)


@pytest.mark.parametrize("out", [b"", b"hello", b"[1]", b"\xff", b"[" * 100_000])
def test_output_that_is_no_result(out: bytes) -> None:
    with pytest.raises(CniError, match="did not print a result") as caught:
        read_object(out)
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize(
    ("out", "err", "code", "text"),
    [
        (b'{"code": 11, "msg": "try again", "details": "later"}', b"log", 1, "try again; later (code 11)"),
        (b'{"code": 999, "msg": "no\\u001b[31m way"}', b"", 1, "no\\x1b[31m way (code 999)"),
        (b'{"msg": "no way"}', b"", 1, "no way"),
        (b"panic:\n  here", b"", 2, "exit status 2: panic: here"),
        (b"", b"cannot allocate\n", 2, "exit status 2: cannot allocate"),
        (b"{}", b"", 1, "exit status 1: {}"),
        (b"", b"", -9, "ended by signal 9 without a message"),
        (b'{"msg": 7}', b"", 1, 'exit status 1: {"msg": 7}'),
    ],
)
def test_errors_of_plugins(out: bytes, err: bytes, code: int, text: str) -> None:
    assert str(read_failure(out, err, code)) == text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5) | st.just("10.1.0.5/24"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(("ips", "address", "interface", "interfaces", "ip4", "ip", "dns", "routes")), inner
        )
    ),
    max_leaves=12,
)


@given(st.binary(max_size=40) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_output_is_a_result_or_an_error(out: bytes) -> None:
    try:
        assert isinstance(read_result(read_object(out), "1.0.0").pod_ips, tuple)
    except CniError as error:
        assert len(str(error)) < 3000
    assert str(read_failure(out, out, 1))


def test_a_long_error_is_cut() -> None:
    assert len(str(read_failure(b"x" * 1_000_000, b"", 1))) < 1100


@pytest.mark.parametrize(
    ("text", "netns", "gone"),
    [
        ("Link not found", "/ns", True),
        ("open /ns: no such file or directory", "", True),
        ("open /ns: no such file or directory", "/ns", False),
        ('exec: "iptables": executable file not found in $PATH', "", False),
        ("permission denied", "", False),
    ],
)
def test_what_is_gone_need_not_be_removed(text: str, netns: str, gone: bool) -> None:
    assert is_gone(CniError(text), netns) is gone
