"""What a pod costs the agent when there are many others: about as much as among few, because a change of one looks at no other.

Counted are the lines of Python that the agent executes, which are the same in each run. What runs in C for all pods, such as the copy
of a mapping, is not seen. The outcomes of threads come together in one run, as on a machine that is busy, and one by one in the other.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hostile.specs.launch import run

#: What 100 pods may cost of what 25 do, each.
STARTS, ENDS, RESTS = 1.1, 1.1, 1.0


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
