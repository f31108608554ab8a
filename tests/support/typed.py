"""Commands as a user of the virtual machine types them: with bash, as root, in the folder that has the project's packages as `dist`."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.unit import SystemContainerd, clear_machine
from testbed import host
from testbed.kubernetes import VARIABLE
from testvm.builds import BUILT, KUBERNETES, NOW

DESK = Path("/var/lib/testvm/desk")
PACKAGES = ("pykubelet-as-kubelet", "pykubelet")
#: Of Kubernetes, and what they depend on.
KUBERNETES_PACKAGES = ("kubeadm", "kubectl", "cri-tools")
ROOT, ETC = Path("/var/lib/kubelet"), Path("/etc/kubernetes")
SOURCE = Path("/etc/apt/sources.list.d/kubernetes.list")
#: Of one command: emulated, the API server alone takes minutes to start.
LIMIT_S = 2400.0
#: In the place of `apt-get update`, which would ask archives that the machine does not reach.
UPDATE = "apt-get update -o Dir::Etc::sourcelist=sources.list.d/kubernetes.list -o Dir::Etc::sourceparts=- -o APT::Get::List-Cleanup=0"
needs_kubernetes = pytest.mark.skipif(
    not (BUILT / KUBERNETES).exists(), reason=f"{VARIABLE} names no folder with Kubernetes' programs"
)


def run(*command: str | Path, check: bool = True, text: str = "", env: Mapping[str, str] | None = None) -> str:
    """The output of a command; an AssertionError with it when it fails."""
    done = subprocess.run(
        command,
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
        cwd=DESK if DESK.exists() else None,
        env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"} | dict(env or {}),
    )
    assert not check or done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{journal()}"
    return done.stdout


def type_in(script: str, *before: str) -> str:
    """The output of a block of a guide; the first command that fails fails it. `before`: words that bring it to another machine."""
    return run(*before, "bash", "-eo", "pipefail", "-c", script)


def journal() -> str:
    """The end of what all services wrote."""
    return subprocess.run(
        ["journalctl", "-b", "-n", "80", "-o", "short-monotonic"], capture_output=True, text=True, check=False
    ).stdout


def prepare_desk() -> None:
    """A folder with the packages in `dist`, as after `make deb`, and Kubernetes' archive among those of apt."""
    DESK.mkdir(parents=True, exist_ok=True)
    (DESK / "dist").unlink(missing_ok=True)
    (DESK / "dist").symlink_to(BUILT / NOW)
    if (BUILT / KUBERNETES).exists():
        SOURCE.write_text(f"deb [trusted=yes] file:{BUILT / KUBERNETES} ./\n")
        type_in(UPDATE)


async def clear(runtime: SystemContainerd) -> None:
    """No packages of ours or of Kubernetes, no pod, and none of their files."""
    run("dpkg", "--purge", *PACKAGES, *KUBERNETES_PACKAGES, check=False)
    await clear_machine(runtime)
    host.unmount_below(ROOT)
    for folder in (ROOT, ETC, Path("/var/lib/etcd"), DESK):
        shutil.rmtree(folder, ignore_errors=True)
    SOURCE.unlink(missing_ok=True)
