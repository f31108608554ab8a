"""The testbed's reach into the machine ends at what is its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from testbed import host


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


def test_no_port_is_given_twice_not_even_to_two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the choice of a port and its use there is time."""
    assert len({host.free_port(0) for _ in range(300)}) == 300
    script = "from testbed import host; print(host.free_port(0), flush=True); input()"
    tools = Path(host.__file__).parents[1]
    env = os.environ | {"PYTHONPATH": str(tools)}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", script], env=env, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout is not None and other.stdin is not None
        port = int(other.stdout.readline())
        monkeypatch.setattr(host, "PORTS", range(port, port + 1))
        with pytest.raises(host.TestbedError, match="no free port"):
            host.free_port(0)
        other.communicate("\n", timeout=30)
    assert host.free_port(0) == port
