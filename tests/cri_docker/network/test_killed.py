"""A process that is killed while it attaches a pod, at each plugin: the next one removes all of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.cni import ScriptedPlugins, sandbox_network

from pykubelet_cri_docker.network.pod_networks import PodNetworks

ADD = """
import asyncio, sys
from pykubelet_cri_docker.network.model import SandboxNetwork
from pykubelet_cri_docker.network.pod_networks import CniDirectories, PodNetworks
from support.cni import NamespaceFiles
configs, plugins, kept, namespaces = sys.argv[1:]
pod = SandboxNetwork("c1", "/proc/self/ns/net", "default", "web", "u-1")
async def add():
    await PodNetworks(CniDirectories(configs, (plugins,), kept), NamespaceFiles(namespaces)).add(pod)
asyncio.run(add())
"""


@pytest.mark.parametrize("killed_in", ["loopback", "first", "second"])
async def test_the_next_process_removes_what_there_is(tmp_path: Path, killed_in: str) -> None:
    plugins = ScriptedPlugins(tmp_path, "first", "second", "other")
    plugins.configure("first", "second")
    plugins.on(killed_in, "ADD", "kill -9 $PPID")
    where = plugins.directories
    words = [sys.executable, "-c", ADD, where.configs, where.plugins[-1], where.kept, plugins.namespaces.folder]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    killed = subprocess.run(words, env=environment, check=False, capture_output=True, timeout=120)  # noqa: ASYNC221
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    plugins.configure("other")
    plugins.calls()
    networks = PodNetworks(where, plugins.namespaces)
    assert await networks.find_result("c1") is None
    await networks.delete(sandbox_network(netns=""))
    assert plugins.call_names() == ["DEL second", "DEL first"]
    assert plugins.kept() == []
