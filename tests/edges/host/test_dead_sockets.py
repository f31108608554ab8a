"""The port of a real process that SIGKILL does not end, because a thread of it waits for a file system that hangs."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from testbed.fuse import HangingFileSystem

from pykubelet.edges.host.proc.dead_sockets import is_dying, release_port
from pykubelet.serve.listen import open_port

SCRIPT = """
import os, socket, sys, threading
s = socket.create_server(("{address}", 0), family=socket.{family})
threading.Thread(target=os.stat, args=("{path}/file",), daemon=True).start()
print(s.getsockname()[1], flush=True)
sys.stdin.read()
"""


@contextmanager
def listener(
    disk: HangingFileSystem, family: str = "AF_INET", address: str = "127.0.0.1"
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A process that listens at the port, with a thread that looks at the file system."""
    script = SCRIPT.format(path=disk.path, family=family, address=address)
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.kill()
            disk.answer()


def wait_until_it_waits(pid: int, disk: HangingFileSystem) -> None:
    """Until a thread of the process waits for the file system, and SIGKILL would not end it."""
    deadline = time.monotonic() + 20
    while not any(path.read_text() == "request_wait_answer" for path in Path(f"/proc/{pid}/task").glob("*/wchan")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    disk.take()


@pytest.mark.parametrize(("family", "address"), [("AF_INET", "127.0.0.1"), ("AF_INET6", "::"), ("AF_INET", "0.0.0.0")])
def test_a_killed_process_that_cannot_end_gives_up_its_port(tmp_path: Path, family: str, address: str) -> None:
    with HangingFileSystem(tmp_path / "mounted", tmp_path / "data") as disk:
        disk.hang()
        with listener(disk, family, address) as (process, port):
            wait_until_it_waits(process.pid, disk)
            process.kill()
            deadline = time.monotonic() + 20
            while not is_dying(process.pid):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            with (
                open_port(address, port) as ours,
                socket.create_connection(("127.0.0.1", port) if family == "AF_INET" else ("::1", port)),
            ):
                ours.setblocking(True)
                ours.accept()[0].close()


def test_a_process_that_runs_keeps_its_port(tmp_path: Path) -> None:
    with HangingFileSystem(tmp_path / "mounted", tmp_path / "data") as disk:
        disk.hang()
        with listener(disk) as (process, port):
            wait_until_it_waits(process.pid, disk)
            assert not is_dying(process.pid)
            assert not release_port(port)
            with pytest.raises(OSError, match="in use"):
                open_port("127.0.0.1", port)
