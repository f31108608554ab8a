"""An agent that is now ours, now the reference kubelet, on the same folder: for tests of takeovers.

The program is named by the environment variable REFERENCE_KUBELET. Both get the same configuration, flags and root directory.
The kubelet has device plugins in a fixed folder, whatever its root directory: it gets a mount namespace in which that is ours.
"""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from support.agent import WAIT_S, Agent, Json, RuntimeView

_IN_VIRTUAL_MACHINE = Path("/share/built/reference/kubelet")
REFERENCE = str(_IN_VIRTUAL_MACHINE) if _IN_VIRTUAL_MACHINE.exists() else os.environ.get("REFERENCE_KUBELET", "")
#: As in the kubelet: older containers are assumed to have started and to be ready.
SETTLED_S = 12.0
#: The reference looks once a minute for what removed pods have left.
COLLECTED_S = max(150.0, WAIT_S)
#: Where the kubelet has its socket for device plugins and their checkpoint.
FIXED_FOLDER = "/var/lib/kubelet/device-plugins"
# what is mounted below the root directory must reach the runtime, and the mount of the fixed folder no other process
_IN_NAMESPACE = 'mkdir -p "$2" && mount --make-private / && mount --bind "$1" "$2" && shift 2 && exec "$@"'
WHY_SKIPPED = "REFERENCE_KUBELET names no kubelet to take over from"


@dataclass
class EitherAgent(Agent):
    """`is_reference`: which of the two the next `start` starts."""

    is_reference: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        devices = self.root / "device-plugins"
        devices.mkdir(parents=True, exist_ok=True)
        _run("mount", "--bind", self.root, self.root)
        _run("mount", "--make-private", self.root)  # else, where / is shared, all below it is mounted a second time
        _run("mount", "--make-shared", self.root)
        self._enter = ["unshare", "--mount", "--propagation", "unchanged", "sh", "-c", _IN_NAMESPACE, "sh"]
        self._enter += [str(devices), FIXED_FOLDER]

    def command(self, *more: str) -> list[str]:
        command = super().command(*more)
        return [*self._enter, REFERENCE, *command[1:], "-v", "2"] if self.is_reference else command

    def log_tail(self, lines: int = 40) -> str:
        """Warnings and errors alone: the log of the reference is long."""
        found = [line for line in self.log_text().splitlines() if line[:1] in "EWF" or "Err" in line]
        return "\n".join(["warnings and errors in the agents' log:", *found[-lines:]])

    def takeover_check(self) -> subprocess.CompletedProcess[str]:
        """`pykubelet takeover --check` about the agent that runs."""
        assert self.process is not None
        words = [str(self.program), "takeover", "--check", "--pid", str(self.process.pid), "-o", "json"]
        return subprocess.run(words, capture_output=True, text=True, timeout=WAIT_S, env=self.env)

    async def wait_gone(self, *names: str, within: float = COLLECTED_S) -> None:
        await super().wait_gone(*names, within=within)

    async def clear(self) -> None:
        await super().clear()
        with suppress(OSError):  # not empty: of another agent
            Path(FIXED_FOLDER).rmdir()
            Path(FIXED_FOLDER).parent.rmdir()

    def devices(self) -> dict[tuple[str, str], list[str]]:
        """The devices of each container that has any, by the UID of its pod and its name, from the checkpoint."""
        path = self.root / "device-plugins/kubelet_internal_checkpoint"
        entries = json.loads(path.read_text())["Data"]["PodDeviceEntries"] if path.exists() else None
        return {
            (entry["PodUID"], entry["ContainerName"]): sorted(
                name for ids in entry["DeviceIDs"].values() for name in ids
            )
            for entry in entries or ()
        }

    @property
    def who(self) -> str:
        return "the reference" if self.is_reference else "pykubelet"


def _run(*words: str | Path) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=30)


def labels_of(container: object) -> tuple[str, str]:
    """The pod's and the container's name of a CRI container."""
    labels = getattr(container, "labels")  # noqa: B009
    return labels["io.kubernetes.pod.name"], labels["io.kubernetes.container.name"]


def instances(view: RuntimeView) -> dict[str, set[str]]:
    """The ids of the sandboxes and containers of each pod that run."""
    found: dict[str, set[str]] = {}
    for sandbox in view.ready:
        found.setdefault(sandbox.metadata.name, set()).add(sandbox.id)
    for container in view.running:
        found.setdefault(labels_of(container)[0], set()).add(container.id)
    return found


def lasting(status: Json) -> Json:
    """What of a status a takeover must not change.

    Without an API server, the start time of a static pod is that of the agent, and the reference forgets the address of a pod that
    has ended and does not know that of the node.
    """
    own_address = status.get("phase") == "Running" and status.get("podIP") != status.get("hostIP")
    return {
        "phase": status.get("phase"),
        "podIP": status.get("podIP") if own_address else None,
        "qosClass": status.get("qosClass"),
        "conditions": {
            condition["type"]: (condition["status"], condition.get("reason"))
            for condition in status.get("conditions", [])
        },
        "containers": {
            entry["name"]: {
                name: entry.get(name)
                for name in ("ready", "started", "restartCount", "containerID", "imageID", "state")
            }
            for entry in entries_of(status)
        },
    }


def is_unready(before: Json, now: Json, age_s: float) -> bool:
    """Whether a pod that was ready is reported as not ready. One that is not reported yet is not.

    `age_s`: since its newest container started. Without an API server, nothing is known of the probes of containers that are
    younger than SETTLED_S.
    """
    if _ready(before) != "True" or now.get("containerStatuses") is None or age_s < SETTLED_S:
        return False
    return _ready(now) != "True"


def newest_start(status: Json) -> str:
    """When the newest running container of a pod started."""
    states = [entry["state"].get("running") for entry in entries_of(status)]
    return max((str(running["startedAt"]) for running in states if running), default="")


def entries_of(status: Json) -> list[Json]:
    return [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]


def _ready(status: Json) -> str:
    return next(
        (str(condition["status"]) for condition in status.get("conditions", []) if condition["type"] == "Ready"), ""
    )
