"""What is remembered of the hosts of probes."""

from __future__ import annotations

import socket
import sys

import pytest

from pykubelet.edges.probing.dial import MAX_HOST, join_host_port, literal_family
from pykubelet.edges.probing.http_target import HttpTarget, target_url


@pytest.mark.parametrize(
    ("host", "family"),
    [
        ("10.0.0.1", socket.AF_INET),
        ("fd00::1", socket.AF_INET6),
        ("fe80::1%eth0", socket.AF_INET6),
        ("name", None),
        ("1" * (MAX_HOST + 1), None),
    ],
)
def test_the_family_of_an_address_is_known(host: str, family: socket.AddressFamily | None) -> None:
    assert literal_family(host) == family


def test_a_long_host_stays_nowhere() -> None:
    """Thousands of hosts are remembered, also of pods that have gone, and a host may have as many bytes as a request."""
    host = "x" * 1000
    held = sys.getrefcount(host)
    literal_family(host)
    join_host_port(host, 80)
    target_url(HttpTarget("http", host, 80))
    assert sys.getrefcount(host) == held
