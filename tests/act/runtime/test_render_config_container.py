from typing import Any

import pytest
from act.runtime.failures import refusal
from act.runtime.rendering import CONTEXT, GIB, NODE, SETTINGS, make_container, make_pod
from google.protobuf.json_format import MessageToDict

from pykubelet.act.runtime.render.context import (
    AnyContainer,
    ApiObjects,
    ContainerContext,
    IDMapping,
    RenderSettings,
    SandboxContext,
    UserNamespace,
)
from pykubelet.act.runtime.render.render_config import log_path, render_container
from pykubelet.base.api import core
from pykubelet.base.kit.values import replace
from pykubelet.base.model.lifecycle import StartError
from pykubelet.base.model.mounts import MountedVolume
from pykubelet.base.model.node import HandlerFeatures
from pykubelet.base.model.placement import CpuSet, Devices
from pykubelet.edges.cri import cri_pb2

LONG = {"name": "A", "value": "a" * 100_000}
IDS = (IDMapping(131072, 0, 65536),)
FULL = make_container(
    image="registry.example/app:1",
    command=["/bin/app", "--name=$(POD_NAME)"],
    args=["$(GREETING)", "$$(HOME)", "$(UNKNOWN)"],
    workingDir="/srv",
    tty=True,
    stdin=True,
    stdinOnce=True,
    env=[
        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "GREETING", "value": "hello $(POD_NAME)"},
    ],
    ports=[{"containerPort": 80, "name": "web", "protocol": "TCP"}],
    lifecycle={"preStop": {"exec": {"command": ["sync"]}}, "stopSignal": "SIGRTMIN+3"},
    resources={
        "requests": {"cpu": "250m", "memory": "4Gi"},
        "limits": {"cpu": "1", "memory": "8Gi", "hugepages-2Mi": "4Mi"},
    },
    securityContext={
        "runAsUser": 1000,
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]},
        "procMount": "Unmasked",
    },
    terminationMessagePath="/dev/termination-log",
    terminationMessagePolicy="File",
    volumeMounts=[
        {"name": "data", "mountPath": "/data", "subPathExpr": "$(POD_NAME)", "mountPropagation": "HostToContainer"},
        {"name": "conf", "mountPath": "/conf", "readOnly": True, "recursiveReadOnly": "Enabled"},
    ],
)
POD = make_pod(
    FULL,
    metadata={"labels": {"app": "web"}},
    hostUsers=False,
    subdomain="sub",
    terminationGracePeriodSeconds=45,
    securityContext={
        "fsGroup": 2000,
        "supplementalGroups": [3000],
        "runAsGroup": 1001,
        "seccompProfile": {"type": "RuntimeDefault"},
        "appArmorProfile": {"type": "Localhost", "localhostProfile": "k8s-web"},
    },
)
FULL_SETTINGS = replace(
    SETTINGS,
    cgroup_v2=True,
    swap_controller=True,
    container_stop_signals=True,
    node=replace(NODE, page_sizes=(2 << 20,)),
)
FULL_CONTEXT = replace(
    CONTEXT,
    restart_count=2,
    sandbox=SandboxContext(
        handler_features=HandlerFeatures(recursive_read_only_mounts=True, user_namespaces=True),
        userns=UserNamespace(IDS, IDS),
        supplemental_groups=(4000,),
    ),
    mounts={
        "data": MountedVolume("data", "kubernetes.io/empty-dir", "/v/data"),
        "conf": MountedVolume("conf", "kubernetes.io/empty-dir", "/v/conf"),
    },
    subpaths={0: "/subpaths/data/app/0"},
    etc_hosts_host_path="/p/etc-hosts",
    termination_log_host_path="/p/containers/app/0a1b2c3d",
    services={"KUBERNETES_SERVICE_HOST": "10.96.0.1"},
    devices=Devices(cdi=("vendor.com/gpu=0",), annotations={"vendor": "x"}),
    cpuset=CpuSet(cpus="0-1"),
)

MAPPINGS = {
    "uidMappings": [{"host_id": 131072, "length": 65536}],
    "gidMappings": [{"host_id": 131072, "length": 65536}],
}
GOLDEN = {
    "metadata": {"name": "app", "attempt": 2},
    "image": {"image": "sha256:abc", "user_specified_image": "registry.example/app:1"},
    "command": ["/bin/app", "--name=web"],
    "args": ["hello web", "$(HOME)", "$(UNKNOWN)"],
    "working_dir": "/srv",
    "envs": [
        {"key": "POD_NAME", "value": "d2Vi"},
        {"key": "GREETING", "value": "aGVsbG8gd2Vi"},
        {"key": "KUBERNETES_SERVICE_HOST", "value": "MTAuOTYuMC4x"},
    ],
    "mounts": [
        {
            "container_path": "/data",
            "host_path": "/subpaths/data/app/0",
            "propagation": "PROPAGATION_HOST_TO_CONTAINER",
            **MAPPINGS,
        },
        {
            "container_path": "/conf",
            "host_path": "/v/conf",
            "readonly": True,
            "recursive_read_only": True,
            **MAPPINGS,
        },
        {"container_path": "/etc/hosts", "host_path": "/p/etc-hosts", **MAPPINGS},
        {"container_path": "/dev/termination-log", "host_path": "/p/containers/app/0a1b2c3d", **MAPPINGS},
    ],
    "labels": {
        "io.kubernetes.pod.name": "web",
        "io.kubernetes.pod.namespace": "shop",
        "io.kubernetes.pod.uid": "uid-1",
        "io.kubernetes.container.name": "app",
    },
    "annotations": {
        "vendor": "x",
        "io.kubernetes.container.hash": "7eb8c5f0",
        "io.kubernetes.container.restartCount": "2",
        "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
        "io.kubernetes.container.terminationMessagePolicy": "File",
        "io.kubernetes.pod.terminationGracePeriod": "45",
        "io.kubernetes.container.preStopHandler": '{"exec":{"command":["sync"]}}',
        "io.kubernetes.container.ports": '[{"name":"web","containerPort":80,"protocol":"TCP"}]',
    },
    "log_path": "app/2.log",
    "stdin": True,
    "stdin_once": True,
    "tty": True,
    "CDI_devices": [{"name": "vendor.com/gpu=0"}],
    "stop_signal": "SIGNAL_SIGRTMINPLUS3",
    "linux": {
        "resources": {
            "cpu_period": "100000",
            "cpu_quota": "100000",
            "cpu_shares": "256",
            "memory_limit_in_bytes": str(8 * GIB),
            "oom_score_adj": "750",
            "cpuset_cpus": "0-1",
            "hugepage_limits": [{"page_size": "2MB", "limit": str(4 << 20)}],
            "unified": {"memory.oom.group": "1", "memory.swap.max": "0", "memory.high": "max"},
        },
        "security_context": {
            "capabilities": {"add_capabilities": ["NET_BIND_SERVICE"], "drop_capabilities": ["ALL"]},
            "namespace_options": {
                "pid": "CONTAINER",
                "userns_options": {
                    "uids": [{"host_id": 131072, "length": 65536}],
                    "gids": [{"host_id": 131072, "length": 65536}],
                },
            },
            "run_as_user": {"value": "1000"},
            "run_as_group": {"value": "1001"},
            "readonly_rootfs": True,
            "supplemental_groups": ["2000", "3000", "4000"],
            "no_new_privs": True,
            "seccomp": {},
            "apparmor": {"profile_type": "Localhost", "localhost_ref": "k8s-web"},
            "apparmor_profile": "localhost/k8s-web",
        },
    },
}


def render(
    pod: core.Pod = POD,
    container: AnyContainer = FULL,
    settings: RenderSettings = FULL_SETTINGS,
    ctx: ContainerContext = FULL_CONTEXT,
) -> cri_pb2.ContainerConfig:
    return render_container(pod, container, settings, ctx)


def test_a_container_with_everything() -> None:
    assert MessageToDict(render(), preserving_proto_field_name=True) == GOLDEN


def test_a_plain_container_asks_for_little() -> None:
    config = render(make_pod(), make_container(), SETTINGS, CONTEXT)
    assert (config.working_dir, config.stdin, config.tty, config.stop_signal) == ("", False, False, 0)
    assert not (config.mounts or config.devices or config.CDI_devices or config.envs)
    assert config.log_path == log_path("app", 0) == "app/0.log"


def test_ephemeral_containers() -> None:
    debugger = core.EphemeralContainer(name="debug", image="busybox:1", targetContainerName="app", tty=True)
    config = render(make_pod(), debugger, SETTINGS, replace(CONTEXT, target_container_id="c1"))
    assert config.linux.security_context.namespace_options.target_id == "c1"
    assert config.tty


@pytest.mark.parametrize(
    ("signal", "gate", "expected"),
    [
        ("SIGUSR1", True, cri_pb2.SIGNAL_SIGUSR1),
        ("SIGRTMAX-2", True, cri_pb2.SIGNAL_SIGRTMAXMINUS2),
        ("SIGODD", True, cri_pb2.SIGNAL_RUNTIME_DEFAULT),
        ("SIGUSR1", False, cri_pb2.SIGNAL_RUNTIME_DEFAULT),
    ],
)
def test_stop_signals(signal: str, gate: bool, expected: int) -> None:
    container = make_container(lifecycle={"stopSignal": signal})
    settings = replace(SETTINGS, container_stop_signals=gate)
    assert render(make_pod(container), container, settings, CONTEXT).stop_signal == expected


def test_secrets_may_hold_any_bytes_but_commands_not() -> None:
    ctx = replace(CONTEXT, api_objects=ApiObjects(secrets={"s": core.Secret(data={"k": b"\xff\x00"})}))
    env = [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
    quiet = make_container(env=env)
    assert render(make_pod(quiet), quiet, SETTINGS, ctx).envs[0].value == b"\xff\x00"
    loud = make_container(env=env, args=["$(X)"])
    result = refusal(render_container, make_pod(loud), loud, SETTINGS, ctx)
    assert result == StartError("CreateContainerError", "string field contains invalid UTF-8")


@pytest.mark.parametrize(
    ("fields", "spec", "message"),
    [
        (
            {"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}]},
            {},
            "no kubeClient defined",
        ),
        ({"volumeMounts": [{"name": "x", "mountPath": "/x"}]}, {}, 'cannot find volume "x"'),
        ({"volumeDevices": [{"name": "x", "devicePath": "/x"}]}, {}, 'cannot find volume "x"'),
        ({"securityContext": {"runAsNonRoot": True}}, {}, "image will run as root"),
        ({}, {"hostname": "A", "hostNetwork": True}, "not a valid DNS label"),
        ({"env": [LONG], "command": ["sh", "$(A)$(A)"]}, {}, "command[1] is longer than 131071 bytes"),
        ({"env": [LONG], "args": ["$(A)"] * 30}, {}, "with args[19], command, args and env together are longer than"),
        ({"args": ["a" * 131_072]}, {}, "args[0] is longer than 131071 bytes"),
        ({"args": ["a"] * 10_001}, {}, "args has 10001 entries, more than 10000"),
        (
            {"args": ["a" * 300] * 9_000},
            {},
            "together are longer than 2097152 bytes, the most that Linux passes to a program",
        ),
        (
            {"env": [LONG], "volumeMounts": [{"name": "x", "mountPath": "/x", "subPathExpr": "$(A)"}]},
            {},
            'subPathExpr of volumeMount "x" is too long',
        ),
    ],
)
def test_refusals(fields: dict[str, Any], spec: dict[str, Any], message: str) -> None:
    container = make_container(**fields)
    ctx = replace(CONTEXT, mounts={"x": MountedVolume("x", "kubernetes.io/empty-dir", "/v")} if "env" in fields else {})
    result = refusal(render_container, make_pod(container, **spec), container, SETTINGS, ctx)
    assert message in result.message
    assert result.reason == "CreateContainerConfigError"
