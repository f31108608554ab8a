"""Each package from nothing to a running pod: the Debian packages under systemd, the wheel, the container image.

The steps are those of docs/packages.md. The packages are built outside of the machine (`tools/testvm/builds.py`).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.agent import Json, make_container, make_pod
from support.unit import LONG_S, UNIT, SystemContainerd, cgroups_below_kubepods, clear_machine, show, systemctl
from testbed import host
from testvm.builds import AFTER, BUILT, IMAGE, NEXT, NOW, WHEELS

import pykubelet

pytestmark = pytest.mark.vm

MANIFESTS = Path("/etc/kubernetes/manifests")
ROOT = Path("/var/lib/kubelet")
CONFIG = Path("/etc/pykubelet/config.yaml")
KUBELET = "kubelet.service"
KUBEADM = Path("/etc/systemd/system/kubelet.service.d/10-kubeadm.conf")
PACKAGES = ("pykubelet-as-kubelet", "pykubelet")


@pytest.fixture(autouse=True)
async def machine(runtime: SystemContainerd) -> AsyncIterator[None]:
    """Debian's defaults, without any of the packages, before and after."""
    runtime.set_driver("cgroupfs")
    await clear(runtime)
    yield
    await clear(runtime)


async def clear(runtime: SystemContainerd) -> None:
    run("dpkg", "--purge", *PACKAGES, check=False)
    shutil.rmtree(KUBEADM.parent, ignore_errors=True)
    await clear_machine(runtime)
    host.unmount_below(ROOT)
    for folder in (ROOT, MANIFESTS):
        shutil.rmtree(folder, ignore_errors=True)


def run(*command: str | Path, check: bool = True) -> str:
    """The output of a command; an AssertionError with it when it fails."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LONG_S,
        check=False,
    )
    assert not check or done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}"
    return done.stdout


def install(folder: str, *names: str) -> None:
    """`dpkg --install`, without a terminal to ask at."""
    files = [next((BUILT / folder).glob(f"{name}_*.deb")) for name in names]
    run("env", "DEBIAN_FRONTEND=noninteractive", "dpkg", "--install", *files)


def put_pod(name: str) -> None:
    """A manifest for a pod that runs until it is removed."""
    MANIFESTS.mkdir(parents=True, exist_ok=True)
    pod = make_pod(name, make_container(script="while :; do sleep 86400 & wait $!; done"))
    (MANIFESTS / f"{name}.yaml").write_text(json.dumps(pod))


def pods(program: str = "pykubelet") -> dict[str, Json]:
    """What `pykubelet pods` answers, by the pods' names; none while no agent answers."""
    done = subprocess.run([program, "pods", "-o", "json"], capture_output=True, text=True, timeout=120, check=False)
    return {pod["name"]: pod for pod in json.loads(done.stdout)["pods"]} if done.returncode == 0 else {}


def wait_running(prefix: str, program: str = "pykubelet") -> None:
    def is_running() -> bool:
        return any(name.startswith(prefix) and pod["status"] == "Running" for name, pod in pods(program).items())

    assert host.wait_until(is_running, LONG_S, 1), (
        f"{pods(program)}\n{run('journalctl', '-b', '-n', '60', '-o', 'cat')}"
    )


def container_pids() -> set[int]:
    """The processes of all pods."""
    found: set[int] = set()
    for group in cgroups_below_kubepods():
        try:
            found |= {int(pid) for pid in (group / "cgroup.procs").read_text().split()}
        except OSError:
            continue
    return found


def kept(pids: set[int]) -> bool:
    """Whether there were processes, and all of them are there still."""
    return bool(pids) and pids <= container_pids()


def main_pid(unit: str = UNIT) -> int:
    return int(show(unit, "MainPID")["MainPID"])


def wait_active(unit: str, old: int = 0) -> None:
    def is_new() -> bool:
        found = show(unit, "ActiveState", "MainPID")
        return found["ActiveState"] == "active" and int(found["MainPID"]) not in (0, old)

    assert host.wait_until(is_new, LONG_S, 1), run("systemctl", "status", unit, check=False)


def healthz() -> str:
    with urllib.request.urlopen("http://127.0.0.1:10248/healthz", timeout=60) as answer:
        return str(answer.read().decode())


def test_from_nothing_to_a_pod_then_the_next_version_and_back_and_removal() -> None:
    put_pod("one")
    install(NOW, "pykubelet")
    properties = ("ActiveState", "Type", "UnitFileState", "WatchdogUSec", "Restart", "Delegate")
    assert show(UNIT, *properties) == {
        "ActiveState": "active",
        "Type": "notify",
        "UnitFileState": "enabled",
        "WatchdogUSec": "1min",
        "Restart": "always",
        "Delegate": "yes",
    }
    assert show(UNIT, "UMask") == {"UMask": "0022"}
    assert stat.S_IMODE((CONFIG.parent / "conf.d").stat().st_mode) == 0o750
    assert healthz() == "ok"
    assert run("pykubelet", "--version").strip().endswith(f"+pykubelet.{pykubelet.__version__}")
    for command in ("csi-local", "replay", "simulate"):  # found by the entry points of what is installed
        assert run("pykubelet", command, "--help").startswith(f"usage: pykubelet {command}")
    wait_running("one")
    before = container_pids()

    # the watchdog replaces an agent that hangs
    old = main_pid()
    os.kill(old, signal.SIGSTOP)
    wait_active(UNIT, old)
    wait_running("one")
    assert kept(before)

    # the next version, with a configuration that was changed by hand, and back
    changed = CONFIG.read_text() + "maxPods: 50\n"
    CONFIG.write_text(changed)
    for folder, version in ((AFTER, NEXT), (NOW, pykubelet.__version__)):
        old = main_pid()
        install(folder, "pykubelet")
        wait_active(UNIT, old)
        assert run("pykubelet", "--version").strip().endswith(f"+pykubelet.{version}")
        wait_running("one")
        assert kept(before), f"{version} started containers again"
        assert pods().popitem()[1]["restarts"] == 0
        assert CONFIG.read_text() == changed

    # removal ends the agent and no container; purge takes the configuration
    run("dpkg", "--remove", "pykubelet")
    assert show(UNIT, "ActiveState")["ActiveState"] == "inactive"
    assert kept(before) and CONFIG.exists()
    CONFIG.with_name("conf.d").mkdir(exist_ok=True)
    (CONFIG.parent / "conf.d/10-mine.conf").write_text("kind: KubeletConfiguration\n")
    run("dpkg", "--purge", "pykubelet")
    assert not CONFIG.parent.exists() and not Path("/etc/default/pykubelet").exists()
    assert kept(before) and list(MANIFESTS.iterdir())
    assert UNIT not in systemctl("list-unit-files", UNIT, check=False)


def test_in_the_place_of_the_kubelet() -> None:
    """As kubeadm leaves a machine: a drop-in, a file of flags, a configuration; the pods are those of the node before."""
    put_pod("one")
    install(NOW, "pykubelet")
    wait_running("one")
    before = container_pids()

    install(NOW, *PACKAGES)
    assert show(UNIT, "ActiveState")["ActiveState"] == "inactive", "two agents on one machine"
    assert show(KUBELET, "UnitFileState")["UnitFileState"] == "enabled"
    run(
        "systemctl", "enable", "--now", KUBELET
    )  # as the Kubernetes documentation has it, before kubeadm wrote anything
    assert run("kubelet", "--version").startswith("Kubernetes v1.37.")

    (ROOT / "config.yaml").write_text(CONFIG.read_text())
    (ROOT / "kubeadm-flags.env").write_text('KUBELET_KUBEADM_ARGS="--hostname-override=testvm"\n')
    KUBEADM.parent.mkdir(parents=True, exist_ok=True)
    KUBEADM.write_text(
        "[Service]\nEnvironment=KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml\n"
        "EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env\nEnvironmentFile=-/etc/default/kubelet\nExecStart=\n"
        "ExecStart=/usr/bin/kubelet $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS\n"
    )
    systemctl("daemon-reload")
    systemctl("restart", KUBELET)
    wait_active(KUBELET)
    wait_running("one")
    assert kept(before), "the change of the agent started containers again"

    # both go to the next version at once
    old = main_pid(KUBELET)
    install(AFTER, *PACKAGES)
    wait_active(KUBELET, old)
    wait_running("one")
    assert kept(before)
    assert show(UNIT, "ActiveState")["ActiveState"] == "inactive"

    run("dpkg", "--purge", "pykubelet-as-kubelet")
    assert show(KUBELET, "ActiveState")["ActiveState"] != "active"
    systemctl("start", UNIT)
    wait_running("one")
    assert kept(before)


def test_the_wheel_runs_a_pod(tmp_path: Path) -> None:
    python = tmp_path / "venv/bin/python"
    run("python3", "-m", "venv", tmp_path / "venv")
    run(python, "-m", "pip", "install", "--quiet", "--no-index", f"--find-links={BUILT / WHEELS}", "pykubelet")
    site = next((tmp_path / "venv/lib").glob("python3*/site-packages/pykubelet"))
    compiled = list((site / "app/__pycache__").glob("cli.*.pyc"))
    assert compiled, "pip did not compile"
    assert run(tmp_path / "venv/bin/kubelet", "--version").startswith("Kubernetes v1.37.")

    put_pod("wheel")
    config = tmp_path / "config.yaml"
    config.write_text((Path(__file__).parents[2] / "debian/config.yaml").read_text())
    program = str(tmp_path / "venv/bin/pykubelet")
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([program, f"--config={config}"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        wait_running("wheel", program)
    finally:
        process.terminate()
        assert process.wait(120) == 0, (tmp_path / "log").read_text()[-3000:]


def test_the_image_runs_a_pod() -> None:
    archive = next((BUILT / IMAGE).glob("*.tar"))
    image = f"localhost/pykubelet:{pykubelet.__version__}"
    # not in the runtime's namespace k8s.io: the agent removes images there that no pod uses
    run("ctr", "image", "import", archive)
    assert run("ctr", "run", "--rm", image, "version", "pykubelet", "--version").startswith("Kubernetes v1.37.")

    put_pod("image")
    for folder in (ROOT, Path("/var/log/pods"), Path("/var/log/containers"), Path("/etc/cni/net.d")):
        folder.mkdir(parents=True, exist_ok=True)
    mounts = [("/var/lib/kubelet", "rbind:rshared"), ("/run", "rbind:rslave"), ("/sys", "rbind:rslave")]
    mounts += [("/dev", "rbind:rslave"), ("/var/log", "rbind:rslave"), ("/etc/kubernetes", "rbind:ro")]
    mounts += [("/var/lib/containerd", "rbind:rslave"), ("/lib/modules", "rbind:ro"), ("/etc/machine-id", "rbind:ro")]
    options = [f"--mount=type=bind,src={path},dst={path},options={how}" for path, how in mounts]
    options += ["--with-ns=pid:/proc/1/ns/pid", "--with-ns=cgroup:/proc/1/ns/cgroup", "--with-ns=uts:/proc/1/ns/uts"]
    options += ["--privileged", "--net-host", "--rootfs-propagation=shared"]
    process = subprocess.Popen(["ctr", "run", "--rm", *options, image, "node"], stdin=subprocess.DEVNULL)
    try:
        ask = ["ctr", "task", "exec", "--exec-id=ask", "node", "pykubelet", "pods"]

        def is_running() -> bool:
            return "Running" in run(*ask, check=False)

        assert host.wait_until(is_running, LONG_S, 1), run(*ask, check=False)
    finally:
        run("ctr", "task", "kill", "--signal=SIGTERM", "node", check=False)
        process.wait(120)
    assert container_pids(), "the end of the agent's container ended the pod"
