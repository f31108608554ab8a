"""Statuses of pods for tables, and the comparison of a server's Tables with ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from local_api.strategies.contract import path_of

from pykubelet_local_api.kinds.columns import table
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.objects import Json

#: Gets a path in the form of a media type: the answer, and the server's time.
Get = Callable[[str, str], tuple[Json, float]]
AS_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
ENDED_AT = "2026-01-01T00:00:00Z"


def container(name: str = "c", ready: bool = False, restarts: int = 0, last: Json | None = None, **state: Any) -> Json:
    """A container's status, in one state: `running={}`."""
    found = {"name": name, "image": "a", "imageID": "b", "ready": ready, "restartCount": restarts, "state": state}
    return found | ({"lastState": {"terminated": last}} if last else {})


def ended(code: int = 0, reason: str = "", **fields: Any) -> Json:
    """The state of a container that has ended."""
    return {
        "exitCode": code,
        "startedAt": ENDED_AT,
        "finishedAt": ENDED_AT,
        **({"reason": reason} if reason else {}),
        **fields,
    }


RUNNING: Json = {"startedAt": ENDED_AT}
READY = {"type": "Ready", "status": "True"}
INITIALIZED = {"type": "Initialized", "status": "True"}
INIT = [{"name": "i", "image": "x"}, {"name": "s", "image": "x", "restartPolicy": "Always"}]

#: Specification (beside one container) and status of pods, by their names.
PODS: dict[str, tuple[Json, Json]] = {
    "t-pending": ({}, {"phase": "Pending"}),
    "t-running": (
        {"readinessGates": [{"conditionType": "a/b"}, {"conditionType": "c"}]},
        {
            "phase": "Running",
            "podIPs": [{"ip": "1.2.3.4"}],
            "nominatedNodeName": "n",
            "conditions": [READY, {"type": "a/b", "status": "True"}],
            "containerStatuses": [container(ready=True, running=RUNNING)],
        },
    ),
    "t-restarted": (
        {},
        {"phase": "Running", "containerStatuses": [container(ready=True, restarts=3, last=ended(1), running=RUNNING)]},
    ),
    "t-restarted-early": (
        {},
        {"phase": "Running", "containerStatuses": [container(ready=True, restarts=3, running=RUNNING)]},
    ),
    "t-crash": (
        {},
        {
            "phase": "Running",
            "containerStatuses": [container(restarts=3, last=ended(1), waiting={"reason": "CrashLoopBackOff"})],
        },
    ),
    "t-creating": ({}, {"phase": "Pending", "containerStatuses": [container(waiting={"reason": "ContainerCreating"})]}),
    "t-completed": ({}, {"phase": "Succeeded", "containerStatuses": [container(terminated=ended(0, "Completed"))]}),
    "t-failed": ({}, {"phase": "Failed", "containerStatuses": [container(terminated=ended(1, "Error"))]}),
    "t-exit": ({}, {"phase": "Failed", "containerStatuses": [container(terminated=ended(3))]}),
    "t-signal": ({}, {"phase": "Failed", "containerStatuses": [container(terminated=ended(137, signal=9))]}),
    "t-evicted": ({}, {"phase": "Failed", "reason": "Evicted"}),
    "t-half": (
        {"containers": [{"name": "c", "image": "a"}, {"name": "d", "image": "a"}]},
        {
            "phase": "Running",
            "conditions": [READY],
            "containerStatuses": [
                container(terminated=ended(0, "Completed")),
                container("d", ready=True, running=RUNNING),
            ],
        },
    ),
    "t-half-not": (
        {"containers": [{"name": "c", "image": "a"}, {"name": "d", "image": "a"}]},
        {
            "phase": "Running",
            "containerStatuses": [
                container(terminated=ended(0, "Completed")),
                container("d", ready=True, running=RUNNING),
            ],
        },
    ),
    "t-init": (
        {"initContainers": INIT},
        {
            "phase": "Pending",
            "initContainerStatuses": [
                container("i", running=RUNNING),
                container("s", waiting={"reason": "PodInitializing"}),
            ],
            "containerStatuses": [container(waiting={"reason": "PodInitializing"})],
        },
    ),
    "t-init-second": (
        {"initContainers": INIT},
        {
            "phase": "Pending",
            "initContainerStatuses": [
                container("i", terminated=ended(0, "Completed")),
                container("s", waiting={"reason": "PodInitializing"}),
            ],
            "containerStatuses": [container(waiting={"reason": "PodInitializing"})],
        },
    ),
    "t-init-failed": (
        {"initContainers": INIT},
        {
            "phase": "Pending",
            "initContainerStatuses": [container("i", restarts=2, last=ended(1), terminated=ended(1, "Error"))],
            "containerStatuses": [container(waiting={"reason": "PodInitializing"})],
        },
    ),
    "t-init-exit": (
        {"initContainers": INIT},
        {"phase": "Pending", "initContainerStatuses": [container("i", terminated=ended(2))]},
    ),
    "t-init-crash": (
        {"initContainers": INIT},
        {
            "phase": "Pending",
            "initContainerStatuses": [container("i", restarts=2, waiting={"reason": "CrashLoopBackOff"})],
        },
    ),
    "t-sidecar": (
        {"initContainers": INIT},
        {
            "phase": "Running",
            "conditions": [INITIALIZED],
            "initContainerStatuses": [
                container("i", restarts=4, terminated=ended(0, "Completed")),
                container("s", ready=True, restarts=1, last=ended(1), running=RUNNING) | {"started": True},
            ],
            "containerStatuses": [container(ready=True, restarts=2, running=RUNNING)],
        },
    ),
    "t-gated": ({"schedulingGates": [{"name": "a/b"}]}, {}),
}


def pod_body(name: str) -> Json:
    """The pod of `PODS`, without its status."""
    spec = {"containers": [{"name": "c", "image": "busybox"}], "schedulerName": "none"} | PODS[name][0]
    return {"metadata": {"name": name}, "spec": spec}


def table_differences(get: Get, kind: ResourceKind, namespace: str) -> list[str]:
    """Where our table of a kind's objects differs from that of a server. An age may be a second older."""
    path = path_of(kind, namespace)
    listed, _ = get(path, "application/json")
    real, now = get(path, AS_TABLE)
    metadata = {"resourceVersion": real["metadata"]["resourceVersion"]}
    near = [table(kind, listed["items"], now + step, "None", metadata) for step in (-1, 0, 1)]
    wanted = [
        [column[field] for field in ("name", "type", "format", "priority")] for column in real["columnDefinitions"]
    ]
    found = [
        [column[field] for field in ("name", "type", "format", "priority")] for column in near[0]["columnDefinitions"]
    ]
    texts = [] if wanted == found else [f"{path}: columns\n  real {wanted}\n  own  {found}"]
    for i, row in enumerate(real["rows"] or ()):
        own = [found["rows"][i] for found in near]
        if all(row["cells"] != found["cells"] for found in own):
            texts.append(f"{path}: row\n  real {row['cells']}\n  own  {own[1]['cells']}")
        if row.get("conditions") != own[0].get("conditions"):
            texts.append(f"{path}: conditions\n  real {row.get('conditions')}\n  own  {own[0].get('conditions')}")
    return texts
