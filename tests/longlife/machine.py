"""One node in memory: the whole agent as wired for production, between doubles of the runtime, the API server and the host."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TextIO

from support.memory_api import MemoryApiServer
from support.virtual_time import VirtualClock, VirtualLoop
from support.world import kubeconfig

from pykubelet.app.flags import parse_command_line
from pykubelet.app.load import load
from pykubelet.app.parts import Periods
from pykubelet.app.wiring import Agent
from pykubelet.config.settings import Settings
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.kubeapi.listwatch import WatchPeriods
from pykubelet.observe.eviction.model import EvictionPeriods
from pykubelet.observe.node.runtime import RuntimePeriods
from pykubelet.observe.pleg.decide import RelistPeriods
from pykubelet.testing.agent import doubled_agent, prepare_directories
from pykubelet.testing.cri.fake_answers import FakeFeatures
from pykubelet.testing.cri.in_memory import MemoryRuntime
from pykubelet.testing.host import MemoryCgroups

NODE_NAME = "node"
NODE_IP = "192.0.2.10"
READ_ONLY_PORT = 10255
Json = dict[str, Any]
USUAL = Periods()
#: Less often than in production, where each look costs time and finds nothing new, and where each try finds a server that is still
#: away: a month is affordable.
QUIET = Periods(
    RuntimePeriods(
        when_well_s=120.0,
        down_after_s=300.0,
        relist_late_s=300.0,
        relist_lost_s=700.0,
        retries_s=(0.1, 0.2, 0.4, 1.0, 30.0),
    ),
    RelistPeriods(with_events_s=120.0),
    EvictionPeriods(pass_s=300.0, memory_s=300.0),
    images_s=900.0,
    addresses_s=900.0,
    cgroups_s=900.0,
    garbage_s=900.0,
    certificates_s=900.0,
    plugins_s=900.0,
    watch=WatchPeriods(retry_max=60.0),
    node_retry_max_s=60.0,
    status_retry_max_s=60.0,
    event_retry_max_s=60.0,
)


def configuration(folder: Path) -> Json:
    """The KubeletConfiguration, with the periods that make a month affordable. Each is one that administrators may choose."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "staticPodPath": str(folder / "manifests"),
        "containerRuntimeEndpoint": f"unix://{folder}/cri.sock",
        "podLogsDir": str(folder / "logs"),
        "volumePluginDir": str(folder / "volumeplugins"),
        "cgroupDriver": "cgroupfs",
        "makeIPTablesUtilChains": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,  # it is written to this very process now and then
        "failCgroupV1": False,
        "address": "127.0.0.1",
        "clusterDNS": ["10.96.0.10"],
        "clusterDomain": "cluster.local",
        "readOnlyPort": READ_ONLY_PORT,
        "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "rotateCertificates": True,
        "serverTLSBootstrap": True,
        "nodeLeaseDurationSeconds": 1200,
        "nodeStatusUpdateFrequency": "5m",
        "nodeStatusReportFrequency": "10m",
        "syncFrequency": "5m",
        "fileCheckFrequency": "20m",
        "containerLogMaxSize": "64Ki",
        "containerLogMaxFiles": 3,
        "containerLogMonitorInterval": "10m",
        "imageMaximumGCAge": "48h",
        "evictionHard": {"memory.available": "1Mi", "nodefs.available": "1%"},
        "cpuManagerPolicy": "static",
        "cpuManagerReconcilePeriod": "20m",
        "systemReserved": {"cpu": "100m"},
    }


class Lines:
    """Where the agent's log goes: counted, and kept with the virtual day and hour before each line."""

    def __init__(self, file: TextIO, loop: VirtualLoop, start: float) -> None:
        self._file = file
        self._loop = loop
        self._start = start
        self.lines = 0
        self.bytes = 0
        self.errors: list[str] = []

    def write(self, text: str) -> int:
        self.lines += text.count("\n")
        self.bytes += len(text)
        if text.startswith("E"):
            self.errors.append(text)
        day, rest = divmod(self._loop.now - self._start, 86400)
        self._file.write(
            f"{int(day) + 1:2d} {int(rest // 3600):02d}:{int(rest % 3600 // 60):02d}:{rest % 60:06.3f} {text}"
        )
        return len(text)

    def flush(self) -> None:
        self._file.flush()


class Node:
    """The machine, what is around it, and one life of the agent after the other. `more`: fields of the KubeletConfiguration."""

    def __init__(self, folder: Path, loop: VirtualLoop, wall: float, **more: object) -> None:
        self.folder = folder
        self.loop = loop
        self.clock = VirtualClock(loop, wall)
        self.began = loop.now
        for name in ("manifests", "logs", "root", "pki"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self.manifests = folder / "manifests"
        self.api = MemoryApiServer(self.clock)
        features = FakeFeatures(cgroup_driver=pb.CGROUPFS)
        self.runtime = MemoryRuntime(str(folder / "cri.sock"), self.clock, features)
        self.runtime.records = False
        self.cgroups = MemoryCgroups()
        self.agent: Agent | None = None
        self.lives = 0
        (folder / "kubelet.json").write_text(json.dumps(configuration(folder) | more))

    async def start(self) -> None:
        self.runtime.start()
        await self.api.start()
        kubeconfig(self.api, self.folder / "kubeconfig")

    def settings(self) -> Settings:
        folder = self.folder
        return load(
            parse_command_line(
                [
                    *("--config", str(folder / "kubelet.json"), "--kubeconfig", str(folder / "kubeconfig")),
                    *("--root-dir", str(folder / "root"), "--cert-dir", str(folder / "pki")),
                    *("--hostname-override", NODE_NAME, "--node-ip", NODE_IP),
                ]
            )
        )

    @contextlib.asynccontextmanager
    async def life(self, periods: Periods) -> AsyncIterator[Agent]:
        """One life of the agent, from its start to SIGTERM."""
        settings = self.settings()
        machine = prepare_directories(settings)
        async with doubled_agent(settings, self.clock, machine, self.runtime, self.cgroups, periods) as agent:
            self.agent = agent
            self.lives += 1
            await agent.start()
            yield agent
        self.agent = None

    @property
    def day(self) -> float:
        return (self.loop.now - self.began) / 86400.0
