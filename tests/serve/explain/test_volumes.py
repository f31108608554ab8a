"""The notes of `pykubelet explain` about volumes, from published state alone."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

from serve.world import make_world

from pykubelet.app.volumes_shown import volume_lines
from pykubelet.base.kit.cells import make_cell
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.values import replace
from pykubelet.base.model.content import Content
from pykubelet.base.model.diagnostics import Diagnostics, PodDiagnostics
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.mounts import DeviceStatus, Mounts, MountStatus, PodMounts
from pykubelet.base.model.node import ApiNode
from pykubelet.base.model.paths import Paths
from pykubelet.base.model.plugins import Plugins
from pykubelet.edges.host.proc.kernel_waits import ProcessState, kernel_wait, process_state
from pykubelet.edges.plugins.peer import serving_process
from pykubelet.net.http.server import Request
from pykubelet.serve.explain.documents import StorageCells, ask_routes
from pykubelet.serve.explain.volumes import VolumeContext, VolumeSearch, volume_documents

NAMES = {PodUID("a"): "default/a", PodUID("b"): "default/b"}


def statuses(state: str, *, is_busy: bool, is_leaving: bool = False) -> tuple[MountStatus, ...]:
    device = DeviceStatus("csi/d^1", "mounted for the node", 1.0, "/plugins/1")
    return (MountStatus("data", "disk", state, 1.0, is_busy=is_busy, is_leaving=is_leaving, device=device),)


def test_the_operation_for_another_pod_that_a_volume_waits_for() -> None:
    waits = statuses("mounted, to be unmounted", is_busy=False, is_leaving=True)
    every = {PodUID("a"): waits, PodUID("b"): statuses("being mounted", is_busy=True)}
    context = VolumeContext(ApiNode(), Plugins(), NAMES, 0.0, statuses=every)
    (document,) = volume_documents(PodUID("a"), context)
    assert document["notes"] == ["waits for an operation on the same volume, for pod default/b: being mounted"]
    (document,) = volume_documents(PodUID("b"), context)
    assert document["notes"] == []


def test_who_serves_a_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    assert serving_process(path) == f"{path} cannot be reached: No such file or directory"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(1)
        found = serving_process(path)
        assert isinstance(found, ProcessState) and found.pid == os.getpid()
    assert serving_process(path) == f"nothing listens on {path}: its process does not run"


def test_the_state_of_a_process_with_an_odd_name() -> None:
    script = "import os, signal; open('/proc/self/comm', 'w').write('a) T (b'); os.kill(os.getpid(), signal.SIGSTOP)"
    with subprocess.Popen([sys.executable, "-c", script]) as process:
        os.waitpid(process.pid, os.WUNTRACED)
        assert process_state(process.pid) == ProcessState(process.pid, "a) T (b", "T")
        os.kill(process.pid, signal.SIGKILL)
    assert process_state(process.pid) is None


async def test_the_thread_of_work_is_known_while_it_runs() -> None:
    flight, begun, goes_on = SingleFlight("test"), asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def work() -> int:
        loop.call_soon_threadsafe(begun.set)
        goes_on.wait()
        return threading.get_native_id()

    task = asyncio.ensure_future(flight.run("volume/1", work, 60.0))
    await begun.wait()
    thread = flight.thread("volume/1")
    assert thread is not None and kernel_wait(thread) == "", "it waits for this process, not for a file system"
    goes_on.set()
    assert getattr(await task, "value", None) == thread
    assert flight.thread("volume/1") is None


async def test_volumes_of_pods_that_are_gone_are_shown_with_the_node(tmp_path: Path) -> None:
    """After a restart, such a pod is known by its directory only."""
    world, paths = make_world(), Paths(str(tmp_path), str(tmp_path), str(tmp_path))
    (tmp_path / "pods/gone/volumes/kubernetes.io~csi/data/mount").mkdir(parents=True)
    volume = MountStatus(
        "data",
        "data",
        "not unmounted",
        1.0,
        directory="volumes/kubernetes.io~csi/data",
        error="busy",
        is_leaving=True,
        next_step="try to unmount again",
    )
    gone = PodUID("gone")
    world.mounts.publish(Mounts({**world.inputs.mounts.get().pods, gone: PodMounts(holds=True)}))
    world.volumes.answer_with(lambda: Diagnostics({gone: PodDiagnostics(volumes=(volume,))}))
    empty = make_cell("content", Content())[0]
    storage = StorageCells(make_cell("api-node", ApiNode())[0], empty, VolumeSearch(paths, SingleFlight("test")))
    holder = os.open(tmp_path / "pods/gone/volumes/kubernetes.io~csi/data/mount/file", os.O_CREAT)
    try:
        answer = await ask_routes(replace(world.inputs, storage=storage), world.clock)(Request("GET", "/node"))
    finally:
        os.close(holder)
    (left,) = json.loads(answer.body)["left_volumes"]
    assert left["pod"] == "gone"
    lines = list(volume_lines(left["volumes"], 1.0, str))
    assert lines[0].startswith("data: not unmounted") and lines[-1] == "  next  try to unmount again"
    held = f"  held by process {os.getpid()} ("
    assert any(line.startswith(held) and line.endswith("/data/mount/file") for line in lines)
