"""A cluster made by kubeadm: `init` on one machine and `join` on another, both with this kubelet, in namespaces of this machine.

The programs of Kubernetes come from the folder that KUBERNETES_BINARIES names (`tools/testbed/kubernetes.py`).
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.agent import PROGRAM, Json, make_container, make_pod
from support.guides import blocks
from support.namespaces import EMULATED, SeparateMachine, connect
from testbed import host, kubernetes, places

WAIT_S = 120.0
ADDRESSES = ("10.199.0.11", "10.199.0.12")
BINARIES = kubernetes.folder()
HAS_DNS = BINARIES is not None and kubernetes.has_dns(BINARIES)
SECTION = "Into a cluster made by kubeadm"
DNS_ADDRESS = "10.96.0.10"
#: The tests' machine has cgroup v1 and shares its kernel: the rest is kubeadm's default.
CONFIG: tuple[Json, ...] = (
    {
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "ClusterConfiguration",
        "networking": {"podSubnet": "10.244.0.0/16"},
        "dns": {"disabled": not HAS_DNS},
    },
    {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": False,
    },
    {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "conntrack": {"maxPerCore": 0, "min": 0},
    },
)
IGNORE = "--ignore-preflight-errors=SystemVerification"
CURRENT = "/var/lib/kubelet/pki/kubelet-client-current.pem"
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.cgroup_v1,
    pytest.mark.skipif(BINARIES is None, reason=f"{kubernetes.VARIABLE} names no folder with Kubernetes' programs"),
]


@pytest.fixture
def machines() -> Iterator[tuple[SeparateMachine, SeparateMachine]]:
    """Two empty machines with the images of Kubernetes."""
    assert BINARIES is not None
    programs = {name: BINARIES / name for name in kubernetes.COMMANDS} | {
        "kubelet": PROGRAM.with_name("kubelet"),
        "pykubelet": PROGRAM,
    }
    folder = places.run_folder("adm")
    archives = kubernetes.build(BINARIES, folder / "images")
    made = tuple(SeparateMachine(folder / name, name, programs) for name in ("one", "two"))
    try:
        for machine in made:
            machine.start()
            for archive in archives:
                machine.load(archive)
        connect(made[0], made[1], (f"{ADDRESSES[0]}/24", f"{ADDRESSES[1]}/24"))
        yield made[0], made[1]
    finally:
        for machine in made:
            machine.stop()
        for archive in archives:
            archive.unlink()
        (folder / "images").rmdir()
        folder.rmdir()


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kubelet is of the release of kubeadm, if that is 1.36: it may not be newer than the control plane."""
    assert BINARIES is not None
    found = subprocess.run([BINARIES / "kubeadm", "version", "-o", "short"], capture_output=True, text=True, check=True)
    if found.stdout.startswith("v1.36."):
        monkeypatch.setenv(EMULATED, "1.36")


def get(machine: SeparateMachine, *words: str) -> Any:
    """What `kubectl get -o json` prints; nothing while the API server is away."""
    try:
        return json.loads(machine.run("kubectl", "get", *words, "-o", "json", check=False))
    except ValueError:
        return {}


def wait_ready(machine: SeparateMachine, *words: str) -> None:
    def is_ready() -> bool:
        conditions = get(machine, *words).get("status", {}).get("conditions", ())
        return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)

    assert host.wait_until(is_ready, WAIT_S, 0.5), f"{get(machine, *words)}\n{machine.log_tail()}"


def wait_dns(machine: SeparateMachine) -> None:
    """The cluster's DNS answers at the address of its service."""
    words = ("busybox", "nslookup", "-type=a", "kubernetes.default.svc.cluster.local", DNS_ADDRESS)
    answers: list[str] = []

    def is_answered() -> bool:
        answers.append(machine.run(*words, check=False))
        return "10.96.0.1\n" in answers[-1]

    if not host.wait_until(is_answered, WAIT_S, 1):
        pods = machine.run("kubectl", "-n", "kube-system", "describe", "pods", "-l", "k8s-app=kube-dns", check=False)
        raise AssertionError(f"{answers[-1]}\n{pods}\n{machine.log_tail()}")


def initialize(first: SeparateMachine) -> None:
    """`kubeadm init`."""
    config = first.folder / "init.yaml"
    init: Json = {
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "InitConfiguration",
        "localAPIEndpoint": {"advertiseAddress": ADDRESSES[0]},
        "nodeRegistration": {
            "criSocket": first.endpoint,
            "kubeletExtraArgs": [{"name": "node-labels", "value": "example.com/made-by=kubeadm"}],
        },
        "patches": {"directory": str(first.folder / "patches")},
    }
    (first.folder / "patches").mkdir()
    (first.folder / "patches/kubeletconfiguration+merge.yaml").write_text("maxPods: 77\n")
    config.write_text("\n---\n".join(json.dumps(part) for part in (init, *CONFIG)))
    output = first.run("kubeadm", "init", "--config", str(config), IGNORE)
    assert "Your Kubernetes control-plane has initialized successfully!" in output


@pytest.mark.usefixtures("release")
def test_init_join_renewal_and_reset(machines: tuple[SeparateMachine, SeparateMachine]) -> None:
    first, second = machines
    initialize(first)
    # else kubeadm takes it that client certificates do not rotate
    assert f"client-certificate: {CURRENT}" in first.run("cat", "/etc/kubernetes/kubelet.conf")
    wait_ready(first, "node", "one")
    node = get(first, "node", "one")
    assert node["status"]["capacity"]["pods"] == "77" and node["metadata"]["labels"]["example.com/made-by"] == "kubeadm"
    for name in CONTROL_PLANE:
        wait_ready(first, "-n", "kube-system", "pod", f"{name}-one")

    if HAS_DNS:
        wait_dns(first)

    join = first.run("kubeadm", "token", "create", "--print-join-command").split()
    output = second.run(*join, "--cri-socket", second.endpoint, IGNORE)
    assert "This node has joined the cluster" in output
    wait_ready(first, "node", "two")
    assert f"client-certificate: {CURRENT}" in second.run("cat", "/etc/kubernetes/kubelet.conf")

    pod = make_pod("web", make_container(script="echo hello; while :; do sleep 86400 & wait $!; done"))
    first.run("kubectl", "apply", "-f", "-", text=json.dumps(pod))
    wait_ready(first, "pod", "web")
    assert get(first, "pod", "web")["spec"]["nodeName"] == "two"
    assert first.run("kubectl", "logs", "web") == "hello\n"
    assert first.run("kubectl", "exec", "web", "--", "hostname") == "web\n"

    second.run("kubeadm", "upgrade", "node", "--skip-phases=addon", IGNORE)
    second.run("systemctl", "restart", "kubelet")
    first.run("kubeadm", "certs", "renew", "all")
    wait_ready(first, "node", "two")
    assert get(first, "pod", "web")["status"]["containerStatuses"][0]["restartCount"] == 0

    for machine in (second, first):
        machine.run("kubeadm", "reset", "--force", "--cri-socket", machine.endpoint)
        assert machine.run("ls", "/var/lib/kubelet") == ""
        assert "pause" not in machine.run("ps", "ax"), "containers outlived the reset"


STATIC, APP = "static", "app"
DATA, APPLIED = "/var/lib/pykubelet-local-api", "/etc/pykubelet/apply.d"
_JOINED = (
    f"--kubeconfig={DATA}/kubelet.kubeconfig --client-ca-file={DATA}/ca.crt --authentication-token-webhook "
    "--authorization-mode=Webhook"
)


def spawn(machine: SeparateMachine, name: str, command: str) -> None:
    """A process that goes on; its number is in /run."""
    log = machine.folder / f"{name}.log"
    machine.run("sh", "-c", f"setsid {command} > {log} 2>&1 < /dev/null & echo $! > /run/{name}.pid")


def write(machine: SeparateMachine, path: str, document: Json) -> None:
    machine.run("mkdir", "-p", str(Path(path).parent))
    machine.run("tee", path, text=json.dumps(document))


def live_alone(machine: SeparateMachine) -> dict[str, set[str]]:
    """Make it a node with the local API, a static pod and a pod with a ConfigMap; returns the runtime's ids of each by its name."""
    write(machine, f"/etc/kubernetes/manifests/{STATIC}.json", make_pod(STATIC))
    entry = {"name": "COLOR", "valueFrom": {"configMapKeyRef": {"name": APP, "key": "color"}}}
    colors = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": APP}, "data": {"color": "green"}}
    items = [colors, make_pod(APP, make_container(env=[entry]))]
    write(machine, f"{APPLIED}/app.json", {"apiVersion": "v1", "kind": "List", "items": items})
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "staticPodPath": "/etc/kubernetes/manifests",
        "containerRuntimeEndpoint": machine.endpoint,
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": False,
        "failSwapOn": False,
    }
    write(machine, "/etc/pykubelet/config.json", config)
    spawn(machine, "api", f"pykubelet local-api --data-dir {DATA} --apply-dir {APPLIED}")
    made = ("sh", "-c", f"test -s {DATA}/kubelet.kubeconfig && echo made")
    assert host.wait_until(lambda: machine.run(*made, check=False) == "made\n", WAIT_S, 0.5)
    spawn(machine, "kubelet", f"pykubelet --config=/etc/pykubelet/config.json {_JOINED}")

    def runs() -> bool:
        try:
            found = json.loads(machine.run("pykubelet", "pods", "-o", "json", check=False))["pods"]
        except ValueError:  # it does not answer yet
            return False
        return {pod["name"] for pod in found if pod["status"] == "Running"} == {f"{STATIC}-{machine.name}", APP}

    assert host.wait_until(runs, WAIT_S, 0.5), machine.log_tail()
    return {name: containers(machine, name) for name in (STATIC, APP)}


def containers(machine: SeparateMachine, name: str) -> set[str]:
    """The runtime's ids of the sandbox and containers of a pod, also of a static one."""
    ctr = ("ctr", "--address", machine.endpoint.removeprefix("unix://"), "-n", "k8s.io", "containers", "ls", "-q")
    names = (name, f"{name}-{machine.name}")
    return {word for each in names for word in machine.run(*ctr, f'labels."io.kubernetes.pod.name"=={each}').split()}


@pytest.mark.usefixtures("release")
def test_a_machine_of_the_local_api_moves_into_the_cluster(machines: tuple[SeparateMachine, SeparateMachine]) -> None:
    """docs/local-api.md. The ends of processes stand for those of services."""
    first, second = machines
    alone = live_alone(second)
    assert all(len(found) == 2 for found in alone.values()), alone
    initialize(first)

    export, apply = (block.splitlines() for block in blocks("local-api.md", "sh", SECTION))
    assert export[1:] == ["systemctl disable --now pykubelet-local-api"] and apply == ["kubectl apply -f machine.yaml"]
    second.run("sh", "-ec", f"cd /root; {export[0]}")
    second.run("sh", "-ec", "kill $(cat /run/api.pid) $(cat /run/kubelet.pid)")
    join = first.run("kubeadm", "token", "create", "--print-join-command").split() + ["--cri-socket", second.endpoint]
    assert {name: containers(second, name) for name in alone} == alone, "the end of the API and of the agent ended pods"
    output = second.run(*join, IGNORE)
    assert "This node has joined the cluster" in output and "[ERROR" not in output
    wait_ready(first, "node", "two")
    wait_ready(first, "pod", f"{STATIC}-two")
    assert host.wait_until(lambda: not containers(second, APP), WAIT_S, 0.5), "the pod of the local API stays"
    assert containers(second, STATIC) == alone[STATIC], "the static pod was started anew"

    first.run("tee", "/root/machine.yaml", text=second.run("cat", "/root/machine.yaml"))
    first.run("sh", "-ec", f"cd /root; {apply[0]}")
    wait_ready(first, "pod", APP)
    assert first.run("kubectl", "exec", APP, "--", "sh", "-c", "echo $COLOR") == "green\n"
    assert containers(second, STATIC) == alone[STATIC]
