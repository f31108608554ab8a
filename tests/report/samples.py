"""Pods, views, lifecycles and statuses of these tests, in few words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pykubelet.base.api import core
from pykubelet.base.api.codec import to_object
from pykubelet.base.model.ids import ContainerID, PodRef, PodUID, SandboxID
from pykubelet.base.model.labels import CONFIG_SOURCE, CONTAINER_RESTART_COUNT
from pykubelet.base.model.lifecycle import PodLifecycle, Stage, StartError
from pykubelet.base.model.observed import ContainerView, NetworkMode, ObservedState, PodView, SandboxView
from pykubelet.base.model.roster import RosterPod, pod_ref
from pykubelet.report.status.model import StatusFacts
from pykubelet.report.status.project import project_status

#: 2026-01-02T03:04:05Z
WALL = 1_767_323_045.0
UID = PodUID("uid-1")


def container(name: str = "app", **fields: Any) -> core.Container:
    return core.Container(name=name, image=fields.pop("image", "busybox"), **fields)


def sidecar(name: str = "side", **fields: Any) -> core.Container:
    return container(name, restartPolicy="Always", **fields)


def make_pod(
    *containers: core.Container,
    init: Sequence[core.Container] = (),
    name: str = "web",
    uid: str = UID,
    static: bool = True,
    meta: Mapping[str, Any] | None = None,
    **spec: Any,
) -> core.Pod:
    return core.Pod(
        metadata=core.ObjectMeta(
            name=name,
            namespace="default",
            uid=uid,
            annotations={CONFIG_SOURCE: "file"} if static else {},
            **(meta or {}),
        ),
        spec=core.PodSpec(
            containers=containers or (container(),),
            initContainers=tuple(init),
            restartPolicy=spec.pop("restartPolicy", "Always"),
            **spec,
        ),
    )


def instance(
    name: str = "app",
    state: ObservedState = ObservedState.RUNNING,
    *,
    number: int = 0,
    code: int = 0,
    sandbox: str = "s0",
    **fields: Any,
) -> ContainerView:
    """The `number`th instance, made `number` minutes after the first second of WALL, started one second later."""
    made = int(WALL + 60 * number) * 1_000_000_000
    has_started = state is not ObservedState.CREATED
    annotations = {CONTAINER_RESTART_COUNT: str(number), **fields.pop("annotations", {})}
    return ContainerView(
        id=ContainerID(f"{name}-{number}"),
        name=name,
        sandbox_id=SandboxID(sandbox),
        state=state,
        attempt=number,
        created_at=made,
        started_at=made + 1_000_000_000 if has_started else 0,
        finished_at=made + 10_000_000_000 if state is ObservedState.EXITED else 0,
        exit_code=code,
        image=fields.pop("image", "docker.io/library/busybox:latest"),
        image_ref=fields.pop("image_ref", "docker.io/library/busybox@sha256:abc"),
        annotations=annotations,
        **fields,
    )


def running(name: str = "app", number: int = 0, **fields: Any) -> ContainerView:
    return instance(name, ObservedState.RUNNING, number=number, **fields)


def exited(name: str = "app", code: int = 0, number: int = 0, **fields: Any) -> ContainerView:
    return instance(name, ObservedState.EXITED, number=number, code=code, **fields)


def sandbox(
    name: str = "s0", *, ready: bool = True, ips: tuple[str, ...] = ("10.0.0.9",), **fields: Any
) -> SandboxView:
    return SandboxView(SandboxID(name), fields.pop("attempt", 0), ready, int(WALL) * 1_000_000_000, ips=ips, **fields)


def host_sandbox() -> SandboxView:
    return sandbox(ips=(), network=NetworkMode.NODE)


def view(
    *containers: ContainerView,
    sandboxes: tuple[SandboxView, ...] | None = None,
    read_at: float = 1.0,
    ref: PodRef | None = None,
) -> PodView:
    newest_first = tuple(sorted(containers, key=lambda c: c.created_at, reverse=True))
    return PodView(
        ref or PodRef("default", "web", UID), (sandbox(),) if sandboxes is None else sandboxes, newest_first, read_at
    )


def lifecycle(pod: core.Pod, stage: Stage = Stage.SYNCING, **fields: Any) -> PodLifecycle:
    errors = {name: StartError(*error) for name, error in fields.pop("errors", {}).items()}
    return PodLifecycle(pod_ref(pod), pod, stage, WALL, fields.pop("started_at", WALL), start_errors=errors, **fields)


def facts(pod: core.Pod, seen: PodView | None = None, stage: Stage = Stage.SYNCING, **fields: Any) -> StatusFacts:
    """The facts of a pod; what is no field of theirs goes to its lifecycle."""
    own = set(StatusFacts.__struct_fields__)
    given = {name: fields.pop(name) for name in tuple(fields) if name in own}
    given.setdefault("lifecycle", lifecycle(pod, stage, **fields))
    return StatusFacts(pod=pod, view=seen, **{"runtime": "containerd", "now_wall": WALL + 5, **given})


def entry(pod: core.Pod, **fields: Any) -> RosterPod:
    return RosterPod(pod, "file", WALL, **fields)


def reported(pod: core.Pod, seen: PodView | None = None, stage: Stage = Stage.SYNCING, **fields: Any) -> dict[str, Any]:
    """The one regular container's status, as JSON has it."""
    status = project_status(facts(pod, seen, stage, **fields))
    (only,) = status.containerStatuses
    shown: dict[str, Any] = to_object(only)
    return shown


def reported_after(pod: core.Pod, *steps: PodView | None, **fields: Any) -> core.PodStatus:
    """The status after these looks, each knowing the one before; `fields` are of the last."""
    old = None
    for number, seen in enumerate(steps, 1):
        more = fields if number == len(steps) else {}
        old = project_status(facts(pod, seen, **{"old": old, **more}))
    assert old is not None
    return old
