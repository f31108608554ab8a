"""What a container waits for until the test has seen what it wants to see: nothing depends on who is quick."""

from __future__ import annotations

from pathlib import Path

from support.agent import Json

#: The part of a script that waits.
UNTIL_OPEN = "until [ -e /gate/open ]; do sleep 0.05; done"
#: What the container that waits needs; the pod's volume is the gate's.
MOUNTS: list[Json] = [{"name": "gate", "mountPath": "/gate"}]


class Gate:
    """Closed at first. `folder` is made with the pod, and may be on the host only."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def volume(self) -> Json:
        return {"name": "gate", "hostPath": {"path": str(self._folder), "type": "DirectoryOrCreate"}}

    def open(self) -> None:
        (self._folder / "open").touch()
