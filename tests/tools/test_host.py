"""The testbed's reach into the machine ends at what is its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from testbed import claims, host

from pykubelet.edges.host.devices.loops import attach_loop, find_loops


@pytest.mark.parametrize("cgroup", ["/", "", "/..", "/a/../.."])
def test_the_root_group_is_refused(cgroup: str) -> None:
    with pytest.raises(host.TestbedError, match="not a cgroup of our own"):
        host.remove_cgroup(cgroup)


def test_a_daemon_has_its_own_session_and_its_output_is_kept(tmp_path: Path) -> None:
    script = "import os, time; print('session', os.getsid(0) == os.getpid(), flush=True); time.sleep(100)"
    pid = host.spawn([sys.executable, "-c", script], tmp_path / "log", dict(os.environ))
    assert host.wait_until(lambda: "session True" in (tmp_path / "log").read_text(), 60)
    assert host.read_process(pid) is not None
    host.end_process(pid, 5)
    assert host.read_process(pid) is None


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    script = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(100)"
    pid = host.spawn([sys.executable, "-c", script], tmp_path / "log", dict(os.environ))
    assert host.wait_until(lambda: "up" in (tmp_path / "log").read_text(), 60)
    host.end_process(pid, 0.1)
    assert host.read_process(pid) is None


def test_a_process_that_is_gone_is_no_error() -> None:
    host.kill_all([2**22 + 1])


def test_agents_and_drivers_of_a_folder_are_found_by_their_root_directory(tmp_path: Path) -> None:
    script = "print('up', flush=True); import time; time.sleep(100)"

    def start(*words: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", script, *words], stdout=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        return process

    own = [start("--root-dir", f"{tmp_path}/a/root"), start("--root", f"{tmp_path}/a/root")]
    others = [start("--root-dir", f"{tmp_path}/ab/root"), start(f"{tmp_path}/a/file")]
    try:
        assert sorted(host.users_of(tmp_path / "a")) == sorted(process.pid for process in own)
    finally:
        for process in own + others:
            process.kill()
            process.communicate()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for loop devices")
def test_loop_devices_on_files_of_a_folder_are_detached(tmp_path: Path) -> None:
    images = [tmp_path / name / "image" for name in ("a", "b")]
    for image in images:
        image.parent.mkdir()
        with image.open("wb") as file:
            file.truncate(1 << 20)
        attach_loop(str(image))
    first, second = images
    second_loops = find_loops(str(second))
    first.unlink()
    try:
        host.detach_loops(first.parent)
        assert find_loops(str(first)) == [] and find_loops(str(second)) == second_loops
    finally:
        host.detach_loops(second.parent)
    assert find_loops(str(second)) == []


def test_on_cgroup_v2_controllers_are_handed_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "CGROUP_MOUNT", tmp_path)
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    host.make_cgroup("/ours/pods")
    assert (tmp_path / "ours" / "pods").is_dir()
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+pids"  # the last of three writes


@pytest.mark.integration
def test_cgroups_are_made_filled_and_removed_with_what_runs_in_them(tmp_path: Path) -> None:
    name = f"pyktest{os.getpid()}"
    pid = host.spawn(["sleep", "100"], tmp_path / "log", dict(os.environ), f"/{name}/inner")
    try:
        assert host.cgroup_pids(f"/{name}") == {pid}
        for root in host.hierarchies():
            cpus = root / name / "inner" / "cpuset.cpus"
            assert not cpus.exists() or root == host.CGROUP_MOUNT or cpus.read_text().strip()
    finally:
        host.remove_cgroup(f"/{name}")
    assert host.read_process(pid) is None
    assert not [root for root in host.hierarchies() if (root / name).exists()]
    host.remove_cgroup(f"/{name}")


@pytest.mark.integration
def test_mounts_inside_mounts_are_all_detached(tmp_path: Path) -> None:
    inner = tmp_path / "with space" / "inner"
    inner.parent.mkdir()
    for point in (tmp_path, inner):
        point.mkdir(exist_ok=True, parents=True)
        assert os.spawnlp(os.P_WAIT, "mount", "mount", "-t", "tmpfs", "tmpfs", str(point)) == 0
        inner.mkdir(exist_ok=True, parents=True)
    assert len(host.mounts_below(tmp_path)) == 2
    host.unmount_below(tmp_path)
    assert host.mounts_below(tmp_path) == []


def test_no_port_is_given_twice_not_even_to_two_processes(tmp_path: Path) -> None:
    """Between the choice of a port and its use there is time."""
    ports = {host.free_port(0) for _ in range(100)}
    assert len(ports) == 100
    script = "from testbed import host; print(*(host.free_port(0) for _ in range(100)), flush=True); input()"
    env = os.environ | {"PYTHONPATH": str(Path(host.__file__).parents[1])}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", script], env=env, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout is not None
        others = other.stdout.readline().split()
        assert len(set(others)) == 100
        assert not ports & set(map(int, others))
        assert claims.hold("port", others[0], claims.this_process()) is not None
        other.communicate("\n", timeout=30)
    assert claims.hold("port", others[0], claims.this_process()) is None


def test_a_port_of_a_folder_is_given_to_nothing_else_while_the_folder_exists(tmp_path: Path) -> None:
    bed = tmp_path / "bed"
    bed.mkdir()
    port = host.free_port(0, claims.folder(bed))
    assert host.free_port(port) != port
    assert host.free_port(port, claims.folder(bed)) == port
    bed.rmdir()
    assert host.free_port(port) == port


def test_no_outgoing_connection_is_given_a_port_of_ours() -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ports = {host.free_port(0) for _ in range(50)}
    assert not [port for port in ports if first <= port <= last]


def test_the_process_that_holds_a_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(host.TestbedError, match=rf"port {port} of etcd is taken by .*pid={os.getpid()}"):
            host.wait_port_free(port, "etcd", 0.1)
    host.wait_port_free(port, "etcd")


def test_a_process_is_not_gone_while_one_of_its_threads_keeps_its_port(tmp_path: Path) -> None:
    """A killed server whose first thread has ended is a zombie; another thread may still be waiting for the disk."""
    script = """
import ctypes, os, socket, threading
server = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=lambda: (print(server.getsockname()[1], flush=True), threading.Event().wait())).start()
ctypes.CDLL(None).syscall(60, 0)  # exit of this thread alone
"""
    log = tmp_path / "log"
    pid = host.spawn([sys.executable, "-c", script], log, dict(os.environ))
    try:
        assert host.wait_until(lambda: log.exists() and bool(log.read_text().strip()), 60)
        assert host.wait_until(lambda: host.read_process(pid) is None, 60)  # a zombie, seen from outside
        assert not host.is_gone(pid)
    finally:
        host.kill_all([pid])
    host.wait_port_free(int(log.read_text()), "the server", 0.1)
