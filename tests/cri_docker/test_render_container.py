"""PodSandboxes and containers of the CRI as those of Docker: nothing that was asked for is lost without an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.net.grpc.status import Code, RpcError
from pykubelet_cri_docker import labels
from pykubelet_cri_docker.engine import messages as docker
from pykubelet_cri_docker.render_container import (
    RenderFacts,
    render_container,
    render_resources,
    render_sandbox,
    seccomp_path,
)

POD = pb.PodSandboxMetadata(name="web", namespace="shop", uid="u-1", attempt=2)
NODE = pb.NODE


def sandbox(**fields: object) -> pb.PodSandboxConfig:
    return pb.PodSandboxConfig(metadata=POD, hostname="web", log_directory="/var/log/pods/x", **fields)  # type: ignore[arg-type]


def container(**fields: object) -> pb.ContainerConfig:
    meta = pb.ContainerMetadata(name="main", attempt=3)
    image = pb.ImageSpec(image="sha256:abc", user_specified_image="busybox")
    return pb.ContainerConfig(metadata=meta, image=image, log_path="main/3.log", **fields)  # type: ignore[arg-type]


def rendered(
    change: Callable[[pb.ContainerConfig], object],
    facts: RenderFacts | None = None,
    pod: pb.PodSandboxConfig | None = None,
) -> docker.NewContainer:
    config = container()
    change(config)
    return render_container(config, pod or sandbox(), "S", facts or RenderFacts())


def refusal(change: Callable[[pb.ContainerConfig], object]) -> RpcError:
    with pytest.raises(RpcError) as caught:
        rendered(change)
    return caught.value


def test_a_sandbox_has_the_namespaces_of_its_pod() -> None:
    made = render_sandbox(sandbox(labels={"app": "web"}, annotations={"note": "x"}), "pause", RenderFacts())
    host = made.host_config
    assert (host.network_mode, host.ipc_mode, host.pid_mode, host.uts_mode) == ("none", "shareable", "", "")
    assert (made.image, made.hostname, host.log_config.type) == ("pause", "web", "none")
    assert labels.sandbox_name(POD) == "k8s_POD_web_shop_u-1_2"
    assert made.labels["app"] == "web" and made.labels[labels.TYPE] == "podsandbox"
    assert labels.sandbox_config(made.labels).annotations == {"note": "x"}


def test_a_sandbox_may_share_the_namespaces_of_the_host() -> None:
    config = sandbox()
    options = config.linux.security_context.namespace_options
    options.network = options.pid = options.ipc = NODE
    made = render_sandbox(config, "pause", RenderFacts())
    host = made.host_config
    assert (host.network_mode, host.ipc_mode, host.pid_mode, host.uts_mode) == ("host", "host", "host", "host")
    assert made.hostname == ""


def test_a_container_joins_its_sandbox() -> None:
    made = rendered(lambda _: None)
    host = made.host_config
    assert (host.network_mode, host.ipc_mode, host.pid_mode) == ("container:S", "container:S", "container:S")
    assert (host.log_config.type, made.entrypoint, made.cmd, made.hostname) == ("json-file", None, None, "")
    assert made.labels[labels.SANDBOX_ID] == "S"
    assert made.labels[labels.LOG_PATH] == "/var/log/pods/x/main/3.log"
    kept = labels.container_config(made.labels)
    assert (kept.metadata.attempt, kept.image.user_specified_image) == (3, "busybox")


@pytest.mark.parametrize(
    ("parent", "expected"),
    [
        ("/kubepods/burstable/podu-1", "/kubepods/burstable/podu-1"),
        ("/kubepods.slice/kubepods-podu.slice", "kubepods-podu.slice"),
        ("", ""),
    ],
)
def test_docker_gets_the_name_of_a_slice_and_the_path_of_another_cgroup(parent: str, expected: str) -> None:
    pod = sandbox(linux=pb.LinuxPodSandboxConfig(cgroup_parent=parent))
    assert render_sandbox(pod, "pause", RenderFacts()).host_config.cgroup_parent == expected
    assert rendered(lambda _: None, pod=pod).host_config.cgroup_parent == expected


@pytest.mark.parametrize(
    ("mode", "target", "expected"),
    [(pb.POD, "", "container:S"), (pb.CONTAINER, "", ""), (pb.NODE, "", "host"), (pb.TARGET, "C", "container:C")],
)
def test_processes_are_shared_as_asked(mode: pb.NamespaceMode, target: str, expected: str) -> None:
    def change(config: pb.ContainerConfig) -> None:
        config.linux.security_context.namespace_options.pid = mode
        config.linux.security_context.namespace_options.target_id = target

    assert rendered(change).host_config.pid_mode == expected


def test_limits_allow_no_more_swap_than_was_asked_for() -> None:
    resources = pb.LinuxContainerResources(
        cpu_shares=512, cpu_quota=20000, cpu_period=100000, memory_limit_in_bytes=1 << 20
    )
    limits = render_resources(resources)
    assert (limits.cpu_shares, limits.cpu_quota, limits.cpu_period) == (512, 20000, 100000)
    assert (limits.memory, limits.memory_swap) == (1 << 20, 1 << 20)
    resources.memory_swap_limit_in_bytes = 3 << 20
    assert render_resources(resources).memory_swap == 3 << 20
    assert msgspec.json.decode(msgspec.json.encode(render_resources(pb.LinuxContainerResources()))) == {}


@pytest.mark.parametrize(
    ("swap", "together"), [("0", 1 << 20), ("4096", (1 << 20) + 4096), ("max", -1), ("1M", 1 << 20)]
)
def test_a_limit_of_swap_alone_is_one_of_memory_and_swap_in_docker(swap: str, together: int) -> None:
    unified = {"memory.swap.max": swap}
    limited = pb.LinuxContainerResources(memory_limit_in_bytes=1 << 20, unified=unified)
    assert render_resources(limited).memory_swap == together
    assert render_resources(pb.LinuxContainerResources(unified=unified)).memory_swap == 0, "Docker needs both"


def test_the_oom_score_is_not_below_what_the_machine_allows() -> None:
    facts = RenderFacts(least_oom_score_adj=-100)
    assert render_sandbox(sandbox(), "pause", facts).host_config.oom_score_adj == -100

    def change(config: pb.ContainerConfig) -> None:
        config.linux.resources.oom_score_adj = -997

    assert rendered(change, facts).host_config.oom_score_adj == -100
    assert rendered(change).host_config.oom_score_adj == -997


def test_who_runs_and_what_it_may_do() -> None:
    def change(config: pb.ContainerConfig) -> None:
        context = config.linux.security_context
        context.run_as_user.value, context.run_as_group.value = 1000, 3000
        context.supplemental_groups.extend([7, 8])
        context.capabilities.add_capabilities.append("NET_ADMIN")
        context.capabilities.drop_capabilities.append("ALL")
        context.no_new_privs = context.readonly_rootfs = True
        context.seccomp.profile_type = pb.SecurityProfile.Localhost
        context.seccomp.localhost_ref = "/profiles/a.json"
        context.apparmor.profile_type = pb.SecurityProfile.Unconfined
        context.selinux_options.level = "s0:c1"
        context.masked_paths.append("/proc/kcore")

    made = rendered(change, RenderFacts(seccomp='{"x":1}'))
    host = made.host_config
    assert made.user == "1000:3000" and host.group_add == ["7", "8"]
    assert (host.cap_add, host.cap_drop, host.readonly_rootfs) == (["NET_ADMIN"], ["ALL"], True)
    assert host.security_opt == ['seccomp={"x":1}', "apparmor=unconfined", "label=level:s0:c1", "no-new-privileges"]
    assert (host.masked_paths, host.readonly_paths) == (["/proc/kcore"], [])


def test_where_the_engine_shares_neither_they_are_joined() -> None:
    own = RenderFacts(resolv_conf="/run/s/resolv.conf")
    host = rendered(lambda config: None, own).host_config
    assert host.uts_mode == host.network_mode and host.network_mode.startswith("container:")
    assert [(mount.source, mount.target) for mount in host.mounts] == [("/run/s/resolv.conf", "/etc/resolv.conf")]

    def change(config: pb.ContainerConfig) -> None:
        config.mounts.add(host_path="/mine", container_path="/etc/resolv.conf")

    assert [mount.source for mount in rendered(change, own).host_config.mounts] == ["/mine"]


def test_a_privileged_container_is_not_confined() -> None:
    def change(config: pb.ContainerConfig) -> None:
        config.linux.security_context.privileged = True
        config.linux.security_context.seccomp.profile_type = pb.SecurityProfile.Localhost

    host = rendered(change).host_config
    assert host.privileged and host.security_opt == ["seccomp=unconfined"]
    assert host.masked_paths is msgspec.UNSET and host.readonly_paths is msgspec.UNSET


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ["seccomp=unconfined"]),
        ({"seccomp": pb.SecurityProfile(profile_type=pb.SecurityProfile.RuntimeDefault)}, []),
        ({"seccomp_profile_path": "runtime/default", "apparmor_profile": "runtime/default"}, []),
        (
            {"seccomp_profile_path": "unconfined", "apparmor_profile": "unconfined"},
            ["seccomp=unconfined", "apparmor=unconfined"],
        ),
        (
            {"seccomp_profile_path": "localhost//p.json", "apparmor_profile": "localhost/own"},
            ["seccomp=text", "apparmor=own"],
        ),
    ],
)
def test_profiles_are_also_taken_from_the_deprecated_fields(fields: dict[str, Any], expected: list[str]) -> None:
    context = pb.LinuxContainerSecurityContext(**fields)
    config = container(linux=pb.LinuxContainerConfig(security_context=context))
    host = render_container(config, sandbox(), "S", RenderFacts(seccomp="text")).host_config
    assert host.security_opt == expected
    assert seccomp_path(context) == ("/p.json" if "localhost//p.json" in fields.values() else "")


def test_mounts_devices_environment_and_signals() -> None:
    def change(config: pb.ContainerConfig) -> None:
        config.mounts.add(
            host_path="/a:b", container_path="/c", readonly=True, propagation=pb.PROPAGATION_HOST_TO_CONTAINER
        )
        config.devices.add(host_path="/dev/x", container_path="/dev/y", permissions="rw")
        config.envs.add(key="A", value=b"1=2")
        config.command.extend(["sh", "-c"])
        config.args.append("true")
        config.stop_signal = pb.SIGNAL_SIGRTMINPLUS3

    made = rendered(change, RenderFacts(api=(1, 44)))
    sent = msgspec.json.decode(msgspec.json.encode(made))
    (mount,) = sent["HostConfig"]["Mounts"]
    assert mount == {
        "Type": "bind",
        "Source": "/a:b",
        "Target": "/c",
        "ReadOnly": True,
        "BindOptions": {"Propagation": "rslave", "ReadOnlyNonRecursive": True},
    }
    assert sent["HostConfig"]["Devices"] == [
        {"PathOnHost": "/dev/x", "PathInContainer": "/dev/y", "CgroupPermissions": "rw"}
    ]
    assert (made.env, made.entrypoint, made.cmd, made.stop_signal) == (["A=1=2"], ["sh", "-c"], ["true"], "SIGRTMIN+3")


def test_files_of_a_mount_get_the_label_of_the_container() -> None:
    def change(config: pb.ContainerConfig) -> None:
        shared = pb.PROPAGATION_BIDIRECTIONAL
        config.mounts.add(host_path="/a", container_path="/b", selinux_relabel=True, readonly=True)
        config.mounts.add(host_path="/c", container_path="/d", selinux_relabel=True, propagation=shared)
        config.mounts.add(host_path="/e", container_path="/f")

    host = rendered(change).host_config
    assert host.binds == ["/a:/b:ro,Z", "/c:/d:rw,rshared,Z"]
    assert [mount.target for mount in host.mounts] == ["/f"]


def _relabeled_colon(config: pb.ContainerConfig) -> None:
    config.mounts.add(host_path="/a:b", container_path="/b", selinux_relabel=True)


def _strict(config: pb.ContainerConfig) -> None:
    config.linux.security_context.supplemental_groups_policy = pb.SupplementalGroupsPolicy.Strict


def _userns(config: pb.ContainerConfig) -> None:
    config.linux.security_context.namespace_options.userns_options.mode = pb.POD


def _image_mount(config: pb.ContainerConfig) -> None:
    config.mounts.add(container_path="/x").image.image = "a"


def _recursive(config: pb.ContainerConfig) -> None:
    config.mounts.add(host_path="/a", container_path="/x", readonly=True, recursive_read_only=True)


def _mount_options(config: pb.ContainerConfig) -> None:
    config.mounts.add(host_path="/a", container_path="/b").mount_options.append("noexec")


def _ambient(config: pb.ContainerConfig) -> None:
    config.linux.security_context.capabilities.add_ambient_capabilities.append("NET_RAW")


@pytest.mark.parametrize(
    "change", [_strict, _userns, _image_mount, _recursive, _mount_options, _ambient, _relabeled_colon]
)
def test_an_isolation_that_docker_cannot_give_is_refused(change: Callable[[pb.ContainerConfig], None]) -> None:
    error = refusal(change)
    assert error.code is Code.UNIMPLEMENTED and error.message.endswith("not possible with Docker Engine")


def test_what_cannot_be_is_refused_by_its_field() -> None:
    error = refusal(lambda config: setattr(config.linux.security_context.run_as_group, "value", 5))
    assert (error.code, error.message) == (
        Code.INVALID_ARGUMENT,
        "security_context.run_as_group: needs run_as_user or run_as_username",
    )
    error = refusal(lambda config: config.envs.add(key="A", value=b"\xff"))
    assert error.message == "envs[A].value: Docker Engine takes only UTF-8"
    error = refusal(lambda config: setattr(config.linux.security_context, "apparmor_profile", "own"))
    assert error.message == "security_context.apparmor_profile: unknown value 'own'"


@pytest.mark.parametrize("text", ["", "%%%", "AAAA", "Cg=="])
def test_labels_that_cannot_be_read_are_an_empty_config(text: str) -> None:
    assert labels.container_config({labels.CONFIG: text}) == pb.ContainerConfig()
