"""`make run` and `make down` of a fresh clone, on this machine without a network.

The packages are in the image; the environment is a copy of the one that is there, because nothing can be downloaded.
`make test` as a whole would take hours under emulation: its tests of groups and of resize are the part `tests`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.agent import Json
from testbed import environment, host

CHECKOUT = Path(__file__).parents[2]
CLONE = Path("/root/clone")
EXPECTED = {
    "crash-loop-local": {"CrashLoopBackOff", "Error"},
    "guaranteed-local": {"Running"},
    "host-network-local": {"Running"},
    "job-local": {"Completed"},
    "sidecar-local": {"Completed", "Running"},
    "web-local": {"Running"},
}


@pytest.fixture
def clone() -> Iterator[Path]:
    """A clone of the checkout in which nothing was made yet but `.venv`."""
    shutil.rmtree(CLONE, ignore_errors=True)
    shutil.copytree(CHECKOUT, CLONE, symlinks=True, ignore=shutil.ignore_patterns(".run", "__pycache__", ".hypothesis"))
    # scripts of an environment hold its path
    texts = [path for path in (CLONE / ".venv/bin").iterdir() if path.is_file() and path.read_bytes()[:2] == b"#!"]
    for path in [*texts, *(CLONE / ".venv/lib").rglob("*.pth")]:
        path.write_text(path.read_text().replace(str(CHECKOUT), str(CLONE)))
    (CLONE / ".venv/synced").write_text(environment.fingerprint(CLONE))
    yield CLONE
    make("down").wait(300)
    shutil.rmtree(CLONE)


def make(target: str) -> subprocess.Popen[bytes]:
    with (CLONE / f"make-{target}.log").open("ab") as log:
        return subprocess.Popen(
            ["make", target], cwd=CLONE, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )


def read_pods() -> dict[str, Json]:
    """As `pykubelet pods` reports them; none while the agent does not answer."""
    argv = [str(CLONE / ".venv/bin/pykubelet"), "pods", "-o", "json", "--root-dir", str(CLONE / ".run/kubelet")]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        return {}
    answer: Any = json.loads(done.stdout)
    return {pod["name"]: pod for pod in answer["pods"]}


def run_until(wanted: dict[str, set[str]]) -> None:
    """`make run` until each pod has had its state, then Ctrl-C; it must end well."""
    process, left = make("run"), dict(wanted)

    def done() -> bool:
        for name, pod in read_pods().items():
            if pod["status"] in left.get(name, set()):
                del left[name]
        return not left or process.poll() is not None

    try:
        in_time = host.wait_until(done, 600, 1)
        assert in_time and not left and process.poll() is None, f"{left}\n{tail('run')}"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
    process.wait(120)
    assert "Traceback" not in tail("run", 1000)


def tail(target: str, lines: int = 40) -> str:
    return "\n".join((CLONE / f"make-{target}.log").read_text(errors="replace").splitlines()[-lines:])


def container_pids() -> set[int]:
    """The processes of this clone's pods."""
    testbed = json.loads((CLONE / ".run/testbed.json").read_text())
    return host.cgroup_pids(f"/{testbed['name']}-pods")


def test_make_run_and_make_down(clone: Path) -> None:
    run_until(EXPECTED)
    kept = container_pids()
    assert kept, "Ctrl-C ended containers"
    run_until({"web-local": {"Running"}})
    assert kept & container_pids(), "the second run started everything anew"
    name = json.loads((clone / ".run/testbed.json").read_text())["name"]
    assert make("down").wait(300) == 0, tail("down")
    assert not (clone / ".run").exists()
    assert not host.mounts_below(clone)
    assert not list(Path("/sys/fs/cgroup").glob(f"{name}*"))
    assert not [p for p in host.processes() if any(f"{clone}/.run" in word for word in p.argv)]
