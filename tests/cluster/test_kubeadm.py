"""A cluster made by kubeadm: `init` on one machine and `join` on another, both with this kubelet, in namespaces of this machine.

The programs of Kubernetes come from the folder that KUBERNETES_BINARIES names (`tools/testbed/kubernetes.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.agent import PROGRAM, Json, make_container, make_pod
from support.namespaces import SeparateMachine, connect
from testbed import host, kubernetes, places

WAIT_S = 120.0
ADDRESSES = ("10.199.0.11", "10.199.0.12")
BINARIES = kubernetes.folder()
HAS_DNS = BINARIES is not None and kubernetes.has_dns(BINARIES)
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
    programs = {name: BINARIES / name for name in kubernetes.COMMANDS} | {"kubelet": PROGRAM.with_name("kubelet")}
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


def test_init_join_renewal_and_reset(machines: tuple[SeparateMachine, SeparateMachine], tmp_path: Path) -> None:
    first, second = machines
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
