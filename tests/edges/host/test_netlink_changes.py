"""Addresses that are added to an interface and removed again, in a network namespace of the test."""

from __future__ import annotations

import subprocess
import sys

import pytest

CHANGES = """
from pykubelet.edges.host.proc.netlink import add_address, read_addresses, remove_address
def has(address): return address in [found.address for found in read_addresses()]
for address in ("10.96.0.1", "fd00::1"):
    print(add_address("lo", address), add_address("lo", address), has(address))
    print(remove_address("lo", address), remove_address("lo", address), has(address))
"""


@pytest.mark.integration
def test_an_address_is_added_once_and_removed_once() -> None:
    ended = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", CHANGES], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout.splitlines() == ["True False True", "True False False"] * 2
