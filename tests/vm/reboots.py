"""What the tests before and after a reboot agree on."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from support.agent import Json, make_container, make_pod

FOLDER = Path("/var/lib/testvm/reboot")
NOTES = FOLDER / "before.json"
#: Emulated, a pod needs long to end.
SETTINGS = {"shutdownGracePeriod": "300s", "shutdownGracePeriodCriticalPods": "120s"}
OUT = FOLDER / "out"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def make_pods() -> list[Json]:
    """One that runs for ever, one with a sidecar and init container, one that is done, and must not run again.

    At the shutdown `web` takes three seconds to end, and `critical` belongs to the group that ends after its group.
    """
    out: Json = {"volumeMounts": [{"name": "out", "mountPath": "/out"}]}
    volumes = [{"name": "out", "hostPath": {"path": str(OUT)}}]
    lives = (
        "echo started >> /out/web; "
        'trap "echo ending >> /out/order; sleep 3; echo web >> /out/order; exit 0" TERM; '
        "while :; do sleep 3600 & wait $!; done"
    )
    follows = 'trap "echo critical >> /out/order; exit 0" TERM; while :; do sleep 3600 & wait $!; done'
    patient: Json = {"terminationGracePeriodSeconds": 60}
    size = {"cpu": "1", "memory": "32Mi"}
    return [
        make_pod("web", make_container(script=lives, resources={"limits": size}, **out), volumes=volumes, **patient),
        make_pod(
            "helped",
            make_container(),
            initContainers=[
                make_container("setup", "echo setup >> /out/helped", **out),
                make_container("sidecar", restartPolicy="Always"),
            ],
            volumes=volumes,
        ),
        make_pod("critical", make_container(script=follows, **out), volumes=volumes, priority=2_000_000_000, **patient),
        make_pod("job", make_container(script="echo ran >> /out/job", **out), restartPolicy="Never", volumes=volumes),
    ]


def is_inhibited() -> bool:
    """Whether the agent delays a shutdown."""
    shown = subprocess.run(["systemd-inhibit", "--list", "--no-legend"], check=True, capture_output=True, text=True)
    return any(line.split()[0] == "kubelet" for line in shown.stdout.splitlines())


def shutdown_times() -> Json:
    """When the last graceful shutdown began and ended, as the agent has recorded it; only what is known."""
    times: Json = json.loads((FOLDER / "root" / "graceful_node_shutdown_state").read_text())
    return {name: time for name, time in times.items() if not time.startswith("0001-")}


def write_notes(notes: Json) -> None:
    NOTES.write_text(json.dumps(notes))


def read_notes() -> Json:
    found: Json = json.loads(NOTES.read_text())
    return found
