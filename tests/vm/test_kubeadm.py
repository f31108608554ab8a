"""A cluster made by kubeadm on an empty machine whose kubelet is pykubelet, and its end: the steps of docs/kubeadm.md.

The programs and images of Kubernetes come from the folder that KUBERNETES_BINARIES names (`tools/testbed/kubernetes.py`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from support.agent import Json, make_container, make_pod
from support.unit import SystemContainerd, cgroups_below_kubepods, clear_machine, show, systemctl
from testbed import host
from testbed.kubernetes import COMMANDS, VARIABLE
from testvm.builds import KUBERNETES, NOW

BUILT = Path("/share/built")
PACKAGES = ("pykubelet-as-kubelet", "pykubelet")
KUBELET = "kubelet.service"
#: Where the package kubeadm has it, and as it is there.
DROP_IN = Path("/usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf")
_KUBECONFIGS = "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf"
DROP_IN_TEXT = f"""[Service]
Environment="KUBELET_KUBECONFIG_ARGS={_KUBECONFIGS}"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
"""
ROOT, ETC, BIN = Path("/var/lib/kubelet"), Path("/etc/kubernetes"), Path("/usr/local/bin")
CURRENT = ROOT / "pki/kubelet-client-current.pem"
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
#: Of one command or wait: emulated, the API server alone takes minutes to start.
LIMIT_S = 2400.0
_TIMEOUTS = (
    "controlPlaneComponentHealthCheck",
    "kubeletHealthCheck",
    "kubernetesAPICall",
    "tlsBootstrap",
    "etcdAPICall",
)
#: What a machine that is ten times slower than others needs; everything else is kubeadm's default.
CONFIG: tuple[Json, ...] = (
    {
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "InitConfiguration",
        "timeouts": dict.fromkeys(_TIMEOUTS, "30m"),
    },
    {
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "ClusterConfiguration",
        "networking": {"podSubnet": "10.88.0.0/16"},
        "dns": {"disabled": True},
        # a leader that cannot renew its lease within 10 s ends
        "controllerManager": {"extraArgs": [{"name": "leader-elect", "value": "false"}]},
        "scheduler": {"extraArgs": [{"name": "leader-elect", "value": "false"}]},
    },
    {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "runtimeRequestTimeout": "10m",
    },
)

pytestmark = [
    pytest.mark.vm,
    pytest.mark.skipif(
        not (BUILT / KUBERNETES).exists(), reason=f"{VARIABLE} names no folder with Kubernetes' programs"
    ),
]


@pytest.fixture(autouse=True)
async def machine(runtime: SystemContainerd) -> AsyncIterator[None]:
    """Neither packages nor a cluster before and after; no swap meanwhile, as kubeadm wants it."""
    runtime.set_driver("systemd")
    await clear(runtime)
    run("swapoff", "-a")
    yield
    await clear(runtime)
    run("swapon", "-a")


async def clear(runtime: SystemContainerd) -> None:
    run("dpkg", "--purge", *PACKAGES, check=False)
    shutil.rmtree(DROP_IN.parent, ignore_errors=True)
    await clear_machine(runtime)
    host.unmount_below(ROOT)
    for folder in (ROOT, ETC, Path("/var/lib/etcd")):
        shutil.rmtree(folder, ignore_errors=True)
    for name in COMMANDS:
        (BIN / name).unlink(missing_ok=True)


def run(*command: str | Path, check: bool = True, text: str = "") -> str:
    """The output of a command; an AssertionError with it when it fails."""
    done = subprocess.run(
        command,
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env=os.environ | {"KUBECONFIG": str(ETC / "admin.conf")},
    )
    assert not check or done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{journal()}"
    return done.stdout


def journal() -> str:
    command = ["journalctl", "-b", "-n", "80", "-o", "cat", "-u", KUBELET]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def get(*words: str) -> Json:
    """What `kubectl get -o json` prints; nothing while the API server is away."""
    done = run("kubectl", "get", *words, "-o", "json", check=False)
    try:
        found: Json = json.loads(done)
    except ValueError:
        return {}
    return found


def is_true(thing: Json, condition: str) -> bool:
    conditions = thing.get("status", {}).get("conditions", ())
    return any(each["type"] == condition and each["status"] == "True" for each in conditions)


def wait_ready(*words: str, condition: str = "Ready") -> None:
    assert host.wait_until(lambda: is_true(get(*words), condition), LIMIT_S, 3), f"{get(*words)}\n{journal()}"


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Prints at once how far it is, with the time: the whole takes half an hour."""

    def show_progress(text: str) -> None:
        with capsys.disabled():
            print(f"{time.monotonic():.0f} s after the boot: {text}", flush=True)

    return show_progress


def install() -> None:
    """Our packages, and what the packages kubeadm and kubectl have; the images as a registry would give them."""
    built = BUILT / KUBERNETES
    files = [next((BUILT / NOW).glob(f"{name}_*.deb")) for name in PACKAGES]
    run("env", "DEBIAN_FRONTEND=noninteractive", "dpkg", "--install", *files)
    for name in COMMANDS:
        shutil.copy(built / name, BIN)
    DROP_IN.parent.mkdir(parents=True, exist_ok=True)
    DROP_IN.write_text(DROP_IN_TEXT)
    systemctl("daemon-reload")
    systemctl("enable", "--now", KUBELET)
    for archive in sorted((built / "images").glob("*.tar")):
        run("ctr", "-n", "k8s.io", "images", "import", archive)


def test_a_cluster_is_made_used_restarted_and_reset(tmp_path: Path, say: Callable[[str], None]) -> None:
    install()
    say("installed")
    config = tmp_path / "init.yaml"
    config.write_text("\n---\n".join(json.dumps(part) for part in CONFIG))
    output = run("kubeadm", "init", "--config", config)
    say("initialized")
    assert "Your Kubernetes control-plane has initialized successfully!" in output
    assert "[ERROR" not in output

    # the certificate of the first kubeconfig is replaced and rotates
    assert CURRENT.exists() and str(CURRENT) in (ETC / "kubelet.conf").read_text()
    wait_ready("node", "testvm")
    say("the node is ready")
    for name in CONTROL_PLANE:
        wait_ready("-n", "kube-system", "pod", f"{name}-testvm")
    say("the control plane is ready")

    run("kubectl", "taint", "node", "testvm", "node-role.kubernetes.io/control-plane-")
    # the controller manager makes it, which starts again until the API server answers
    assert host.wait_until(lambda: bool(get("serviceaccount", "default")), LIMIT_S, 3)
    script = "echo hello; while :; do sleep 86400 & wait $!; done"
    run("kubectl", "apply", "-f", "-", text=json.dumps(make_pod("one", make_container(script=script))))
    wait_ready("pod", "one")
    say("a pod runs")
    assert run("kubectl", "logs", "one") == "hello\n"
    assert run("kubectl", "exec", "one", "--", "echo", "from", "inside").strip() == "from inside"

    join = run("kubeadm", "token", "create", "--print-join-command")
    assert join.split()[:2] == ["kubeadm", "join"] and join.split()[4] in run("kubeadm", "token", "list")
    run("kubeadm", "upgrade", "node", "phase", "kubelet-config")
    run("kubeadm", "certs", "renew", "all")

    systemctl("restart", KUBELET)
    assert host.wait_until(lambda: show(KUBELET, "ActiveState")["ActiveState"] == "active", LIMIT_S, 1), journal()
    wait_ready("node", "testvm")
    assert get("pod", "one")["status"]["containerStatuses"][0]["restartCount"] == 0
    say("restarted")

    run("kubeadm", "reset", "--force")
    say("reset")
    assert show(KUBELET, "ActiveState")["ActiveState"] == "inactive"
    assert not list((ETC / "manifests").iterdir()) and not list(ROOT.iterdir())
    left = [group for group in cgroups_below_kubepods() if (group / "cgroup.procs").read_text().strip()]
    assert not left, "containers outlived the reset"
