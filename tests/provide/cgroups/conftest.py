"""A driver of cgroups that holds groups in memory and fails on request, and what is made with it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import cast

import msgspec
import pytest

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.cells import Sink
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.edges.host.cgroups.cgroup_values import CgroupLimits, CgroupVersion
from pykubelet.edges.host.cgroups.cgroups import Cgroups
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.provide.cgroups.execute import (
    DEFAULT_RETRY_LIMITS,
    PodCgroups,
)
from pykubelet.provide.cgroups.model import (
    NodeResources,
    ResourceSettings,
)

NODE = NodeResources({"cpu": 2000, "memory": 8 << 30})


def pod(uid: str, cpu: str = "") -> Pod:
    resources = {"requests": {"cpu": cpu}} if cpu else {}
    spec = {"containers": [{"name": "c", "resources": resources}]}
    return msgspec.convert({"metadata": {"name": uid, "namespace": "ns", "uid": uid}, "spec": spec}, Pod)


class FakeCgroups:
    """Groups in memory. `refuse`: path to error; `busy`: how often a path refuses to go; `gates`: hangs until set.

    `at_gate`: set once a call hangs.
    """

    version = CgroupVersion.V2

    def __init__(self) -> None:
        self.groups: dict[str, CgroupLimits] = {"/": CgroupLimits()}
        self.refuse: dict[str, HostError] = {}
        self.busy: dict[str, int] = {}
        self.killed: list[str] = []
        self.used: dict[str, int] = {}
        self.lacking: dict[str, tuple[str, ...]] = {}
        self.gates: dict[str, threading.Event] = {}
        self.at_gate = threading.Event()
        self.usable = frozenset({"cpu", "cpuset", "memory", "pids"})

    def controllers(self) -> frozenset[str]:
        return self.usable

    def exists(self, path: str) -> bool:
        return path in self.groups

    def missing(self, path: str) -> tuple[str, ...]:
        if path not in self.groups:
            raise HostError("open", f"/sys/fs/cgroup{path}/cgroup.controllers", "ENOENT", "no such file or directory")
        return self.lacking.get(path, ())

    def create(self, path: str, limits: CgroupLimits) -> None:
        if path in self.gates:
            self.at_gate.set()
            self.gates[path].wait(10)
        parts = path.strip("/").split("/")
        for depth in range(1, len(parts) + 1):
            self.groups.setdefault("/" + "/".join(parts[:depth]), CgroupLimits())
        self.update(path, limits)

    def update(self, path: str, limits: CgroupLimits) -> None:
        if path in self.refuse:
            raise self.refuse[path]
        self.groups[path] = limits

    def files(self, path: str) -> frozenset[str]:
        return frozenset({"memory.low"})

    def memory_used(self, path: str) -> int:
        if path in self.refuse:
            raise self.refuse[path]
        return self.used.get(path, 0)

    def remove(self, path: str) -> bool:
        if self.busy.get(path, 0) > 0:
            self.busy[path] -= 1
            return False
        if path in self.refuse:
            raise self.refuse[path]
        self.groups.pop(path, None)
        return True

    def pids(self, path: str) -> frozenset[int]:
        return frozenset()

    def kill(self, path: str) -> int:
        self.killed.append(path)
        return 1

    def children(self, path: str) -> tuple[str, ...]:
        inner = path.rstrip("/") + "/"
        return tuple(sorted({p.removeprefix(inner).split("/")[0] for p in self.groups if p.startswith(inner)}))


@pytest.fixture
def fake() -> FakeCgroups:
    return FakeCgroups()


@pytest.fixture
def recorder() -> Sink[KubeEvent]:
    return Sink()


Make = Callable[..., PodCgroups]


@pytest.fixture
def make(fake: FakeCgroups, recorder: Sink[KubeEvent]) -> Make:
    return lambda retry_limits=DEFAULT_RETRY_LIMITS, **settings: PodCgroups(
        ResourceSettings(**settings), NODE, cast(Cgroups, fake), SingleFlight("test"), recorder, retry_limits
    )


def active(*pods: Pod) -> dict[PodUID, Pod]:
    return {PodUID(pod.metadata.uid): pod for pod in pods}
