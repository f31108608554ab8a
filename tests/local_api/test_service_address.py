"""The address at which pods reach the API, in a network namespace of the test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RUN = """
import subprocess, sys
from pykubelet.base.kit.clock import SystemClock
from pykubelet.edges.host.proc.netlink import read_addresses
from pykubelet_local_api.options import LocalApiOptions
from pykubelet_local_api.wiring import build
def has(): return "10.96.0.1" in [found.address for found in read_addresses()]
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
import asyncio
async def main():
    program = build(LocalApiOptions(sys.argv[1], 0, "n1", "10.96.0.1"), SystemClock())
    print(len(program.listening), has())
    program.close()
    print(has())
asyncio.run(main())
"""


@pytest.mark.integration
def test_the_interface_has_the_address_as_long_as_the_api_is_there(tmp_path: Path) -> None:
    ended = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", RUN, str(tmp_path / "data")],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.stdout.splitlines() == ["2 True", "False"], ended.stderr
