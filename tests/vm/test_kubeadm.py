"""A cluster made by kubeadm on empty machines whose kubelet is pykubelet, and its end: docs/kubeadm.md as it is typed.

The first machine is the virtual machine, the second one a container of systemd in it. The programs and images of Kubernetes come from the
folder that KUBERNETES_BINARIES names (`tools/testbed/kubernetes.py`), as packages (`tools/testvm/kubernetes_archive.py`).
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from support import metrics_server_pod, typed
from support.agent import Json, make_container, make_pod
from support.guides import blocks
from support.second_machine import EMULATED, SecondMachine
from support.typed import ETC, LIMIT_S, ROOT, needs_kubernetes, type_in
from support.unit import ARCHIVES, CONTAINERD_CONFIG, SystemContainerd, cgroups_below_kubepods, show, systemctl
from testbed import host
from testvm.builds import BUILT, IMAGES

GUIDE = "kubeadm.md"
KUBELET = "kubelet.service"
NODE, SECOND = "testvm", "two"
ADDRESSES = ("10.198.0.1", "10.198.0.2")
CNI = Path("/etc/cni/net.d")
CURRENT = ROOT / "pki/kubelet-client-current.pem"
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
SCRIPT = "echo hello; while :; do sleep 86400 & wait $!; done"
_TIMEOUTS = (
    "controlPlaneComponentHealthCheck",
    "kubeletHealthCheck",
    "kubernetesAPICall",
    "tlsBootstrap",
    "etcdAPICall",
)
#: In the place of the flags of `kubeadm init`: what machines that are ten times slower need; everything else is kubeadm's default.
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
        # with RSA, an emulated API server has too little time for its own start
        "encryptionAlgorithm": "ECDSA-P256",
        # a leader that cannot renew its lease within 10 s ends
        "controllerManager": {"extraArgs": [{"name": "leader-elect", "value": "false"}]},
        "scheduler": {"extraArgs": [{"name": "leader-elect", "value": "false"}]},
    },
    {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "runtimeRequestTimeout": "10m",
    },
    {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        # the two machines share a kernel, which lets only the first one set limits
        "conntrack": {"maxPerCore": 0, "min": 0},
    },
)

pytestmark = [pytest.mark.vm, needs_kubernetes]


@pytest.fixture(autouse=True)
async def machine(runtime: SystemContainerd) -> AsyncIterator[None]:
    """Neither packages nor a cluster nor a pod network before and after, and Debian's configuration of containerd."""
    await typed.clear(runtime)
    kept = [(path, path.read_text()) for path in (CONTAINERD_CONFIG, *CNI.iterdir())]
    for path, _ in kept:
        path.unlink()
    typed.prepare_desk()
    yield
    await typed.clear(runtime)
    shutil.rmtree(CNI, ignore_errors=True)
    for path, text in kept:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    systemctl("restart", "containerd.service")
    run("swapon", "-a")


@pytest.fixture
def second() -> Iterator[SecondMachine]:
    """Empty, with the project's packages and Kubernetes' archive as the first one has them."""
    found = SecondMachine(SECOND, ADDRESSES[1], ADDRESSES[0])
    try:
        found.start()
        yield found
    finally:
        found.stop()


def run(*command: str | Path, check: bool = True, text: str = "") -> str:
    """As `typed.run`, with the kubeconfig of the administrator."""
    return typed.run(*command, check=check, text=text, env={"KUBECONFIG": str(ETC / "admin.conf")})


def apply(manifest: Json) -> None:
    """`kubectl apply`, again and again: an API server that has just started refuses some requests."""
    outputs: list[str] = []

    def is_done() -> bool:
        outputs.append(run("bash", "-c", "kubectl apply -f - && echo applied", check=False, text=json.dumps(manifest)))
        return outputs[-1].endswith("applied\n")

    assert host.wait_until(is_done, LIMIT_S, 5), outputs[-1]


def get(*words: str) -> Json:
    """What `kubectl get -o json` prints; nothing while the API server is away."""
    done = run("kubectl", "get", *words, "-o", "json", check=False)
    try:
        found: Json = json.loads(done)
    except ValueError:
        return {}
    return found


def is_true(found: Json, condition: str) -> bool:
    conditions = found.get("status", {}).get("conditions", ())
    return any(entry["type"] == condition and entry["status"] == "True" for entry in conditions)


def wait_ready(*words: str, condition: str = "Ready") -> None:
    assert host.wait_until(lambda: is_true(get(*words), condition), LIMIT_S, 3), f"{get(*words)}\n{typed.journal()}"


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Prints at once how far it is, with the time: the whole takes half an hour."""

    def show_progress(text: str) -> None:
        with capsys.disabled():
            print(f"{time.monotonic():.0f} s after the boot: {text}", flush=True)

    return show_progress


def load_images(runs: Callable[..., str], archives: list[Path]) -> None:
    """Import images as a registry would give them; containerd 1.6 has another default for that of sandboxes than kubeadm."""
    for archive in archives:
        runs("ctr", "-n", "k8s.io", "images", "import", archive)
    [pause] = [name for name in runs("ctr", "-n", "k8s.io", "images", "ls", "-q").split() if "/pause:3.1" in name]
    runs("ctr", "-n", "k8s.io", "images", "tag", "--force", pause, f"{pause.rpartition(':')[0]}:3.6")


def archives(*programs: str) -> list[Path]:
    """The archives of these images, without names of all that `CONFIG` uses, and that of the tests' pods."""
    built = [path for path in sorted((BUILT / IMAGES).glob("*.tar")) if "coredns" not in path.stem]
    found = [path for path in built if not programs or path.stem in programs]
    return [*found, ARCHIVES / "busybox-1.tar"]


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the guide exports, if the kubeadm that can be installed is of Kubernetes 1.36."""
    candidate = run("bash", "-c", "apt-cache policy kubeadm | sed -n 's/ *Candidate: //p'").strip()
    if candidate.startswith("1.36."):
        monkeypatch.setenv(EMULATED, "1.36")


def prepare(runs: Callable[..., str]) -> None:
    """The steps for each machine. `runs` runs a command there."""
    runtime, packages = blocks(GUIDE, "sh", "Each machine")
    [older] = blocks(GUIDE, "sh", "A cluster of Kubernetes 1.36")
    for block in (runtime, packages, *((older,) if EMULATED in os.environ else ())):
        runs("bash", "-eo", "pipefail", "-c", block)


@pytest.mark.usefixtures("release")
def test_a_cluster_of_two_is_made_used_restarted_and_reset(
    second: SecondMachine, tmp_path: Path, say: Callable[[str], None]
) -> None:
    desk = f"mkdir -p dist; cp {BUILT}/now/*.deb dist; echo '{typed.SOURCE.read_text().strip()}' > {typed.SOURCE}; {typed.UPDATE}"
    second.run("bash", "-ec", desk)
    say("the second machine runs")
    prepare(run)
    say("installed")
    load_images(run, archives())

    init, network, taint = blocks(GUIDE, "sh", "The first machine")
    config = tmp_path / "init.yaml"
    config.write_text("\n---\n".join(json.dumps(part) for part in CONFIG))
    flags = "--pod-network-cidr=10.88.0.0/16"
    assert flags in init
    output = type_in(init.replace(flags, f"--config={config}"))
    say("initialized")
    assert "Your Kubernetes control-plane has initialized successfully!" in output
    assert "[ERROR" not in output and "+pykubelet" in output
    type_in(network)

    # the certificate of the first kubeconfig is replaced and rotates
    assert CURRENT.exists() and str(CURRENT) in (ETC / "kubelet.conf").read_text()
    wait_ready("node", NODE)
    say("the node is ready")
    for name in CONTROL_PLANE:
        wait_ready("-n", "kube-system", "pod", f"{name}-{NODE}")
    say("the control plane is ready")
    run("bash", "-ec", taint)
    # the controller manager makes it, which starts again until the API server answers
    assert host.wait_until(lambda: bool(get("serviceaccount", "default")), LIMIT_S, 3)
    start_pod("one", NODE)
    say("a pod runs")

    [create] = blocks(GUIDE, "sh", "More machines")
    prepare(second.run)
    load_images(second.run, archives("pause", "kube-proxy"))
    say("the second machine is prepared")
    join = run("bash", "-ec", create)
    assert join.split()[:2] == ["kubeadm", "join"] and join.split()[4] in run("kubeadm", "token", "list")
    output = second.run("bash", "-ec", join)
    assert "This node has joined the cluster" in output and "[ERROR" not in output
    second.run("cp", "/usr/share/doc/pykubelet/examples/10-pykubelet.conflist", CNI)
    wait_ready("node", SECOND)
    assert f"client-certificate: {CURRENT}" in second.run("cat", ETC / "kubelet.conf")
    say("the second node is ready")
    start_pod("far", SECOND)
    assert {node["status"]["nodeInfo"]["kubeletVersion"].partition("+")[2][:9] for node in get("nodes")["items"]} == {
        "pykubelet"
    }
    say("a pod runs there")
    if metrics_server_pod.is_built():
        look_at_top(say)

    check, renew = blocks(GUIDE, "sh", "Certificates")[0].splitlines()
    assert "admin.conf" in run(*check.split())
    run(*renew.split())
    second.run("kubeadm", "upgrade", "node")
    second.run("systemctl", "restart", "kubelet")
    systemctl("restart", KUBELET)
    assert host.wait_until(lambda: show(KUBELET, "ActiveState")["ActiveState"] == "active", LIMIT_S, 1), typed.journal()
    for name, pod in ((NODE, "one"), (SECOND, "far")):
        wait_ready("node", name)
        wait_ready("pod", pod)
        assert get("pod", pod)["status"]["containerStatuses"][0]["restartCount"] == 0
    say("restarted")

    drain, reset = blocks(GUIDE, "sh", "The end of a node")[0].splitlines()
    run(*drain.replace("NODE", SECOND).split(), "--force")  # of a pod without a controller
    assert not get("pod", "far") and is_true(get("node", SECOND), "Ready")
    second.run("bash", "-ec", f"yes | {reset}")
    assert second.run("ls", ROOT) == "" and "pause" not in second.run("ps", "ax")
    say("the second machine is reset")
    run("kubectl", "delete", "node", SECOND)
    run("bash", "-ec", f"yes | {reset}")
    say("reset")
    assert show(KUBELET, "ActiveState")["ActiveState"] == "inactive"
    assert not list((ETC / "manifests").iterdir()) and not list(ROOT.iterdir())
    left = [group for group in cgroups_below_kubepods() if (group / "cgroup.procs").read_text().strip()]
    assert not left, "containers outlived the reset"


def start_pod(name: str, node: str) -> None:
    """A pod on a node, looked at from the first machine."""
    pod = make_pod(name, make_container(script=SCRIPT), nodeSelector={"kubernetes.io/hostname": node})
    apply(pod)
    wait_ready("pod", name)
    assert run("kubectl", "logs", name) == "hello\n"
    assert run("kubectl", "exec", name, "--", "echo", "from", "inside").strip() == "from inside"


def look_at_top(say: Callable[[str], None]) -> None:
    """metrics-server, and `kubectl top` of nodes and pods; crictl, which kubeadm's package brings."""
    apply(metrics_server_pod.objects(NODE))
    wait_ready("apiservice", "v1beta1.metrics.k8s.io", condition="Available")
    say("metrics-server runs")

    def rows(*words: str) -> dict[str, list[str]]:
        lines = run("kubectl", "top", *words, "--no-headers", check=False).splitlines()
        return {line.split()[0]: line.split()[1:] for line in lines if len(line.split()) > 2}

    def both() -> bool:
        found = rows("node")
        return all(found.get(name, ["<unknown>"])[0].endswith("m") for name in (NODE, SECOND))

    assert host.wait_until(both, LIMIT_S, 5), run("kubectl", "top", "node", check=False)
    assert host.wait_until(lambda: {"one", "far"} <= rows("pod").keys(), LIMIT_S, 5), rows("pod")
    print(run("kubectl", "top", "node"), run("kubectl", "top", "pod", "--containers"))
    assert all(row[-1].endswith("Mi") for row in rows("pod").values())
    say("kubectl top shows nodes and pods")
    run("crictl", "config", "--set", "runtime-endpoint=unix:///run/containerd/containerd.sock")
    shown = run("crictl", "ps", "-o", "json")
    names = {container["metadata"]["name"] for container in json.loads(shown)["containers"]}
    assert {*CONTROL_PLANE, "main"} <= names, names
