"""Programs that watch a node, as docs/monitoring.md has them: Prometheus from Debian's package, and crictl."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support import prometheus
from support.agent import Json, make_container, make_pod
from support.guides import blocks
from support.typed import ETC, clear, needs_kubernetes, prepare_desk, run, type_in
from support.unit import LONG_S, SystemContainerd
from testbed import host
from testvm.builds import BUILT, KUBERNETES

pytestmark = pytest.mark.vm
HOSTS = Path("/etc/hosts")
NAME = "node1.example"
PROMETHEUS = Path("/etc/prometheus/prometheus.yml")
POD = "web-testvm"


@pytest.fixture(autouse=True)
async def machine(runtime: SystemContainerd) -> AsyncIterator[None]:
    """Debian's defaults, without any of the packages, before and after; the name of the guide's node is this machine's."""
    hosts = HOSTS.read_text()
    runtime.set_driver("cgroupfs")
    await clear(runtime)
    prepare_desk()
    HOSTS.write_text(f"{hosts}127.0.0.1 {NAME}\n")
    yield
    HOSTS.write_text(hosts)
    run("dpkg", "--purge", "prometheus", check=False)
    await clear(runtime)
    for folder in (PROMETHEUS.parent, Path("/etc/pykubelet"), Path("/var/lib/prometheus")):
        shutil.rmtree(folder, ignore_errors=True)


def web() -> Json:
    """The pod that `prometheus.queries` expects."""
    app = make_container(
        "app",
        script="echo hello; while :; do sleep 1; done",
        volumeMounts=[{"name": "scratch", "mountPath": "/scratch"}],
        readinessProbe={"exec": {"command": ["true"]}, "periodSeconds": 5},
    )
    return make_pod("web", app, volumes=[{"name": "scratch", "emptyDir": {}}])


def install_node() -> None:
    """A node that stands alone, from its package."""
    type_in("apt-get install ./dist/pykubelet_*.deb")


def start_pod() -> None:
    """The pod; returns when it runs."""
    (ETC / "manifests/web.yaml").write_text(json.dumps(web()))
    wait(lambda: "Running" in run("pykubelet", "pods", check=False))


def wait(condition: Callable[[], Any], what: object = "") -> None:
    assert host.wait_until(condition, LONG_S, 2), f"{what}\n{run('pykubelet', 'pods', check=False)}"


def test_prometheus_scrapes_the_node_and_dashboards_have_values() -> None:
    install_node()
    install, certificates, node, restart, look = blocks(prometheus.GUIDE, "sh", "Prometheus")
    for block in (install, certificates, node):
        type_in(block)
    start_pod()  # what counts starts of pods begins with the agent
    PROMETHEUS.write_text(prometheus.configuration())
    type_in(restart)
    served = prometheus.Prometheus("http://127.0.0.1:9090")
    wait(served.is_ready)
    wait(served.is_up)
    up = {sample["metric"]["job"]: sample["value"][1] for sample in json.loads(type_in(look))["data"]["result"]}
    assert {name: up.get(name) for name in prometheus.JOBS} == dict.fromkeys(prometheus.JOBS, "1")
    # the node's own certificate makes no client
    ask = "curl -s --cacert ca.pem --cert {0}.pem --key {0}.key https://node1.example:10250/healthz"
    assert type_in(f"cd {PROMETHEUS.parent}/kubelet; {ask.format('prometheus')}; ! {ask.format('node1')}") == "ok"
    for query in prometheus.queries("testvm"):
        wait(partial(served.values, query), query)
    assert served.is_up(), served.ask("targets")
    samples = "sum(scrape_samples_scraped)", "max(scrape_duration_seconds)"
    found = [float(served.values(query)[0]["value"][1]) for query in samples]
    print(f"{found[0]:.0f} samples, the longest scrape took {found[1]:.1f} s")
    log = run("journalctl", "-b", "-o", "cat", "-u", "prometheus.service")
    assert "Error on ingesting" not in log and "duplicate sample" not in log, log[-3000:]


@needs_kubernetes
@pytest.mark.skipif(not (BUILT / KUBERNETES / "cri-tools.deb").exists(), reason="there is no crictl among them")
def test_crictl_shows_the_pods_of_the_node(tmp_path: Path) -> None:
    install_node()
    start_pod()
    [install, *_] = blocks(prometheus.GUIDE, "sh", "crictl")
    type_in(install)
    run("crictl", "config", "--set", "timeout=600")  # its own limit is 2 s

    def crictl(*words: str) -> str:
        return run("crictl", *words)

    def items(kind: str, command: str, *words: str) -> list[Json]:
        return list(json.loads(crictl(command, "-o", "json", *words))[kind])

    [sandbox] = items("items", "pods", "--name", POD)
    [container] = items("containers", "ps", "--pod", sandbox["id"])
    uid = sandbox["metadata"]["uid"]
    assert sandbox["metadata"]["namespace"] == "default"
    assert container["metadata"]["name"] == "app" and container["state"] == "CONTAINER_RUNNING"
    assert container["labels"]["io.kubernetes.pod.name"] == POD and container["labels"]["io.kubernetes.pod.uid"] == uid
    status = json.loads(crictl("inspect", container["id"]))["status"]
    assert status["logPath"] == f"/var/log/pods/default_{POD}_{uid}/app/0.log"
    assert crictl("logs", container["id"]) == "hello\n"
    assert crictl("exec", container["id"], "echo", "from", "inside") == "from inside\n"
    stats = items("stats", "stats", container["id"])
    assert [entry["attributes"]["id"] for entry in stats] == [container["id"]]
    assert int(stats[0]["memory"]["workingSetBytes"]["value"]) > 0

    # a pod that someone else makes stays
    config = tmp_path / "pod.json"
    config.write_text(json.dumps({"metadata": {"name": "mine", "namespace": "default", "uid": "1", "attempt": 0}}))
    mine = crictl("runp", str(config)).strip()
    time.sleep(120)
    assert [item["state"] for item in items("items", "pods", "--id", mine)] == ["SANDBOX_READY"]
    assert [item["id"] for item in items("containers", "ps", "--pod", sandbox["id"])] == [container["id"]]
    crictl("stopp", mine)
    crictl("rmp", mine)
