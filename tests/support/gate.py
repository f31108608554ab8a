"""What a container waits for until the test has seen what it wants to see: nothing depends on who is quick."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.agent import Json, make_container

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

    def close(self) -> None:
        (self._folder / "open").unlink()


def make_held(name: str = "main", listens: str = "readinessProbe", **spec: Any) -> Json:
    """One that ends well after SIGTERM, but not before the gate is open. Its probe `listens` succeeds once it hears signals."""
    script = f"trap '{UNTIL_OPEN}; exit 0' TERM; touch /tmp/listens; while :; do sleep 3600 & wait $!; done"
    probe = {"exec": {"command": ["test", "-e", "/tmp/listens"]}, "periodSeconds": 1, "timeoutSeconds": 10}
    return make_container(name, script, volumeMounts=MOUNTS, **{listens: probe}, **spec)
