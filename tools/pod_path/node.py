"""A node whose agent is recorded while it starts a static pod: the whole agent, between doubles of the runtime and the host.

The node stands alone and its time is virtual, so that nothing else happens meanwhile.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from lifecycle.world import with_own_links
from support.virtual_time import virtual_clock

from pod_path.recording import Recorder
from pykubelet.app.flags import parse_command_line
from pykubelet.base.kit.clock import Clock
from pykubelet.config.settings import Settings
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.testing.agent import doubled_agent, prepare_directories
from pykubelet.testing.cri.fake_answers import FakeFeatures
from pykubelet.testing.cri.fake_state import FakeImage
from pykubelet.testing.cri.in_memory import MemoryRuntime, Serve
from pykubelet.testing.host import MemoryCgroups

IMAGE = "registry.example/app:1"
POD = f"""apiVersion: v1
kind: Pod
metadata:
  name: pod
spec:
  containers:
  - name: app
    image: {IMAGE}
    volumeMounts:
    - name: data
      mountPath: /data
  volumes:
  - name: data
    emptyDir: {{}}
"""
#: What makes the pod Guaranteed, so that the CPU Manager gives it a CPU of its own.
GUARANTEED = '\n    resources: {limits: {cpu: "1", memory: 1Gi}}'
#: Seconds of virtual time after which a new agent is idle. No periodic work is due then.
IDLE_S = 47.3
#: The pod starts in such a time, or not at all.
LIMIT_S = 30.0


class _Runtime(MemoryRuntime):
    """Ends the recording when the first container is started."""

    def __init__(self, path: str, clock: Clock, recorder: Recorder) -> None:
        super().__init__(path, clock, FakeFeatures(cgroup_driver=pb.CGROUPFS))
        self._recorder = recorder
        self.has_started = asyncio.Event()

    def serve(self, method: str) -> Serve | None:
        if method == "StartContainer" and not self.has_started.is_set():
            self._recorder.end()
            self.has_started.set()
        return super().serve(method)


async def start_pod(folder: Path, recorder: Recorder, *, guaranteed: bool = False) -> None:
    """Start an agent and, when it is idle, one pod; record from the event about the manifest to the call of StartContainer."""
    clock = virtual_clock()
    for name in ("manifests", "made", "logs", "root", "pki"):
        (folder / name).mkdir(parents=True)
    runtime = _Runtime(str(folder / "cri.sock"), clock, recorder)
    runtime.state.images[IMAGE] = FakeImage(IMAGE)
    runtime.start()
    settings = _settings(folder)
    async with doubled_agent(settings, clock, prepare_directories(settings), runtime, MemoryCgroups()) as agent:
        await agent.start()
        await asyncio.sleep(IDLE_S)
        made = folder / "made" / "pod.yaml"
        image = f"image: {IMAGE}"
        made.write_text(POD.replace(image, image + GUARANTEED) if guaranteed else POD)
        recorder.begin()
        made.rename(folder / "manifests" / "pod.yaml")
        async with asyncio.timeout(LIMIT_S):
            await runtime.has_started.wait()


def _settings(folder: Path) -> Settings:
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "staticPodPath": str(folder / "manifests"),
        "containerRuntimeEndpoint": f"unix://{folder}/cri.sock",
        "podLogsDir": str(folder / "logs"),
        "volumePluginDir": str(folder / "volumeplugins"),
        "cgroupDriver": "cgroupfs",
        "makeIPTablesUtilChains": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,  # it would be written to this very process
        "failCgroupV1": False,
        "enableServer": False,
        "healthzPort": 0,
        "clusterDNS": ["10.96.0.10"],
        "clusterDomain": "cluster.local",
        "cpuManagerPolicy": "static",
        "systemReserved": {"cpu": "100m"},
        "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0.1%"},
        "imageGCHighThresholdPercent": 100,
    }
    (folder / "kubelet.json").write_text(json.dumps(config))
    flags = ["--config", str(folder / "kubelet.json"), "--hostname-override", "node"]
    flags += ["--root-dir", str(folder / "root"), "--cert-dir", str(folder / "pki")]
    return with_own_links(parse_command_line(flags))
