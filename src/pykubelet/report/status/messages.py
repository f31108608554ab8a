"""Termination messages of exited containers: the content of the message file, or the end of the log.

Owns: the bounded reads (4096 bytes of the file, 80 lines and 2048 bytes of the log) and their results, one read for each
exited container. The file is the host path of the mount at the container's terminationMessagePath. A user's volume may be
mounted there, so every read has a deadline, no link is followed, and nothing but a regular file is opened.
Source: the Kubernetes documentation "Determine the Reason for Pod Failure".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pykubelet.base.kit.flight import Done, Failed, SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.base.model.ids import ContainerID, PodUID
from pykubelet.base.model.labels import CONTAINER_TERMINATION_MESSAGE_PATH, CONTAINER_TERMINATION_MESSAGE_POLICY
from pykubelet.base.model.observed import ContainerView, ObservedState, PodView
from pykubelet.base.model.paths import below
from pykubelet.edges.cri.logs import read_log_tail
from pykubelet.edges.host.fs.beneath import read_tail
from pykubelet.edges.host.fs.errors import HostError

log = Log("status")
MESSAGE_BYTES = 4096
READ_DEADLINE_S = 5.0
FALLBACK_TO_LOGS = "FallbackToLogsOnError"
CANNOT_RUN = "ContainerCannotRun"


class TerminationMessages:
    """The messages of exited containers, by container ID."""

    def __init__(self, flight: SingleFlight, pods: str = "") -> None:
        """`pods`: the directory of all pods' directories, which may be behind links."""
        self._flight = flight
        self._pods = pods
        self.known: dict[ContainerID, str] = {}

    async def read(self, view: PodView) -> None:
        """Read the messages of this pod's exited containers that are not known yet. Never raises: an error becomes the message."""
        ended = [c for c in view.containers if c.state is ObservedState.EXITED and c.id not in self.known]
        if not ended:
            return
        outcome = await self._flight.run(
            f"messages:{view.ref.uid}", lambda: read_messages(ended, self._pods), READ_DEADLINE_S
        )
        match outcome:
            case Done(messages):
                self.known.update(messages)
            case Failed(error):
                log.error("reading termination messages crashed", pod=view.ref, uid=view.ref.uid, exc_info=error)
                self.known.update({c.id: f"Error on reading termination log: {error}" for c in ended})
            case _:
                self.known.update({c.id: "Error on reading termination log: no answer in time" for c in ended})

    def keep_only(self, views: Mapping[PodUID, PodView]) -> None:
        """Forget the messages of containers that are in none of these snapshots."""
        present = {c.id for view in views.values() for c in view.containers}
        self.known = {key: text for key, text in self.known.items() if key in present}


def read_messages(containers: Iterable[ContainerView], pods: str) -> dict[ContainerID, str]:
    """Read the messages of containers; empty if a container has none. Blocks."""
    return {container.id: read_message(container, pods) for container in containers}


def read_message(container: ContainerView, pods: str = "") -> str:
    """Read the message of one exited container. Blocks."""
    annotations = container.annotations
    policy = annotations.get(CONTAINER_TERMINATION_MESSAGE_POLICY, "")
    may_fall_back = policy == FALLBACK_TO_LOGS and container.exit_code != 0 and container.reason != CANNOT_RUN
    message, is_missing = _from_file(container, annotations.get(CONTAINER_TERMINATION_MESSAGE_PATH, ""), pods)
    return _from_log(container.log_path, container.id) if is_missing and may_fall_back else message


def _from_file(container: ContainerView, path: str, pods: str) -> tuple[str, bool]:
    """The message of the file, and whether it has none, so that the log may be used instead."""
    absolute = path if path.startswith("/") else f"/{path}"
    mount = next((m for m in container.mounts if path and m.container_path == absolute), None)
    if mount is None:
        return "", True
    try:
        data = read_tail(below(mount.host_path, pods), MESSAGE_BYTES)
    except HostError as error:
        if error.is_not_found:
            return "", True
        return f"Error on reading termination log {mount.host_path}: {error}", False
    return data.decode(errors="replace"), not data


def _from_log(path: str, container: ContainerID) -> str:
    try:
        return read_log_tail(path, container) if path else ""
    except HostError as error:
        return f"Error on reading termination message from logs: {error}"
