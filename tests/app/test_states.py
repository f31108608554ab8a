"""State files of each release: this version reads them, sets newer ones aside, and starts with whatever is there.

`tests/support/states` has a folder for each release, made by `tools/gen_states.py` (docs/releases.md).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import gen_states
import pytest
from testbed import host

import pykubelet
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.edges.host.fs.checkpoint import Checkpoint
from pykubelet.report.status.memory import StatusMemory

RELEASES = sorted(path.name for path in gen_states.FOLDER.iterdir())
#: The files whose format is this project's own; those of the others are the kubelet's.
OWN = ("pod_statuses", "post_start_hooks", "pod_sizes", "quarantine", "static_pods", "volume_bindings")
_VERSION = re.compile(rb"^(pykubelet-[a-z]+) \d+")


def copy_of(release: str, folder: Path) -> Path:
    return Path(shutil.copytree(gen_states.FOLDER / release, folder / "root"))


def make_newer(path: Path) -> bytes:
    """Give a state file a version that no release has; returns its content."""
    data, count = _VERSION.subn(rb"\1 99", path.read_bytes())
    assert count == 1, f"{path.name} has no version"
    path.write_bytes(data)
    return data


def kept_aside(path: Path) -> list[bytes]:
    return [aside.read_bytes() for aside in path.parent.glob(f"{path.name}.version-99-*")]


@pytest.mark.parametrize("release", RELEASES)
def test_this_version_reads_what_each_release_wrote(release: str, tmp_path: Path) -> None:
    root = copy_of(release, tmp_path)
    gen_states.write(tmp_path / "now")
    assert gen_states.read(root) == gen_states.read(tmp_path / "now")


def test_a_release_keeps_its_formats(tmp_path: Path) -> None:
    """Another content under the same version of the project needs another version in the file, or a new release's folder."""
    if pykubelet.__version__ not in RELEASES:
        return
    gen_states.write(tmp_path / "now")
    kept = gen_states.FOLDER / pykubelet.__version__

    def contents(folder: Path) -> dict[str, bytes]:
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    assert contents(tmp_path / "now") == contents(kept)


async def test_statuses_of_a_newer_version_are_kept_aside(tmp_path: Path) -> None:
    path = copy_of(RELEASES[-1], tmp_path) / "pod_statuses"
    kept = StatusMemory(str(path), SingleFlight("test")).load()
    assert kept
    data = make_newer(path)
    memory = StatusMemory(str(path), SingleFlight("test"))
    assert memory.load() == {}
    await memory.keep(kept)
    assert StatusMemory(str(path), SingleFlight("test")).load() == kept
    assert kept_aside(path) == [data]


@pytest.mark.parametrize("name", ["pod_sizes", "post_start_hooks", "quarantine", "static_pods", "volume_bindings"])
def test_a_checkpoint_of_a_newer_version_is_kept_aside(name: str, tmp_path: Path) -> None:
    path = copy_of(RELEASES[-1], tmp_path) / name
    data = make_newer(path)
    file = Checkpoint(str(path))
    assert file.load() is None
    for payload in (b"one", b"two", b"three"):
        file.save(payload)
    assert file.load() == b"three"
    assert kept_aside(path) == [data]


def as_it_is(path: Path) -> None:
    pass


def newer(path: Path) -> None:
    make_newer(path)


def damaged(path: Path) -> None:
    path.write_bytes(b"\x00\xff not a state file\n")


@pytest.mark.parametrize(
    ("change", "aside"),
    [
        (as_it_is, set()),
        # the sizes are for nodes of a cluster only
        (newer, {f"{name}.version-99-0" for name in OWN if name != "pod_sizes"}),
        # a damaged line of the statuses loses that status alone
        (damaged, {f"{name}.corrupt-0" for name in OWN if name not in ("pod_sizes", "pod_statuses")}),
    ],
)
def test_the_agent_starts_whatever_its_files_have(
    change: Callable[[Path], None], aside: set[str], tmp_path: Path
) -> None:
    """A process, without a runtime."""
    root = copy_of(RELEASES[-1], tmp_path)
    for name in OWN:
        change(root / name)
    for name in ("cpu_manager_state", "memory_manager_state"):  # of another machine
        (root / name).unlink()
    port = host.free_port(0)
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "staticPodPath": str(tmp_path),
        "containerRuntimeEndpoint": f"unix://{tmp_path}/none.sock",
        "podLogsDir": str(tmp_path / "logs"),
        "volumePluginDir": str(tmp_path / "volumeplugins"),
        "enableServer": False,
        "healthzPort": port,
        "failSwapOn": False,
        "failCgroupV1": False,
        "makeIPTablesUtilChains": False,
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    argv = [sys.executable, "-m", "pykubelet.app.cli", f"--config={tmp_path}/config.json", f"--root-dir={root}"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [*argv, "--hostname-override=node"], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        assert wait_healthy(process, port), (tmp_path / "log").read_text()
        host.wait_until(lambda: aside <= set_aside(root), 60, 0.05)  # files are still read when the health port answers
    finally:
        process.terminate()
        process.wait(60)
        host.unmount_below(root)  # the agent mounts its root directory on itself
    assert set_aside(root) == aside


def set_aside(root: Path) -> set[str]:
    return {path.name for path in root.iterdir() if ".version-" in path.name or ".corrupt-" in path.name}


def wait_healthy(process: subprocess.Popen[bytes], port: int) -> bool:
    def is_healthy() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return process.poll() is not None

    return host.wait_until(is_healthy, 60, 0.05) and process.poll() is None
