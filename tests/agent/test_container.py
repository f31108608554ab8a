"""What a container gets, as it sees it from inside. All pods start together; each test reads what its pod printed."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from support.agent import NODE_NAME, Agent, Json, container_status, make_container, make_pod, waiting_reason
from testbed import host, images
from testbed.host import free_port

pytestmark = pytest.mark.integration

GATES = ("AtomicWriteVolumeUserFields", "DefaultPodSysctls", "EmptyDirVolumeMode")
SETTINGS: Json = {
    "podPidsLimit": 123,
    "featureGates": dict.fromkeys(GATES, True),
    "defaultPodSysctls": {
        "net/core/somaxconn": "77",
        "net.ipv4.ip_unprivileged_port_start": "7",
        "user.max_ipc_namespaces": "7",
    },
}
MIB = 1 << 20
STAY = 'trap "exit 0" TERM; while :; do sleep 3600 & wait $!; done'
HOST_PORT = free_port(0)
CGROUP_V1 = not Path("/sys/fs/cgroup/cgroup.controllers").exists()
MEMORY = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
CAPABILITIES = next(
    line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapBnd")
)
DEVICES = [path for path in ("/dev/kmsg", "/dev/loop-control") if Path(path).exists()]
RESOURCES = {"requests": {"cpu": "100m", "memory": "20Mi"}, "limits": {"cpu": "200m", "memory": "40Mi"}}
PROFILE = {
    "defaultAction": "SCMP_ACT_ALLOW",
    "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}],
}


def ask(**questions: str) -> str:
    """A script that prints each answer under its name, then `=== end`, and stays."""
    parts = [f"echo === {name}; ({question}) 2>&1" for name, question in questions.items()]
    return "; ".join([*parts, "echo === end", STAY])


def field(path: str) -> Json:
    return {"valueFrom": {"fieldRef": {"fieldPath": path}}}


def resource(name: str, divisor: str = "0") -> Json:
    return {"valueFrom": {"resourceFieldRef": {"resource": name, "divisor": divisor}}}


def identity_pod() -> Json:
    questions = {
        "hostname": "hostname",
        "hosts": "cat /etc/hosts",
        "resolver": "cat /etc/resolv.conf",
        "directory": "pwd",
        "downward": "cat /info/labels; echo; cat /info/cpu; echo; cat /info/name; echo",
        **{name.lower(): f"echo ${name}" for name in ("NAME", "SPACE", "UID_", "NODE", "IP", "HOST_IP", "CPU", "MEM")},
        "greeting": "echo $GREETING",
        "literal": "echo $LITERAL",
        "args": 'echo "$0 $1"',
        "limits": "cd /sys/fs/cgroup; cat memory/memory.limit_in_bytes memory.max cpu/cpu.shares cpu/cpu.cfs_quota_us "
        "cpu/cpu.cfs_period_us cpu.max 2>/dev/null",
        "oom": "cat /proc/self/oom_score_adj",
    }
    env = [
        {"name": "NAME", **field("metadata.name")},
        {"name": "SPACE", **field("metadata.namespace")},
        {"name": "UID_", **field("metadata.uid")},
        {"name": "NODE", **field("spec.nodeName")},
        {"name": "IP", **field("status.podIP")},
        {"name": "HOST_IP", **field("status.hostIP")},
        {"name": "CPU", **resource("limits.cpu", "1m")},
        {"name": "MEM", **resource("requests.memory", "1Mi")},
        {"name": "GREETING", "value": "hello $(NAME) of $(SPACE)"},
        {"name": "LITERAL", "value": "$$(NAME) $(MISSING)"},
    ]
    container = make_container(
        script=ask(**questions),
        args=["$(NAME)", "$(SPACE)"],
        env=env,
        workingDir="/work",
        resources=RESOURCES,
        volumeMounts=[{"name": "info", "mountPath": "/info"}],
    )
    items: list[Json] = [
        {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
        {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}},
        {
            "path": "cpu",
            "resourceFieldRef": {"containerName": "main", "resource": "requests.cpu", "divisor": "1m"},
        },
    ]
    pod = make_pod(
        "identity",
        container,
        hostname="host",
        subdomain="sub",
        hostAliases=[{"ip": "192.0.2.1", "hostnames": ["friend", "pal"]}],
        dnsPolicy="None",
        dnsConfig={
            "nameservers": ["192.0.2.53"],
            "searches": ["example.test"],
            "options": [{"name": "ndots", "value": "2"}],
        },
        volumes=[{"name": "info", "downwardAPI": {"items": items}}],
    )
    pod["metadata"]["labels"] = {"app": "web", "tier": "one"}
    return pod


def volumes_pod(folder: Path) -> Json:
    mounts = [
        {"name": "disk", "mountPath": "/disk"},
        {"name": "memory", "mountPath": "/memory"},
        {"name": "made", "mountPath": "/made"},
        {"name": "file", "mountPath": "/file"},
        {"name": "disk", "mountPath": "/part", "subPath": "deep/part"},
        {"name": "disk", "mountPath": "/mine", "subPathExpr": "$(NAME)"},
        {"name": "made", "mountPath": "/frozen", "readOnly": True},
        {"name": "closed", "mountPath": "/closed"},
        {"name": "owned", "mountPath": "/owned"},
    ]
    items = [
        {"path": "volumes", "fieldRef": {"fieldPath": "metadata.name"}},
        {"path": "own", "user": 2000, "fieldRef": {"fieldPath": "metadata.name"}},
    ]
    questions = {
        "shared": "until [ -s /disk/from-other ]; do sleep 0.05; done; cat /disk/from-other",
        "memory": "grep ' /memory ' /proc/self/mounts; df -k /memory | tail -1",
        "made": "echo hi > /made/greeting && cat /made/greeting",
        "file": "cat /file",
        "part": "echo p > /part/p; cat /disk/deep/part/p",
        "mine": "echo m > /mine/m; cat /disk/$NAME/m",
        "frozen": "touch /frozen/x && echo written",
        "mode": "stat -c %a /disk /closed /memory",
        "owners": "stat -L -c %u /owned/volumes /owned/own",
    }
    env = [{"name": "NAME", **field("metadata.name")}]
    return make_pod(
        "volumes",
        make_container(script=ask(**questions), volumeMounts=mounts, env=env),
        make_container(
            "other", f"echo theirs > /d/from-other; {STAY}", volumeMounts=[{"name": "disk", "mountPath": "/d"}]
        ),
        volumes=[
            {"name": "disk", "emptyDir": {}},
            {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi", "mode": 0o750}},
            {"name": "closed", "emptyDir": {"mode": 0o1770}},
            {"name": "owned", "downwardAPI": {"defaultUser": 1000, "items": items}},
            {"name": "made", "hostPath": {"path": f"{folder}/made/here", "type": "DirectoryOrCreate"}},
            {"name": "file", "hostPath": {"path": f"{folder}/file", "type": "File"}},
        ],
    )


RIGHTS = {
    "identity": "id -u; id -g",
    "groups": "grep Groups /proc/self/status",
    "rights": "grep -E 'CapEff|NoNewPrivs|Seccomp:' /proc/self/status",
    "root": "touch /x && echo written",
    "made": "mkdir /tmp/made && echo made",
    "volume": "stat -c %g /data; touch /data/x; stat -c %g /data/x",
    "sysctl": "cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/net/core/somaxconn",
}


def security_pods() -> list[Json]:
    data: Json = {"volumes": [{"name": "data", "emptyDir": {}}]}
    mounts = [{"name": "data", "mountPath": "/data"}]
    pod_context = {
        "runAsUser": 1000,
        "runAsGroup": 3000,
        "fsGroup": 2000,
        "supplementalGroups": [4000],
        "sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "80"}],
    }
    tight = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    local = {"seccompProfile": {"type": "Localhost", "localhostProfile": "profiles/no-mkdir.json"}}
    root = {"runAsNonRoot": True}
    return [
        make_pod(
            "tight",
            make_container(script=ask(**RIGHTS), securityContext=tight, volumeMounts=mounts),
            securityContext=pod_context,
            **data,
        ),
        make_pod("profiled", make_container(script=ask(made=RIGHTS["made"]), securityContext=local)),
        make_pod("no-root", make_container(securityContext=root)),
        make_pod("numeric-user", make_container(image=images.NONROOT, script=ask(id="id -u"), securityContext=root)),
        make_pod("named-user", make_container(image=images.NAMED_USER, securityContext=root)),
        make_pod(
            "privileged",
            make_container(
                script=ask(rights=RIGHTS["rights"], device="ls -d /dev/kmsg /dev/loop-control 2>/dev/null"),
                securityContext={"privileged": True},
            ),
        ),
    ]


def host_pods() -> list[Json]:
    namespaces = "for n in net pid ipc uts; do readlink /proc/self/ns/$n; done"
    processes = "ps -o args | grep -c '[s]leep 3600'; ps | wc -l; ps -o args"
    server = "mkdir /tmp/w; echo served > /tmp/w/index.html; exec httpd -f -p 8080 -h /tmp/w"
    port = {"containerPort": 8080, "hostPort": HOST_PORT, "hostIP": "127.0.0.1"}
    return [
        make_pod("hosted", make_container(script=ask(ns=namespaces)), hostNetwork=True, hostPID=True, hostIPC=True),
        make_pod(
            "shared-pids",
            make_container(
                script=f"until ps -o args | grep -q '[s]leep 7777'; do sleep 0.1; done; {ask(ps=processes)}"
            ),
            make_container("other", "exec sleep 7777"),
            shareProcessNamespace=True,
        ),
        make_pod("port", make_container(script=server, ports=[port])),
    ]


def process_pods(folder: Path) -> list[Json]:
    hooks = {
        "postStart": {"exec": {"command": ["/bin/sh", "-c", "echo started > /data/hook"]}},
        "preStop": {"exec": {"command": ["/bin/sh", "-c", "echo stopping > /data/stopped"]}},
    }
    data = [{"name": "data", "mountPath": "/data"}]
    host_data: Json = {
        "volumes": [{"name": "data", "hostPath": {"path": str(folder / "hooks"), "type": "DirectoryOrCreate"}}]
    }
    both = {"name": "tree", "mountPath": "/tree", "mountPropagation": "Bidirectional"}
    down = {"name": "tree", "mountPath": "/tree", "mountPropagation": "HostToContainer"}
    tree: Json = {"volumes": [{"name": "tree", "hostPath": {"path": str(folder / "tree"), "type": "Directory"}}]}
    mounting = f"mkdir -p /tree/m; mount -t tmpfs mine /tree/m; echo seen > /tree/m/file; {STAY}"
    return [
        make_pod("terminal", make_container(script=ask(tty="tty; [ -t 1 ] && echo is"), tty=True, stdin=True)),
        make_pod("hooks", make_container(lifecycle=hooks, volumeMounts=data), **host_data),
        make_pod(
            "hook-fails",
            make_container(
                script="exec sleep 1000",
                lifecycle={"postStart": {"exec": {"command": ["/bin/sh", "-c", "exit 9"]}}},
            ),
            restartPolicy="Never",
        ),
        make_pod(
            "mounter",
            make_container(script=mounting, securityContext={"privileged": True}, volumeMounts=[both]),
            **tree,
        ),
        make_pod(
            "watcher",
            make_container(
                script=ask(seen="until [ -s /tree/m/file ]; do sleep 0.05; done; cat /tree/m/file"), volumeMounts=[down]
            ),
            **tree,
        ),
        make_pod("image-defaults", {"name": "main", "image": images.DEFAULTS, "imagePullPolicy": "Never"}),
        make_pod(
            "image-args", {"name": "main", "image": images.DEFAULTS, "imagePullPolicy": "Never", "args": ["three"]}
        ),
    ]


def refused_pods(folder: Path) -> list[Json]:
    (folder / "outside").mkdir()
    (folder / "base").mkdir()
    (folder / "base" / "way-out").symlink_to(folder / "outside")
    mounts = [{"name": "base", "mountPath": "/in", "subPath": "way-out"}]
    volumes = [{"name": "base", "hostPath": {"path": str(folder / "base"), "type": "Directory"}}]
    missing = [{"name": "gone", "hostPath": {"path": str(folder / "nowhere"), "type": "Directory"}}]
    gone = [{"name": "gone", "mountPath": "/gone"}]
    return [
        make_pod("escape", make_container(volumeMounts=mounts), volumes=volumes),
        make_pod("no-directory", make_container(volumeMounts=gone), volumes=missing),
        make_pod("no-image", make_container(image="localhost/missing:1")),
        make_pod("no-program", make_container(command=["/bin/no-such-program"])),
        make_pod("unsafe", securityContext={"sysctls": [{"name": "kernel.msgmax", "value": "8192"}]}),
        make_pod("huge", make_container(resources={"requests": {"memory": "4Pi"}})),
    ]


@pytest.fixture(scope="module")
def folder(agent: Agent) -> Iterator[Path]:
    """A folder for hostPath volumes; all pods are put when it is ready."""
    folder = agent.folder / "host"
    tree = folder / "tree"
    tree.mkdir(parents=True)
    subprocess.run(["mount", "--bind", tree, tree], check=True)
    subprocess.run(["mount", "--make-shared", tree], check=True)
    (folder / "file").write_text("from the host\n")
    profiles = agent.root / "seccomp" / "profiles"
    profiles.mkdir(parents=True, exist_ok=True)
    (profiles / "no-mkdir.json").write_text(json.dumps(PROFILE))
    agent.put(identity_pod(), volumes_pod(folder), *security_pods(), *host_pods(), *process_pods(folder))
    agent.put(*refused_pods(folder))
    yield folder
    host.unmount_below(folder)


async def answers(agent: Agent, pod: str) -> dict[str, list[str]]:
    """What the pod's `ask` script printed: lines by question."""
    output = await agent.wait_for(
        f"{pod} has answered",
        lambda: "=== end" in (text := agent.output(pod, "main")) and text,
        within=90,
    )
    found: dict[str, list[str]] = {}
    for line in output.replace("\r", "").splitlines():
        if line.startswith("=== "):
            lines = found.setdefault(line[4:], [])
        else:
            lines.append(line)
    return found


async def test_names_environment_and_files(agent: Agent, folder: Path) -> None:
    seen = await answers(agent, "identity")
    [pod] = await agent.wait_running("identity")
    ip = pod["status"]["podIP"]
    assert seen["hostname"] == ["host"]
    assert f"{ip}\thost.sub.default.svc.cluster.local\thost" in seen["hosts"]
    assert "192.0.2.1\tfriend\tpal" in seen["hosts"]
    assert seen["resolver"] == ["search example.test", "nameserver 192.0.2.53", "options ndots:2"]
    assert seen["directory"] == ["/work"]
    assert seen["name"] == [f"identity-{NODE_NAME}"]
    assert seen["space"] == ["default"]
    assert seen["uid_"] == [pod["metadata"]["uid"]]
    assert seen["node"] == [NODE_NAME]
    assert seen["ip"] == [ip]
    assert seen["host_ip"] == [pod["status"]["hostIP"]]
    assert (seen["cpu"], seen["mem"]) == (["200"], ["20"])
    assert seen["greeting"] == [f"hello identity-{NODE_NAME} of default"]
    assert seen["literal"] == ["$(NAME) $(MISSING)"]
    assert seen["args"] == [f"identity-{NODE_NAME} default"]
    assert seen["downward"] == ['app="web"', 'tier="one"', "100", f"identity-{NODE_NAME}"]


async def test_resources_reach_the_kernel(agent: Agent, folder: Path) -> None:
    seen = await answers(agent, "identity")
    expected = [str(40 * MIB), "102", "20000", "100000"] if CGROUP_V1 else [str(40 * MIB), "20000 100000"]
    assert seen["limits"] == expected
    assert abs(int(seen["oom"][0]) - (1000 - 1000 * 20 * MIB // MEMORY)) <= 1
    uid = agent.pods()["identity"]["metadata"]["uid"]
    groups = [path for path in agent.pod_cgroups() if uid in path.name]
    assert groups and all("burstable" in path.parts for path in groups)
    if CGROUP_V1:
        memory_group = next(path for path in groups if "memory" in path.parts)
        assert (memory_group / "memory.limit_in_bytes").read_text().strip() == str(40 * MIB)
    else:
        (group,) = groups
        found = [(group / name).read_text().strip() for name in ("memory.max", "cpu.max", "cpu.weight")]
        assert found == [str(40 * MIB), "20000 100000", "4"]


async def test_volumes(agent: Agent, folder: Path) -> None:
    seen = await answers(agent, "volumes")
    assert seen["shared"] == ["theirs"]
    assert seen["memory"][0].split()[2] == "tmpfs" and seen["memory"][1].split()[1] == "8192"
    assert seen["made"] == ["hi"] and (folder / "made/here/greeting").read_text() == "hi\n"
    assert seen["file"] == ["from the host"]
    assert seen["part"] == ["p"]
    assert seen["mine"] == ["m"]
    assert "Read-only file system" in seen["frozen"][0]
    assert seen["mode"] == ["777", "1770", "750"]
    assert seen["owners"] == ["1000", "2000"]


async def test_rights(agent: Agent, folder: Path) -> None:
    seen = await answers(agent, "tight")
    assert seen["identity"] == ["1000", "3000"]
    assert {"2000", "4000"} <= set(seen["groups"][0].split())
    assert [line.split()[1] for line in seen["rights"]] == ["0000000000000000", "1", "2"]
    assert "Read-only file system" in seen["root"][0]
    assert seen["volume"] == ["2000", "2000"]
    assert seen["sysctl"] == ["80", "77"], "the pod's own value, and the node's"
    assert "not permitted" in (await answers(agent, "profiled"))["made"][0]
    assert (await answers(agent, "numeric-user"))["id"] == ["1234"]


async def test_privileged(agent: Agent, folder: Path) -> None:
    seen = await answers(agent, "privileged")
    rights = [line.split()[1] for line in seen["rights"]]
    of_old_docker = f"{int(CAPABILITIES, 16) & (1 << 38) - 1:016x}"  # those that Docker Engine 20.10 knows
    assert rights[0] in (CAPABILITIES, *([of_old_docker] if agent.testbed.is_docker else [])) and rights[2] == "0"
    assert seen["device"] == DEVICES


async def test_users_that_may_not_be_root_are_refused(agent: Agent, folder: Path) -> None:
    for name, message in (
        ("no-root", "container has runAsNonRoot and image will run as root"),
        (
            "named-user",
            "container has runAsNonRoot and image has non-numeric user (worker), cannot verify user is non-root",
        ),
    ):
        pod = await agent.wait_pod(name, "refused", lambda p: waiting_reason(p) == "CreateContainerConfigError")
        assert container_status(pod)["state"]["waiting"]["message"].startswith(message)


async def test_namespaces_of_the_host(agent: Agent, folder: Path) -> None:
    seen = await answers(agent, "hosted")
    assert seen["ns"][:3] == [os.readlink(f"/proc/self/ns/{name}") for name in ("net", "pid", "ipc")]
    [pod] = await agent.wait_running("hosted")
    assert pod["status"]["podIP"] == pod["status"]["hostIP"]


async def test_shared_processes(agent: Agent, folder: Path) -> None:
    seen = await answers(agent, "shared-pids")
    assert any("sleep 7777" in line for line in seen["ps"]) and any("/pause" in line for line in seen["ps"])


async def test_a_host_port_leads_to_the_container(agent: Agent, folder: Path) -> None:
    if not agent.testbed.maps_host_ports:
        pytest.skip("host ports are CRI-O's own, and switched off in the test bed")
    await agent.wait_running("port")

    def served() -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", HOST_PORT, timeout=2)
        try:
            connection.request("GET", "/")
            return connection.getresponse().read() == b"served\n"
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    await agent.wait_for("the port answers", served)


async def test_terminal(agent: Agent, folder: Path) -> None:
    assert (await answers(agent, "terminal"))["tty"][-1] == "is"


async def test_image_defaults(agent: Agent, folder: Path) -> None:
    for name, words in (("image-defaults", "one two"), ("image-args", "three")):
        text = await agent.wait_for("it speaks", partial(agent.output, name, "main"))
        assert text == f"dir=/home/worker color=blue args={words}\n"


async def test_mounts_propagate(agent: Agent, folder: Path) -> None:
    assert (await answers(agent, "watcher"))["seen"] == ["seen"]
    assert (folder / "tree/m/file").read_text() == "seen\n"


async def test_hooks(agent: Agent, folder: Path) -> None:
    await agent.wait_running("hooks")
    assert (folder / "hooks/hook").read_text() == "started\n"
    agent.remove("hooks")
    await agent.wait_gone("hooks")
    assert (folder / "hooks/stopped").read_text() == "stopping\n"
    failed = await agent.wait_phase("hook-fails", "Failed")
    assert container_status(failed)["state"]["terminated"]["exitCode"] != 0


async def test_a_socket_that_is_gone_is_not_replaced_by_a_directory(agent: Agent, folder: Path) -> None:
    path, stop = folder / "service.sock", folder / "stop"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    volumes: list[Json] = [
        {"name": "service", "hostPath": {"path": str(path), "type": "Socket"}},
        {"name": "host", "hostPath": {"path": str(folder), "type": "Directory"}},
    ]
    mounts = [{"name": "service", "mountPath": "/service.sock"}, {"name": "host", "mountPath": "/host"}]
    script = "test -S /service.sock || exit 9; until [ -e /host/stop ]; do sleep 0.1; done"
    agent.put(make_pod("client", make_container(command=["sh", "-c", script], volumeMounts=mounts), volumes=volumes))
    await agent.wait_running("client")
    listener.close()
    path.unlink()
    stop.touch()
    pod = await agent.wait_pod("client", "refused", lambda p: waiting_reason(p) == "CreateContainerConfigError")
    message = f'MountVolume.SetUp failed for volume "service" : hostPath type check failed: {path} is not a socket file'
    assert container_status(pod)["state"]["waiting"]["message"] == message
    assert not path.exists()
    stop.unlink()
    with socket.socket(socket.AF_UNIX) as again:
        again.bind(str(path))
        await agent.wait_running("client")
    agent.remove("client")


async def test_what_cannot_be_given_is_reported(agent: Agent, folder: Path) -> None:
    pod = await agent.wait_pod("escape", "refused", lambda p: waiting_reason(p) == "CreateContainerConfigError")
    assert container_status(pod)["state"]["waiting"]["message"].startswith("failed to prepare subPath for volumeMount")
    assert not list((folder / "outside").iterdir())
    pod = await agent.wait_pod("no-image", "refused", lambda p: waiting_reason(p) == "ErrImageNeverPull")
    message = 'Container image "localhost/missing:1" is not present with pull policy of Never'
    assert container_status(pod)["state"]["waiting"]["message"] == message
    # CRI-O refuses it when the container is created
    refused = ("RunContainerError", "CrashLoopBackOff", "CreateContainerError")
    pod = await agent.wait_pod("no-program", "refused", lambda p: waiting_reason(p) in refused)
    pod = await agent.wait_phase("unsafe", "Failed")
    assert pod["status"]["reason"] == "SysctlForbidden"
    pod = await agent.wait_phase("huge", "Failed")
    assert pod["status"]["reason"] == "UnexpectedAdmissionError", (
        "static pods are critical: capacity is sought for them"
    )

    def reported() -> bool:
        waits = agent.explain("no-directory")["waits"]
        return any(str(folder / "nowhere") in wait["detail"] for wait in waits)

    await agent.wait_for("the wait for the volume is explained", reported)


async def test_pids_limit(agent: Agent, folder: Path) -> None:
    await agent.wait_running("port")

    def limits() -> set[str]:
        files = [path / "pids.max" for path in agent.pod_cgroups()]
        return {host.read_control(file).strip() for file in files} - {""}

    # one that is tried again and again has just been made, perhaps
    await agent.wait_for("each pod has its limit", lambda: limits() == {str(SETTINGS["podPidsLimit"])})


async def test_a_pod_whose_volume_cannot_be_mounted_has_no_event_of_a_present_image(
    agent: Agent, tmp_path: Path
) -> None:
    late = tmp_path / "late"
    volume = {"name": "late", "hostPath": {"path": str(late), "type": "Directory"}}
    container = make_container(volumeMounts=[{"name": "late", "mountPath": "/late"}])
    agent.put(make_pod("early", container, volumes=[volume]))

    def reasons() -> list[str]:
        return [line["event"] for line in agent.explain("early")["timeline"] if line.get("event")]

    await agent.wait_for("the mount has failed", lambda: "FailedMount" in reasons())
    assert "Pulled" not in reasons()
    late.mkdir()
    await agent.wait_running("early")
    of_the_container = [reason for reason in reasons() if reason in ("Pulled", "Created", "Started")]
    assert of_the_container == ["Pulled", "Created", "Started"]
    agent.remove("early")
