"""Connections in the network namespace of another process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from support.threads import refuse_threads

from pykubelet.edges.host.proc.namespaces import connect_in

pytestmark = pytest.mark.integration
SERVER = """
import socket, subprocess
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
server = socket.create_server(("127.0.0.1", 8080))
print("ready", flush=True)
while True:
    connected, _ = server.accept()
    connected.sendall(b"hello")
    connected.close()
"""


@pytest.fixture
def netns() -> Iterator[str]:
    """The namespace of a process that serves port 8080 of its loopback address."""
    command = ["unshare", "--net", sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield f"/proc/{process.pid}/ns/net"
        process.kill()


async def test_a_port_of_another_namespace_answers_and_the_caller_stays_in_its_own(netns: str) -> None:
    own = os.readlink("/proc/thread-self/ns/net")
    connected = await connect_in(netns, (("127.0.0.1", 1), ("127.0.0.1", 8080)), 5.0)
    with connected:
        async with asyncio.timeout(5):
            assert await asyncio.get_running_loop().sock_recv(connected, 10) == b"hello"
    assert os.readlink("/proc/thread-self/ns/net") == own


async def test_what_does_not_answer_is_an_error(netns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConnectionRefusedError):
        await connect_in(netns, (("127.0.0.1", 9),), 5.0)
    with pytest.raises(FileNotFoundError):
        await connect_in("/proc/0/ns/net", (("127.0.0.1", 8080),), 5.0)
    refuse_threads(monkeypatch, "netns")
    with pytest.raises(BlockingIOError):  # the system has no thread left
        await connect_in(netns, (("127.0.0.1", 8080),), 5.0)
