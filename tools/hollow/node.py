"""One hollow node: the whole agent as wired for production, on a runtime and cgroups that exist only in this process.

Owns the node's folder and configuration. Everything else is the product's own code: configuration, sources, pod workers,
volumes, statuses, Lease, node status, certificates, ports.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from hollow.runtime import hollow_out
from pykubelet.app.flags import parse_command_line
from pykubelet.app.load import load
from pykubelet.app.parts import Periods
from pykubelet.app.wiring import Agent
from pykubelet.base.kit.clock import SystemClock
from pykubelet.base.kit.values import replace
from pykubelet.config.settings import Settings
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.host.proc.machine import Machine
from pykubelet.observe.eviction.model import EvictionPeriods
from pykubelet.observe.node.runtime import RuntimePeriods
from pykubelet.observe.pleg.decide import RelistPeriods
from pykubelet.testing.agent import doubled_agent, prepare_directories
from pykubelet.testing.cri.fake_answers import FakeFeatures
from pykubelet.testing.cri.in_memory import MemoryRuntime
from pykubelet.testing.host import MemoryCgroups

#: Each node's pods have addresses from a network of its own in this one.
POD_ADDRESSES = IPv4Network("10.64.0.0/10")
_NODE_PREFIX = 22
NODES_MAX = 1 << (_NODE_PREFIX - POD_ADDRESSES.prefixlen)
#: What each agent looks up on this machine, and asks of a runtime in its own process, is seldom news. What concerns the API server is
#: done as often as in production.
PERIODS = Periods(
    RuntimePeriods(when_well_s=60.0, answer_s=120.0, down_after_s=300.0, relist_late_s=300.0, relist_lost_s=600.0),
    RelistPeriods(with_events_s=120.0),
    EvictionPeriods(pass_s=300.0, memory_s=300.0),
    addresses_s=300.0,
    cgroups_s=300.0,
    plugins_s=300.0,
)
_NEVER = {"memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%"}


@dataclass(frozen=True, slots=True)
class Shape:
    """What the nodes have in common.

    `cpu_milli`, `memory`: what each has, in milli CPUs and bytes. `port_base`: node number n listens at this port plus n; 0: no
    node listens. `config`: fields laid over its KubeletConfiguration. `flags`: more flags; `{node}` in them is the node's name.
    """

    folder: Path
    prefix: str = "hollow-"
    cpu_milli: int = 8000
    memory: int = 32 << 30
    max_pods: int = 110
    port_base: int = 0
    config: Mapping[str, Any] = field(default_factory=dict)
    flags: Sequence[str] = ()

    def name(self, number: int) -> str:
        """The name of a node."""
        return f"{self.prefix}{number:04d}"


def configuration(shape: Shape, folder: Path, number: int) -> dict[str, Any]:
    """The KubeletConfiguration of a node. Pure.

    Nothing of this machine is the node's, so a shortage here evicts no pod and removes no image.
    """
    listens = {"port": shape.port_base + number} if shape.port_base else {"enableServer": False}
    usual = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{folder}/cri.sock",
        "podLogsDir": str(folder / "logs"),
        "volumePluginDir": str(folder / "volumeplugins"),
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": False,
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "oomScoreAdj": 0,
        "maxPods": shape.max_pods,
        "healthzPort": 0,
        "readOnlyPort": 0,
        "clusterDNS": ["10.96.0.10"],
        "clusterDomain": "cluster.local",
        "evictionHard": _NEVER,
        "imageGCHighThresholdPercent": 100,
        **listens,
    }
    return usual | dict(shape.config)


def command_line(shape: Shape, folder: Path, number: int) -> list[str]:
    """The flags of the node's agent. Pure."""
    name = shape.name(number)
    own = ["--config", str(folder / "kubelet.json"), "--hostname-override", name]
    own += ["--root-dir", str(folder / "root"), "--cert-dir", str(folder / "pki")]
    own += ["--kubeconfig", str(folder / "kubeconfig")]
    return own + [flag.replace("{node}", name) for flag in shape.flags]


def pod_network(number: int) -> IPv4Network:
    """The network of a node's pods. Pure."""
    base = int(POD_ADDRESSES.network_address) + (number % NODES_MAX << (32 - _NODE_PREFIX))
    return IPv4Network((base, _NODE_PREFIX))


class HollowNode:
    """`make` creates the agent; entering its context and `start` begin its life. Raises ConfigError and AgentStartError."""

    def __init__(self, shape: Shape, number: int) -> None:
        self.name = shape.name(number)
        self._shape = shape
        self._folder = shape.folder / self.name
        self._number = number
        clock = SystemClock()
        self._clock = clock
        for name in ("logs", "root", "pki"):
            (self._folder / name).mkdir(parents=True, exist_ok=True)
        features = FakeFeatures(cgroup_driver=pb.CGROUPFS)
        self.runtime = MemoryRuntime(str(self._folder / "cri.sock"), clock, features)
        self.runtime.records = False
        self.runtime.state.network = pod_network(number)
        hollow_out(self.runtime)

    def make(self) -> Agent:
        """The node's agent."""
        config = configuration(self._shape, self._folder, self._number)
        (self._folder / "kubelet.json").write_text(json.dumps(config, indent=2) + "\n")
        settings: Settings = load(parse_command_line(command_line(self._shape, self._folder, self._number)))
        self.runtime.start()
        return doubled_agent(settings, self._clock, self._machine(settings), self.runtime, MemoryCgroups(), PERIODS)

    def _machine(self, settings: Settings) -> Machine:
        """This machine with the size and the identity of the node."""
        shape, here = self._shape, prepare_directories(settings)
        return replace(
            here,
            cpu_milli=shape.cpu_milli,
            memory_bytes=shape.memory,
            swap_bytes=0,
            huge_pages=(),
            hostname=self.name,
            machine_id=f"{here.machine_id}-{self.name}",
            system_uuid=f"{here.system_uuid}-{self.name}",
        )
