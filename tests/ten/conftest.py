"""A cluster of ten nodes for the whole run. All tests below this folder need it (`make test-ten`)."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from support.cluster import Cluster
from ten.nodes import Ten, make_nodes
from ten.workloads import start_workloads
from testbed import controlplane, host, kubernetes, places, segment
from testbed import node as testbed_node
from testvm.builds import BUILT, PROGRAMS

NODES = 10
#: The nodes with a containerd of their own, at least 3. Each costs 50 MB, and 15 MB more for each of its pods.
REAL = max(3, int(os.environ.get("TEN_CONTAINERD", "3")))
#: How long a node may be silent until the control plane gives it up; where everything is slow, its Lease may be late.
_GRACE = {} if host.SLOWNESS == 1 else {"node-monitor-grace-period": "150s"}


def pytest_itemcollected(item: pytest.Item) -> None:
    """Whatever is in this folder needs the ten nodes."""
    item.add_marker(pytest.mark.ten)
    if BUILT.exists() and not (BUILT / PROGRAMS).exists():
        item.add_marker(pytest.mark.skip(reason=f"{kubernetes.VARIABLE} names no folder with a control plane"))


@pytest.fixture(scope="session")
def ten() -> Iterator[Ten]:
    """Ten nodes that are Ready, with a Deployment of 300 pods, a StatefulSet, a DaemonSet, and a static pod on each."""
    if os.geteuid() != 0:
        pytest.fail("needs root: network namespaces, containerd, cgroups")
    testbed_node.sweep_dead_runs()
    folder = places.run_folder("ten")
    try:
        net = segment.up(folder)
        plane = controlplane.up(folder, controllers_flags=_GRACE, address=net.address)
        found = Ten(Cluster(plane), make_nodes(folder, net, plane, NODES, REAL), folder / "shared")
        found.start()
        start_workloads(found)
        yield found
        found.cluster.close()
    finally:
        testbed_node.down(folder)
