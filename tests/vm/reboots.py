"""What the tests before and after a reboot agree on."""

from __future__ import annotations

import json
from pathlib import Path

from support.agent import Json, make_container, make_pod

FOLDER = Path("/var/lib/testvm/reboot")
NOTES = FOLDER / "before.json"
OUT = FOLDER / "out"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def make_pods() -> list[Json]:
    """One that runs for ever, one with a sidecar and init container, one that is done, and must not run again."""
    out: Json = {"volumeMounts": [{"name": "out", "mountPath": "/out"}]}
    volumes = [{"name": "out", "hostPath": {"path": str(OUT)}}]
    lives = 'echo started >> /out/web; trap "exit 0" TERM; while :; do sleep 3600 & wait $!; done'
    size = {"cpu": "1", "memory": "32Mi"}
    return [
        make_pod("web", make_container(script=lives, resources={"limits": size}, **out), volumes=volumes),
        make_pod(
            "helped",
            make_container(),
            initContainers=[
                make_container("setup", "echo setup >> /out/helped", **out),
                make_container("sidecar", restartPolicy="Always"),
            ],
            volumes=volumes,
        ),
        make_pod("job", make_container(script="echo ran >> /out/job", **out), restartPolicy="Never", volumes=volumes),
    ]


def write_notes(notes: Json) -> None:
    NOTES.write_text(json.dumps(notes))


def read_notes() -> Json:
    found: Json = json.loads(NOTES.read_text())
    return found
