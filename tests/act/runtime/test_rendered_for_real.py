"""What real containers see of rendered requests."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from act.runtime.rendering import GIB, SETTINGS, make_container, make_pod
from testbed import host, images
from testbed.private_runtime import Testbed

from pykubelet.act.runtime.render.context import ContainerContext, SandboxContext
from pykubelet.act.runtime.render.dns import etc_hosts_content
from pykubelet.act.runtime.render.render_config import render_container, render_sandbox
from pykubelet.base.kit.values import replace
from pykubelet.base.model.mounts import MountedVolume
from pykubelet.base.model.paths import Paths
from pykubelet.edges.cri.client import CriClient

pytestmark = pytest.mark.integration

APP = make_container(
    image=images.BUSYBOX,
    command=["/bin/sh", "-c"],
    args=["trap 'exit 0' TERM; while true; do sleep 0.1; done"],
    workingDir="/data",
    env=[
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "GREETING", "value": "hello $(POD)"},
    ],
    resources={"requests": {"cpu": "100m", "memory": "32Mi"}, "limits": {"cpu": "200m", "memory": "64Mi"}},
    securityContext={
        "runAsUser": 1234,
        "runAsGroup": 2345,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    },
    terminationMessagePath="/dev/termination-log",
    volumeMounts=[{"name": "data", "mountPath": "/data"}, {"name": "data", "mountPath": "/frozen", "readOnly": True}],
)
QUESTIONS = {
    "hostname": "hostname",
    "greeting": "echo $GREETING",
    "directory": "pwd",
    "identity": "id -u; id -g",
    "groups": "grep Groups /proc/self/status",
    "rights": "grep -E 'CapEff|NoNewPrivs|Seccomp:' /proc/self/status",
    "root": "touch /x",
    "frozen": "touch /frozen/x",
    "data": "touch /data/x",
    "resolver": "cat /etc/resolv.conf",
    "hosts": "cat /etc/hosts",
    "message": "echo bye > /dev/termination-log",
    "sysctl": "cat /proc/sys/net/ipv4/ip_unprivileged_port_start",
    "oom": "cat /proc/1/oom_score_adj",
    # The first file of each pair is of cgroup v1, the second of v2.
    "limits": "cd /sys/fs/cgroup; cat memory/memory.limit_in_bytes memory.max cpu/cpu.cfs_quota_us cpu.max 2>/dev/null",
}


def logs_of(folder: str) -> list[str]:
    return [str(path.relative_to(folder)) for path in Path(folder).rglob("*.log")]


@pytest.fixture
async def client(testbed: Testbed) -> AsyncIterator[CriClient]:
    client = CriClient(f"unix://{testbed.socket}")
    await client.wait_connected(60)
    yield client
    await client.close()


async def test_a_pod_sees_what_its_spec_requests(testbed: Testbed, client: CriClient, tmp_path: Path) -> None:
    parent = f"/{testbed.name}/poduid-1"
    host.make_cgroup(parent)
    settings = replace(SETTINGS, paths=Paths(root=str(tmp_path / "root"), logs=str(tmp_path / "logs")))
    pod = make_pod(
        APP,
        subdomain="sub",
        hostAliases=[{"ip": "192.0.2.9", "hostnames": ["friend"]}],
        securityContext={"fsGroup": 777, "sysctls": [{"name": "net/ipv4/ip_unprivileged_port_start", "value": "0"}]},
    )
    sandbox_ctx = SandboxContext(cgroup_parent=parent)
    sandbox_config = render_sandbox(pod, settings, sandbox_ctx)
    os.makedirs(f"{sandbox_config.log_directory}/app")
    data, hosts, message = tmp_path / "data", tmp_path / "etc-hosts", tmp_path / "message"
    data.mkdir()
    os.chown(data, 0, 777)
    data.chmod(0o2775)
    message.touch()
    message.chmod(0o666)

    sandbox = await client.run_pod_sandbox(sandbox_config)
    try:
        ip = (await client.pod_sandbox_status(sandbox)).status.network.ip
        text = etc_hosts_content(pod, settings, (ip,), "")
        assert isinstance(text, str)
        hosts.write_text(text)
        ctx = ContainerContext(
            image_ref=images.BUSYBOX,
            sandbox=sandbox_ctx,
            pod_ips=(ip,),
            mounts={"data": MountedVolume("data", "kubernetes.io/empty-dir", str(data))},
            etc_hosts_host_path=str(hosts),
            termination_log_host_path=str(message),
        )
        config = render_container(pod, APP, settings, ctx)
        container = await client.create_container(sandbox, config, sandbox_config)
        await client.start_container(container)
        answers = {}
        for topic, question in QUESTIONS.items():
            answer = await client.exec_sync(container, ["/bin/sh", "-c", question], 60)
            answers[topic] = (answer.stdout.decode().strip(), answer.exit_code)
        await client.stop_container(container, 2)
        await client.remove_container(container)
    finally:
        await client.stop_pod_sandbox(sandbox)
        await client.remove_pod_sandbox(sandbox)

    assert answers["hostname"] == ("web", 0)
    assert answers["greeting"] == ("hello web", 0)
    assert answers["directory"] == ("/data", 0)
    assert answers["identity"] == ("1234\n2345", 0)
    assert "777" in answers["groups"][0].split()
    assert answers["rights"][0].split() == ["CapEff:", "0000000000000000", "NoNewPrivs:", "1", "Seccomp:", "2"]
    assert answers["root"][1] != 0
    assert answers["frozen"][1] != 0
    assert answers["data"][1] == 0
    assert answers["resolver"][0].splitlines() == [
        "search shop.svc.cluster.local svc.cluster.local cluster.local example.org",
        "nameserver 10.96.0.10",
        "options ndots:5",
    ]
    assert f"{ip}\tweb.sub.shop.svc.cluster.local\tweb" in answers["hosts"][0].splitlines()
    assert "192.0.2.9\tfriend" in answers["hosts"][0].splitlines()
    assert message.read_text() == "bye\n"
    assert answers["sysctl"] == ("0", 0)
    assert int(answers["oom"][0]) == 1000 - 1000 * (32 << 20) // (16 * GIB)
    assert answers["limits"][0].split()[:2] == [str(64 << 20), "20000"]
    assert logs_of(sandbox_config.log_directory) == ["app/0.log"]
