"""Memory that was freed inside of the heap goes back to the system, in a small process."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from pykubelet.edges.host.proc.self_stats import anonymous_memory
from pykubelet.edges.host.services.allocator import give_back_memory, spare_memory

spare_memory()
blocks = [bytes(8192) for _ in range(2000)]
kept = blocks[::100]
blocks.clear()
before = anonymous_memory()
give_back_memory(int(sys.argv[1]))
print(before - anonymous_memory())
"""
MIB = 1 << 20


@pytest.mark.parametrize(("used", "least", "most"), [(40 * MIB, 8 * MIB, 17 * MIB), (200 * MIB, -MIB, MIB)])
def test_freed_memory_goes_back_to_the_system(used: int, least: int, most: int) -> None:
    given = subprocess.run((sys.executable, "-c", PROGRAM, str(used)), capture_output=True, check=True, text=True)
    assert least <= int(given.stdout) <= most
