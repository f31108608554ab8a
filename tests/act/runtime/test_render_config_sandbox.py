from typing import Any

import pytest
from act.runtime.failures import refusal
from act.runtime.rendering import SETTINGS, make_container, make_pod

from pykubelet.act.runtime.render.context import RenderSettings, SandboxContext
from pykubelet.act.runtime.render.render_config import port_mappings, render_sandbox
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import replace
from pykubelet.edges.cri import cri_pb2

PLAIN = SandboxContext()


def render(pod: Pod, ctx: SandboxContext = PLAIN, settings: RenderSettings = SETTINGS) -> cri_pb2.PodSandboxConfig:
    return render_sandbox(pod, settings, ctx)


def test_who_and_where() -> None:
    pod = make_pod(metadata={"labels": {"app": "x"}, "annotations": {"kubernetes.io/config.source": "file"}})
    config = render(pod, SandboxContext(attempt=2, cgroup_parent="/kubepods/besteffort/poduid-1"))
    metadata = config.metadata
    assert (metadata.name, metadata.namespace, metadata.uid, metadata.attempt) == ("web", "shop", "uid-1", 2)
    assert config.hostname == "web"
    assert config.log_directory == "/var/log/pods/shop_web_uid-1"
    assert dict(config.annotations) == {"kubernetes.io/config.source": "file"}
    assert config.labels["io.kubernetes.pod.uid"] == "uid-1"
    assert config.linux.cgroup_parent == "/kubepods/besteffort/poduid-1"
    assert list(config.dns_config.servers) == ["10.96.0.10"]


def test_hostnames() -> None:
    assert render(make_pod(hostNetwork=True)).hostname == ""
    full = render(make_pod(subdomain="sub", setHostnameAsFQDN=True)).hostname
    assert full == "web.sub.shop.svc.cluster.local"


def test_a_level_that_selinux_does_not_have_is_refused_where_it_is_enabled() -> None:
    pod = make_pod(make_container(), securityContext={"seLinuxOptions": {"level": 's0",x="'}})
    failure = refusal(render_sandbox, pod, replace(SETTINGS, selinux_enabled=True), PLAIN)
    assert failure.message.startswith("securityContext.seLinuxOptions.level: Invalid value: ")
    render(pod)


def test_security() -> None:
    pod = make_pod(
        make_container(),
        init=(make_container(name="setup", securityContext={"privileged": True}),),
        hostPID=True,
        securityContext={
            "runAsUser": 0,
            "runAsGroup": 5,
            "fsGroup": 10,
            "supplementalGroups": [20],
            "supplementalGroupsPolicy": "Strict",
            "seLinuxOptions": {"level": "s0:c1"},
            "seccompProfile": {"type": "Unconfined"},
            "sysctls": [{"name": "net/core/somaxconn", "value": "64"}],
        },
    )
    config = render(pod, SandboxContext(supplemental_groups=(30,)))
    security = config.linux.security_context
    assert security.privileged
    assert security.HasField("run_as_user")
    assert (security.run_as_user.value, security.run_as_group.value) == (0, 5)
    assert list(security.supplemental_groups) == [10, 30, 20]
    assert security.supplemental_groups_policy == cri_pb2.Strict
    assert security.selinux_options.level == "s0:c1"
    assert security.seccomp.profile_type == cri_pb2.SecurityProfile.RuntimeDefault
    assert security.namespace_options.pid == cri_pb2.NODE
    assert dict(config.linux.sysctls) == {"net.core.somaxconn": "64"}


def test_the_nodes_sysctls_are_added_to_the_pods() -> None:
    pod = make_pod(hostNetwork=True)
    settings = replace(SETTINGS, default_sysctls={"net.core.somaxconn": "64", "kernel.sem": "1 2 3 4"})
    assert dict(render_sandbox(pod, settings, SandboxContext()).linux.sysctls) == {"kernel.sem": "1 2 3 4"}


def test_ports_of_regular_containers() -> None:
    app = make_container(
        ports=[
            {"name": "web", "containerPort": 80, "hostPort": 8080, "hostIP": "127.0.0.1", "protocol": "TCP"},
            {"containerPort": 53, "protocol": "UDP"},
            {"containerPort": 36412, "protocol": "SCTP"},
        ]
    )
    setup = make_container(name="setup", ports=[{"containerPort": 1}])
    found = render(make_pod(app, init=(setup,))).port_mappings
    assert [(p.protocol, p.container_port, p.host_port, p.host_ip) for p in found] == [
        (cri_pb2.TCP, 80, 8080, "127.0.0.1"),
        (cri_pb2.UDP, 53, 0, ""),
        (cri_pb2.SCTP, 36412, 0, ""),
    ]


@pytest.mark.parametrize(
    ("ports", "kept"),
    [
        ([{"name": "a", "containerPort": 1}, {"name": "a", "containerPort": 2}], [1]),
        ([{"containerPort": 1, "hostPort": 5}, {"containerPort": 1, "hostPort": 5}], [1]),
        ([{"containerPort": 1, "hostPort": 5}, {"containerPort": 1, "hostPort": 6}], [1, 1]),
        ([{"containerPort": 1, "hostIP": "::1"}, {"containerPort": 1, "hostIP": "127.0.0.1"}], [1, 1]),
        ([{"containerPort": 1, "protocol": "TCP"}, {"containerPort": 1, "protocol": "UDP"}], [1, 1]),
    ],
)
def test_of_equal_ports_the_first_counts(ports: list[dict[str, Any]], kept: list[int]) -> None:
    assert [p.container_port for p in port_mappings(make_container(ports=ports))] == kept


@pytest.mark.parametrize(
    ("spec", "settings", "message"),
    [
        ({"hostname": "A"}, SETTINGS, 'pod Hostname "A" is not a valid DNS label'),
        ({"hostUsers": False}, SETTINGS, "can't set `spec.hostUsers: false`, runtime does not support user namespaces"),
        ({}, replace(SETTINGS, resolv_conf_error="open /r: denied"), "open /r: denied"),
        (
            {"securityContext": {"supplementalGroupsPolicy": "Odd"}},
            SETTINGS,
            "unsupported supplementalGroupsPolicy: Odd",
        ),
    ],
)
def test_refusals(spec: dict[str, Any], settings: RenderSettings, message: str) -> None:
    result = refusal(render_sandbox, make_pod(**spec), settings, SandboxContext())
    assert message in result.message
    assert result.reason == "CreatePodSandboxError"
