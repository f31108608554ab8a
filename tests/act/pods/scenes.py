"""Pods and views of the runtime in few words, for tests of plans, phases and lives of pods.

Container instances are called `<name>-<attempt>`, sandboxes `s<attempt>`; the order of creation follows the attempts.
"""

from __future__ import annotations

from typing import Any

from pykubelet.base.api import core
from pykubelet.base.api.codec import from_object, to_object
from pykubelet.base.model.containers import container_hash
from pykubelet.base.model.ids import ContainerID, PodRef, PodUID, SandboxID
from pykubelet.base.model.labels import CONTAINER_HASH
from pykubelet.base.model.observed import ContainerView, NetworkMode, ObservedState, PodView, SandboxView
from pykubelet.base.model.probes import ProbeKind, ProbeResult, ProbeResults

UID = PodUID("uid-1")
REF = PodRef("shop", "web", UID)
IMAGE = "busybox:1"
#: Wall seconds at which the instances of these scenes are created, unless a test gives another time.
WALL = 1_700_000_000.0
NS = 1_000_000_000


def container(name: str = "app", **fields: Any) -> core.Container:
    given = {"name": name, "image": IMAGE, "terminationMessagePath": "/dev/termination-log", **fields}
    return from_object(core.Container, given)


def sidecar(name: str = "mesh", **fields: Any) -> core.Container:
    return container(name, restartPolicy="Always", **fields)


def pod(
    *containers: core.Container,
    init: tuple[core.Container, ...] = (),
    restart: str = "Always",
    metadata: dict[str, Any] | None = None,
    **spec: Any,
) -> core.Pod:
    """A pod with the container `app` unless others are given; `spec` in the words of a manifest."""
    return from_object(
        core.Pod,
        {
            "metadata": {"name": REF.name, "namespace": REF.namespace, "uid": REF.uid, **(metadata or {})},
            "spec": {
                "restartPolicy": restart,
                "enableServiceLinks": True,
                "dnsPolicy": "Default",
                "containers": [to_object(c) for c in containers or (container(),)],
                "initContainers": [to_object(c) for c in init],
                **spec,
            },
        },
    )


def rule(action: str, *codes: int, operator: str = "In") -> dict[str, Any]:
    """An entry of a container's restartPolicyRules."""
    return {"action": action, "exitCodes": {"operator": operator, "values": list(codes)}}


def box(
    attempt: int = 0, *, ready: bool = True, ip: str = "10.0.0.2", network: NetworkMode = NetworkMode.POD
) -> SandboxView:
    ips = (ip,) if ip else ()
    return SandboxView(SandboxID(f"s{attempt}"), attempt, ready, attempt * 1000, ips, network)


def instance(
    name: str,
    state: ObservedState,
    *,
    attempt: int = 0,
    sandbox: int = 0,
    code: int = 0,
    ended: float = WALL,
    reason: str = "",
    hash_of: str | None = None,
) -> ContainerView:
    """`ended`: wall seconds. `reason`: how it ended, by default from its code. `hash_of`: the recorded hash, by default that
    of `name` with the usual image."""
    done = state is ObservedState.EXITED
    return ContainerView(
        id=ContainerID(f"{name}-{attempt}"),
        name=name,
        sandbox_id=SandboxID(f"s{sandbox}"),
        state=state,
        attempt=attempt,
        created_at=sandbox * 1000 + attempt * 10 + 1,
        started_at=1,
        finished_at=int(ended * NS) if done else 0,
        exit_code=code,
        reason=reason or (("Error" if code else "Completed") if done else ""),
        annotations={CONTAINER_HASH: container_hash(container(name)) if hash_of is None else hash_of},
    )


def running(name: str = "app", **how: Any) -> ContainerView:
    return instance(name, ObservedState.RUNNING, **how)


def exited(name: str = "app", code: int = 0, **how: Any) -> ContainerView:
    return instance(name, ObservedState.EXITED, code=code, **how)


def created(name: str = "app", **how: Any) -> ContainerView:
    return instance(name, ObservedState.CREATED, **how)


def unknown(name: str = "app", **how: Any) -> ContainerView:
    return instance(name, ObservedState.UNKNOWN, **how)


def view(*views: SandboxView | ContainerView, read_at: float = 0.0, ref: PodRef = REF) -> PodView:
    """One view; newest first, as the PLEG publishes it."""
    sandboxes = [item for item in views if isinstance(item, SandboxView)]
    containers = [item for item in views if isinstance(item, ContainerView)]
    return PodView(
        ref=ref,
        sandboxes=tuple(sorted(sandboxes, key=lambda s: (s.created_at, s.attempt), reverse=True)),
        containers=tuple(sorted(containers, key=lambda c: (c.created_at, c.attempt), reverse=True)),
        read_at=read_at,
    )


def probes(**results: ProbeResult) -> ProbeResults:
    """Results by `<kind>_<container>_<attempt>`, such as `liveness_app_0`; all kinds are watched."""
    found = {}
    for key, result in results.items():
        kind, name, attempt = key.split("_")
        found[ContainerID(f"{name}-{attempt}"), ProbeKind(kind)] = result
    return ProbeResults(found, frozenset(ProbeKind))


def script(name: str, line: str) -> dict[str, object]:
    return {"name": name, "command": ["sh", "-c", line]}


def running_script(line: str, **spec: Any) -> core.Pod:
    return pod(container("app", command=["sh", "-c", line]), terminationGracePeriodSeconds=1, **spec)
