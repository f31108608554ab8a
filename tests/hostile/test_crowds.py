"""What a pod costs the agent when there are many others: about as much as among few, because a change of one looks at no other.

Counted are the lines of Python that the agent executes, and the bytes that lines of it allocate that allocate many, such as those that
copy a mapping of all pods in C. Both are the same in each run. Pods start and end all at once, so that one pass serves many of them, and
one by one. The outcomes of threads come together in one run, as on a machine that is busy, and one by one in the other.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hostile.specs.launch import run

#: What 100 pods may cost of what 25 do, each.
STARTS, ENDS, RESTS = 1.1, 1.1, 1.0
#: What a pod among 100 others may cost of what one among 25 does: lines, and bytes that are copied. A file that has all pods is one copy.
AMONG, COPIES = 1.08, 1.25


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts and namespaces")
@pytest.mark.parametrize("threads", ["together", "apart"])
def test_a_pod_of_a_crowd_costs_no_more_than_one_of_few(tmp_path: Path, threads: str) -> None:
    few, many = run(tmp_path / "node", "crowd", threads, "25", "100")
    for stage, limit in (("start", STARTS), ("end", ENDS), ("rest", RESTS)):
        grown = {
            name: lines - few["by_name"][stage].get(name, 0)
            for name, lines in many["by_name"][stage].items()
            if lines > 1.1 * few["by_name"][stage].get(name, 0)
        }
        assert many[stage] < limit * few[stage], f"{stage}: lines by pod that grow with the number of pods: {grown}"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts and namespaces")
def test_a_pod_that_starts_or_ends_alone_costs_no_more_among_many(tmp_path: Path) -> None:
    _, few, many = run(tmp_path / "node", "among", "5", "25", "100")  # the first ones fill caches
    for stage, limit in (("start", AMONG), ("end", AMONG), ("copied_start", COPIES), ("copied_end", COPIES)):
        grown = {
            name: (few["by_name"][stage].get(name, 0), much)
            for name, much in many["by_name"][stage].items()
            if much > 1.1 * few["by_name"][stage].get(name, 0) + many[stage] / 1000
        }
        assert many[stage] < limit * few[stage], f"{stage}: by pod among few and among many: {grown}"
