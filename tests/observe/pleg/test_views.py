"""From the runtime's messages to views: every state, order, addresses."""

from __future__ import annotations

import pytest

from pykubelet.base.model import labels
from pykubelet.base.model.ids import PodRef, PodUID
from pykubelet.base.model.observed import NetworkMode, ObservedState
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.observe.pleg.views import MESSAGE_LIMIT, REASON_LIMIT, container_view, pod_of, pod_view, sandbox_view

REF = PodRef("shop", "web", PodUID("u1"))
LABELS = {labels.POD_UID: "u1", labels.POD_NAME: "web", labels.POD_NAMESPACE: "shop"}


def item(name: str = "app", state: pb.ContainerState = pb.CONTAINER_RUNNING, attempt: int = 0) -> pb.Container:
    return pb.Container(
        id=f"{name}-{attempt}",
        pod_sandbox_id="s0",
        metadata=pb.ContainerMetadata(name=name, attempt=attempt),
        state=state,
        created_at=100 + attempt,
        labels={**LABELS, labels.CONTAINER_NAME: name},
    )


def status(of: pb.Container) -> pb.ContainerStatus:
    return pb.ContainerStatus(
        id=of.id,
        metadata=of.metadata,
        state=of.state,
        created_at=of.created_at,
        started_at=200,
        finished_at=300,
        exit_code=137,
        reason="OOMKilled",
        message="too much",
        image=pb.ImageSpec(image="busybox:1"),
        image_ref="busybox@sha256:1",
        image_id="sha256:2",
        log_path="/logs/0.log",
        annotations={"a": "b"},
        mounts=[pb.Mount(container_path="/data", host_path="/host", readonly=True, recursive_read_only=True)],
    )


def box(attempt: int = 0, state: pb.PodSandboxState = pb.SANDBOX_READY) -> pb.PodSandbox:
    meta = pb.PodSandboxMetadata(name="web", uid="u1", namespace="shop", attempt=attempt)
    return pb.PodSandbox(id=f"s{attempt}", metadata=meta, state=state, created_at=50 + attempt, labels=LABELS)


@pytest.mark.parametrize(
    ("started_at", "reason", "message", "state"),
    [
        (0, "StartError", "failed to create shim task: context canceled: unknown", ObservedState.CREATED),
        (
            0,
            "StartError",
            "failed to create containerd task: failed to start shim: start failed: : signal: killed: unknown",
            ObservedState.CREATED,
        ),
        (
            0,
            "StartError",
            'failed to start containerd task "a": context canceled: unknown',
            ObservedState.CREATED,
        ),
        (0, "StartError", "the hook was stopped: signal: killed", ObservedState.EXITED),
        (0, "StartError", 'exec: "nothing": executable file not found in $PATH: unknown', ObservedState.EXITED),
        (200, "Error", "context canceled", ObservedState.EXITED),
        (200, "StartError", "context canceled", ObservedState.EXITED),
    ],
)
def test_a_container_whose_start_was_cut_short_has_run_nothing(
    started_at: int, reason: str, message: str, state: ObservedState
) -> None:
    dead = item(state=pb.CONTAINER_EXITED)
    reported = status(dead)
    reported.started_at, reported.reason, reported.message, reported.exit_code = started_at, reason, message, 128
    assert container_view(dead, reported).state is state


def test_the_pod_is_named_by_three_labels() -> None:
    assert pod_of(LABELS) == REF
    for missing in LABELS:
        assert pod_of({key: value for key, value in LABELS.items() if key != missing}) is None


@pytest.mark.parametrize(
    ("of", "state"),
    [
        (pb.CONTAINER_CREATED, ObservedState.CREATED),
        (pb.CONTAINER_RUNNING, ObservedState.RUNNING),
        (pb.CONTAINER_EXITED, ObservedState.EXITED),
        (pb.CONTAINER_UNKNOWN, ObservedState.UNKNOWN),
    ],
)
def test_every_state_has_its_name(of: pb.ContainerState, state: ObservedState) -> None:
    assert container_view(item(state=of), status(item(state=of))).state is state


def test_a_container_with_everything_the_runtime_reports() -> None:
    reported = status(item(attempt=4))
    reported.stop_signal = pb.SIGNAL_SIGRTMINPLUS3
    reported.user.linux.uid, reported.user.linux.gid = 1000, 2000
    reported.user.linux.supplemental_groups.extend([5, 6])
    reported.resources.linux.cpu_shares, reported.resources.linux.memory_limit_in_bytes = 512, 1 << 20
    view = container_view(item(attempt=4), reported)
    assert (view.name, view.id, view.sandbox_id, view.attempt) == ("app", "app-4", "s0", 4)
    assert (view.created_at, view.started_at, view.finished_at) == (104, 200, 300)
    assert (view.exit_code, view.reason, view.message) == (137, "OOMKilled", "too much")
    assert (view.image, view.image_ref, view.image_id) == ("busybox:1", "busybox@sha256:1", "sha256:2")
    assert view.annotations == {"a": "b"}
    assert view.mounts[0].readonly
    assert view.mounts[0].recursive_read_only
    assert view.stop_signal == "SIGRTMIN+3"
    assert view.user is not None
    assert (view.user.uid, view.user.gid, view.user.supplemental_groups) == (1000, 2000, (5, 6))
    assert view.resources is not None
    assert (view.resources.cpu_shares, view.resources.memory_limit) == (512, 1 << 20)


def test_the_runtimes_words_are_kept_to_a_limit() -> None:
    long = status(item())
    long.reason, long.message = "x" * 1_000_000, "y" * 1_000_000
    seen = container_view(item(), long)
    assert (len(seen.reason), len(seen.message)) == (REASON_LIMIT, MESSAGE_LIMIT)


def test_what_the_runtime_does_not_report_is_not_made_up() -> None:
    view = container_view(item(), status(item()))
    assert view.user is None
    assert view.resources is None


def test_times_before_the_epoch_are_unknown() -> None:
    """containerd reports Go's zero time, as nanoseconds in 64 bits, for a sandbox whose start was cut short."""
    zero_time = -6795364578871345152
    sandbox = box()
    sandbox.created_at = zero_time
    assert sandbox_view(sandbox, None).created_at == 0
    reported = status(item())
    reported.created_at = reported.started_at = reported.finished_at = zero_time
    view = container_view(item(), reported)
    assert (view.created_at, view.started_at, view.finished_at) == (0, 0, 0)


def test_a_sandbox_has_all_its_addresses_primary_first() -> None:
    reported = pb.PodSandboxStatus(network=pb.PodSandboxNetworkStatus(ip="10.0.0.2"))
    reported.network.additional_ips.add(ip="fd00::2")
    view = sandbox_view(box(), reported)
    assert (view.ready, view.ips, view.network) == (True, ("10.0.0.2", "fd00::2"), NetworkMode.POD)


def test_a_sandbox_on_the_hosts_network() -> None:
    reported = pb.PodSandboxStatus()
    reported.linux.namespaces.options.network = pb.NODE
    assert sandbox_view(box(), reported).network is NetworkMode.NODE
    assert sandbox_view(box(), reported).ips == ()


def test_a_sandbox_whose_status_is_gone_has_no_address() -> None:
    assert sandbox_view(box(state=pb.SANDBOX_NOTREADY), None).ips == ()


def test_a_pods_instances_are_sorted_newest_first() -> None:
    instances = [container_view(item(attempt=n), status(item(attempt=n))) for n in (1, 2, 0)]
    view = pod_view(REF, [sandbox_view(box(n), None) for n in (0, 1)], instances, 5.0)
    assert [c.attempt for c in view.containers] == [2, 1, 0]
    assert [s.attempt for s in view.sandboxes] == [1, 0]
    newest = view.newest("app")
    assert newest is not None
    assert newest.attempt == 2
    assert view.newest("other") is None
    assert view.read_at == 5.0
