from typing import Any

import pytest
from act.runtime.rendering import CONTEXT, SETTINGS, make_container, make_pod

from pykubelet.act.runtime.render.context import (
    ContainerContext,
    IDMapping,
    RenderSettings,
    SandboxContext,
    UserNamespace,
)
from pykubelet.act.runtime.render.security import (
    MASKED_PATHS,
    READ_ONLY_PATHS,
    container_security_context,
    pod_namespaces,
)
from pykubelet.act.runtime.start_error import ContainerStartError
from pykubelet.base.kit.values import replace
from pykubelet.base.model.node import HandlerFeatures
from pykubelet.edges.cri import cri_pb2

Profile = cri_pb2.SecurityProfile
WHERE = '(pod: "web_shop(uid-1)", container: app)'


def secured(
    own: dict[str, Any] | None = None,
    of_pod: dict[str, Any] | None = None,
    ctx: ContainerContext = CONTEXT,
    settings: RenderSettings = SETTINGS,
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> cri_pb2.LinuxContainerSecurityContext:
    container = make_container(**({"securityContext": own} if own is not None else {}))
    if of_pod is not None:
        spec["securityContext"] = of_pod
    pod = make_pod(container, metadata={"annotations": annotations or {}}, **spec)
    return container_security_context(pod, container, settings, ctx)


def test_defaults_are_those_of_a_plain_container() -> None:
    context = secured()
    assert context.run_as_user.value == 0
    assert context.HasField("run_as_user")
    assert not context.HasField("run_as_group")
    assert not context.HasField("capabilities")
    assert not context.HasField("apparmor")
    assert (context.privileged, context.readonly_rootfs, context.no_new_privs) == (False, False, False)
    assert tuple(context.masked_paths) == MASKED_PATHS
    assert tuple(context.readonly_paths) == READ_ONLY_PATHS
    assert context.seccomp.profile_type == Profile.Unconfined


def test_the_container_wins_over_the_pod() -> None:
    of_pod = {"runAsUser": 1, "runAsGroup": 2, "seLinuxOptions": {"level": "s0"}}
    inherited = secured({}, of_pod)
    assert (inherited.run_as_user.value, inherited.run_as_group.value) == (1, 2)
    assert inherited.selinux_options.level == "s0"
    own = secured({"runAsUser": 0, "runAsGroup": 9, "seLinuxOptions": {"level": "s1", "user": "u"}}, of_pod)
    assert (own.run_as_user.value, own.run_as_group.value) == (0, 9)
    assert (own.selinux_options.level, own.selinux_options.user) == ("s1", "u")


@pytest.mark.parametrize("fields", [{"level": 's0",x="'}, {"user": "u:v"}, {"role": "r,x"}, {"type": "t\n"}])
def test_words_that_are_no_part_of_a_context_are_refused_where_selinux_is_enabled(fields: dict[str, str]) -> None:
    enabled = replace(SETTINGS, selinux_enabled=True)
    with pytest.raises(
        ContainerStartError, match=f"securityContext.seLinuxOptions.{next(iter(fields))}: Invalid value"
    ):
        secured({"seLinuxOptions": fields}, settings=enabled)
    secured({"seLinuxOptions": fields})
    assert secured({"seLinuxOptions": {"level": "s0:c1,c2"}}, settings=enabled).selinux_options.level == "s0:c1,c2"


def test_flags() -> None:
    context = secured(
        {
            "privileged": True,
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]},
        }
    )
    assert (context.privileged, context.readonly_rootfs, context.no_new_privs) == (True, True, True)
    assert list(context.capabilities.add_capabilities) == ["NET_ADMIN"]
    assert list(context.capabilities.drop_capabilities) == ["ALL"]
    assert secured({"allowPrivilegeEscalation": True}).no_new_privs is False


def test_the_images_user_counts_when_the_spec_names_none() -> None:
    assert secured(ctx=replace(CONTEXT, image_uid=65)).run_as_user.value == 65
    named = secured(ctx=replace(CONTEXT, image_username="nginx"))
    assert named.run_as_username == "nginx"
    assert not named.HasField("run_as_user")
    overridden = secured({"runAsUser": 7}, ctx=replace(CONTEXT, image_username="nginx"))
    assert (overridden.run_as_user.value, overridden.run_as_username) == (7, "")


@pytest.mark.parametrize(
    ("own", "of_pod", "image", "message"),
    [
        ({"runAsUser": 0}, {"runAsNonRoot": True}, {}, f"container's runAsUser breaks non-root policy {WHERE}"),
        ({"runAsNonRoot": True}, {"runAsUser": 0}, {}, f"container's runAsUser breaks non-root policy {WHERE}"),
        (
            {"runAsNonRoot": True},
            {},
            {"image_uid": 0},
            f"container has runAsNonRoot and image will run as root {WHERE}",
        ),
        ({"runAsNonRoot": True}, {}, {}, f"container has runAsNonRoot and image will run as root {WHERE}"),
        (
            {"runAsNonRoot": True},
            {},
            {"image_username": "nginx"},
            "container has runAsNonRoot and image has non-numeric user (nginx), "
            f"cannot verify user is non-root {WHERE}",
        ),
        (
            {"runAsNonRoot": True},
            {},
            {"image_uid": 2**31},
            "container has runAsNonRoot and image has an invalid user id (2147483648). (Must be 1-(2147483647)): "
            f"must be between 0 and 2147483647, inclusive {WHERE}",
        ),
    ],
)
def test_run_as_non_root_refuses(
    own: dict[str, Any], of_pod: dict[str, Any], image: dict[str, Any], message: str
) -> None:
    with pytest.raises(ContainerStartError) as caught:
        secured(own, of_pod, replace(CONTEXT, **image))
    assert caught.value.message == message
    assert caught.value.reason == "CreateContainerConfigError"


@pytest.mark.parametrize(
    ("own", "of_pod", "image"),
    [
        ({"runAsNonRoot": True, "runAsUser": 5}, {}, {"image_uid": 0}),
        ({"runAsNonRoot": False}, {"runAsNonRoot": True}, {"image_uid": 0}),
        ({}, {"runAsNonRoot": True}, {"image_uid": 5}),
        ({}, {}, {"image_uid": 0}),
    ],
)
def test_run_as_non_root_allows(own: dict[str, Any], of_pod: dict[str, Any], image: dict[str, Any]) -> None:
    assert secured(own, of_pod, replace(CONTEXT, **image)).HasField("run_as_user")


@pytest.mark.parametrize(
    ("own", "of_pod", "default", "expected"),
    [
        (None, None, True, (Profile.RuntimeDefault, "")),
        (None, {"type": "RuntimeDefault"}, False, (Profile.RuntimeDefault, "")),
        ({"type": "Unconfined"}, {"type": "RuntimeDefault"}, True, (Profile.Unconfined, "")),
        (
            {"type": "Localhost", "localhostProfile": "profiles/audit.json"},
            None,
            False,
            (Profile.Localhost, "/var/lib/kubelet/seccomp/profiles/audit.json"),
        ),
    ],
)
def test_seccomp(
    own: dict[str, str] | None, of_pod: dict[str, str] | None, default: bool, expected: tuple[int, str]
) -> None:
    context = secured(
        {"seccompProfile": own} if own else None,
        {"seccompProfile": of_pod} if of_pod else None,
        settings=replace(SETTINGS, seccomp_default=default),
    )
    assert (context.seccomp.profile_type, context.seccomp.localhost_ref) == expected


def test_seccomp_without_a_profile_is_refused() -> None:
    with pytest.raises(
        ContainerStartError, match=r"^localhostProfile must be set if seccompProfile type is Localhost\.$"
    ):
        secured({"seccompProfile": {"type": "Localhost"}})


@pytest.mark.parametrize("kind", ["", "Stricter"])
def test_a_seccomp_profile_of_an_unknown_type_is_refused(kind: str) -> None:
    """An API server may know types that this agent does not; the container must not run unconfined for that."""
    with pytest.raises(ContainerStartError, match=f'^unknown seccomp profile type: "{kind}"$') as caught:
        secured(None, {"seccompProfile": {"type": kind}})
    assert caught.value.reason == "CreateContainerConfigError"


KEY = "container.apparmor.security.beta.kubernetes.io/app"


@pytest.mark.parametrize(
    ("own", "annotation", "of_pod", "expected"),
    [
        ({"type": "RuntimeDefault"}, "unconfined", None, (Profile.RuntimeDefault, "", "runtime/default")),
        (None, "unconfined", {"type": "RuntimeDefault"}, (Profile.Unconfined, "", "unconfined")),
        (None, "runtime/default", None, (Profile.RuntimeDefault, "", "runtime/default")),
        (None, "localhost/mine", None, (Profile.Localhost, "mine", "localhost/mine")),
        (None, "nonsense", {"type": "Unconfined"}, (Profile.Unconfined, "", "unconfined")),
        ({"type": "Localhost", "localhostProfile": "p"}, None, None, (Profile.Localhost, "p", "localhost/p")),
    ],
)
def test_apparmor(
    own: dict[str, str] | None, annotation: str | None, of_pod: dict[str, str] | None, expected: tuple[int, str, str]
) -> None:
    context = secured(
        {"appArmorProfile": own} if own else None,
        {"appArmorProfile": of_pod} if of_pod else None,
        annotations={KEY: annotation} if annotation else None,
    )
    assert (context.apparmor.profile_type, context.apparmor.localhost_ref, context.apparmor_profile) == expected


def test_apparmor_refusals() -> None:
    with pytest.raises(ContainerStartError, match="missing localhost apparmor profile name"):
        secured({"appArmorProfile": {"type": "Localhost"}})
    with pytest.raises(ContainerStartError, match='unknown apparmor profile type: "Odd"'):
        secured({"appArmorProfile": {"type": "Odd"}})


def test_proc_mount_unmasked_hides_nothing() -> None:
    context = secured({"procMount": "Unmasked"})
    assert (list(context.masked_paths), list(context.readonly_paths)) == ([], [])


def test_masked_paths_of_the_machine_are_added() -> None:
    path = "/sys/devices/system/cpu/cpu0/thermal_throttle"
    assert secured(settings=replace(SETTINGS, extra_masked_paths=(path,))).masked_paths[-1] == path


def test_groups() -> None:
    ctx = replace(CONTEXT, sandbox=SandboxContext(supplemental_groups=(30,)))
    of_pod = {"fsGroup": 10, "supplementalGroups": [20, 21], "supplementalGroupsPolicy": "Strict"}
    context = secured(None, of_pod, ctx)
    assert list(context.supplemental_groups) == [10, 20, 21, 30]
    assert context.supplemental_groups_policy == cri_pb2.Strict
    assert list(secured(ctx=ctx).supplemental_groups) == [30]
    with pytest.raises(ContainerStartError, match="unsupported supplementalGroupsPolicy: Odd"):
        secured(None, {"supplementalGroupsPolicy": "Odd"})


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, (cri_pb2.POD, cri_pb2.CONTAINER, cri_pb2.POD)),
        ({"hostNetwork": True}, (cri_pb2.NODE, cri_pb2.CONTAINER, cri_pb2.POD)),
        ({"hostPID": True}, (cri_pb2.POD, cri_pb2.NODE, cri_pb2.POD)),
        ({"hostIPC": True}, (cri_pb2.POD, cri_pb2.CONTAINER, cri_pb2.NODE)),
        ({"shareProcessNamespace": True}, (cri_pb2.POD, cri_pb2.POD, cri_pb2.POD)),
        ({"shareProcessNamespace": True, "hostPID": True}, (cri_pb2.POD, cri_pb2.NODE, cri_pb2.POD)),
    ],
)
def test_namespaces(spec: dict[str, Any], expected: tuple[int, int, int]) -> None:
    options = secured(**spec).namespace_options
    assert (options.network, options.pid, options.ipc) == expected
    assert options.userns_options.mode == cri_pb2.NODE


def test_ephemeral_containers_share_the_namespace_of_their_target() -> None:
    ctx = replace(CONTEXT, target_container_id="c1")
    options = secured(ctx=ctx).namespace_options
    assert (options.pid, options.target_id) == (cri_pb2.TARGET, "c1")
    shared = secured(ctx=ctx, shareProcessNamespace=True).namespace_options
    assert (shared.pid, shared.target_id) == (cri_pb2.POD, "")


def test_user_namespaces() -> None:
    pod = make_pod(hostUsers=False)
    ids = (IDMapping(65536, 0, 65536),)
    able = SandboxContext(handler_features=HandlerFeatures(user_namespaces=True), userns=UserNamespace(ids, ids))
    userns = pod_namespaces(pod, able).userns_options
    assert userns.mode == cri_pb2.POD
    assert [(m.host_id, m.container_id, m.length) for m in userns.uids] == [(65536, 0, 65536)]
    assert [(m.host_id, m.container_id, m.length) for m in userns.gids] == [(65536, 0, 65536)]
    assert pod_namespaces(make_pod(hostUsers=True), able).userns_options.mode == cri_pb2.NODE


@pytest.mark.parametrize(
    ("ctx", "message"),
    [
        (SandboxContext(), "can't set `spec.hostUsers: false`, runtime does not support user namespaces"),
        (
            SandboxContext(runtime_handler="kata"),
            'can\'t set `spec.hostUsers: false`, RuntimeClass handler "kata" does not support user namespaces',
        ),
        (
            SandboxContext(runtime_handler="kata", handler_features=None),
            'can\'t set `spec.hostUsers: false`, RuntimeClass handler "kata" does not support user namespaces: '
            'the handler "kata" is not known',
        ),
        (
            SandboxContext(handler_features=HandlerFeatures(user_namespaces=True)),
            "no ids were allocated for the user namespace of the pod",
        ),
    ],
)
def test_user_namespaces_that_cannot_be(ctx: SandboxContext, message: str) -> None:
    with pytest.raises(ContainerStartError) as caught:
        pod_namespaces(make_pod(hostUsers=False), ctx)
    assert caught.value.message == message
