"""`make run` and `make down`: a node of our own below one folder, on the pods of a manifest directory.

Owns the agent's process and configuration. Containers outlive the agent and this program; only `down` ends them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import live_table

from testbed import claims, containerd, controlplane, host, images, local_api, places, segment
from testbed.host import TestbedError
from testbed.private_runtime import Testbed

NODE_NAME = "local"
# Cut short, an agent has nothing to lose; this is for a machine that is very busy.
_STOP_S = 15.0


@dataclass(frozen=True, slots=True)
class Joined:
    """A node of a cluster: the node's kubeconfig, and the authority of those who may ask the node."""

    kubeconfig: Path
    authority: Path

    def settings(self) -> dict[str, object]:
        """What replaces fields of `render_config`."""
        return {
            # the API server comes to the node's address, and proves who it is
            "address": "0.0.0.0",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self.authority)},
            },
            "authorization": {"mode": "Webhook"},
            # nothing answers there; without one the agent sends each pod an Event that DNS is not configured
            "clusterDNS": ["10.96.0.10"],
        }


def pods_cgroup(testbed: Testbed) -> str:
    """The group below which the node's pods run: a cgroup root of the testbed's own."""
    return f"/{testbed.name}-pods"


def render_config(testbed: Testbed, manifests: Path, ports: tuple[int, int, int]) -> dict[str, object]:
    """The KubeletConfiguration of the node; `ports` are health, read-only and main."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "staticPodPath": str(manifests),
        "containerRuntimeEndpoint": testbed.endpoint,
        "podLogsDir": str(Path(testbed.folder, "logs")),
        "volumePluginDir": str(Path(testbed.folder, "volumeplugins")),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": pods_cgroup(testbed),
        "failCgroupV1": False,
        "makeIPTablesUtilChains": False,
        "failSwapOn": False,
        "healthzPort": ports[0],
        "readOnlyPort": ports[1],
        "port": ports[2],
        "address": "127.0.0.1",
        "clusterDomain": "cluster.local",
        # without an API server no TokenReview and no SubjectAccessReview is possible
        "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        # a demonstration on a full disk keeps its images and pods: they cannot be pulled again
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
    }


def agent_pid(folder: Path) -> int | None:
    """The running agent of the node in `folder`."""
    try:
        pid = int((folder / "agent.pid").read_text())
    except (OSError, ValueError):
        return None
    process = host.read_process(pid)
    return pid if process is not None and str(folder / "kubelet.yaml") in process.argv else None


@contextlib.contextmanager
def owning(folder: Path) -> Iterator[bool]:
    """Whether we are the one `run` that ends the agent when it ends itself."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "run.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def run(
    program: Path,
    folder: Path,
    manifests: Path,
    bin_dir: str = "",
    flags: Sequence[str] = (),
    *,
    has_api: bool = False,
) -> int:
    """Bring the runtime of `bin_dir` (containerd.up) and the agent `program` up and show the pods until Ctrl-C; returns the exit code.

    Ctrl-C ends the agent, no container. An agent that runs already is shown, and ended only if no other `run` shows it.
    `flags`: further ones of the agent. `has_api`: the agent joins a local API, to which the manifests are applied.
    """
    folder, manifests = folder.resolve(), manifests.resolve()
    with owning(folder) as ours:
        if not ours and agent_pid(folder) is None:
            raise TestbedError(f"another run on {folder} is starting or stopping: try again")
        try:
            if ours and agent_pid(folder) is None:
                testbed = containerd.up(folder, (images.BUSYBOX,), bin_dir)
                if has_api:
                    api = local_api.start(folder, program, NODE_NAME, manifests)
                    start_agent(testbed, program, local_api.no_manifests(folder), Joined(*api), flags)
                else:
                    start_agent(testbed, program, manifests, flags=flags)
            about = [f"manifests {manifests}   log {folder / 'agent.log'}", *local_api.about(folder)]
            return watch(folder, program, ours, about)
        except KeyboardInterrupt:
            return 0
        finally:
            if ours:
                stop_agent(folder)
                local_api.stop(folder)


def start_agent(
    testbed: Testbed, program: Path, manifests: Path, joined: Joined | None = None, flags: Sequence[str] = ()
) -> None:
    """Write its configuration and start it, below the testbed's folder."""
    folder = Path(testbed.folder)
    host.make_cgroup(pods_cgroup(testbed))
    holder = claims.folder(folder)
    ports = (host.free_port(10248, holder), host.free_port(10255, holder), host.free_port(10250, holder))
    config = folder / "kubelet.yaml"
    # JSON is YAML, and what a reader of the file wants to change is on a line of its own either way
    settings = render_config(testbed, manifests, ports) | (joined.settings() if joined else {})
    config.write_text(json.dumps(settings, indent=2) + "\n")
    root = folder / "kubelet"
    argv = [str(program), "--config", str(config), "--root-dir", str(root), "--cert-dir", str(root / "pki")]
    argv += ["--hostname-override", NODE_NAME, "-v", "2", *flags]
    argv += ["--kubeconfig", str(joined.kubeconfig)] if joined else []
    env = os.environ | {"PATH": testbed.env["PATH"]}
    pid = host.spawn(argv, folder / "agent.log", env)
    (folder / "agent.pid").write_text(str(pid))


def watch(folder: Path, program: Path, ours: bool, about: Sequence[str], again: str = "make run") -> int:
    """Show the agent's pods, and `about` below them, until it ends: exit code 1. Ctrl-C goes through.

    `again` is the command that takes up where this one stops.
    """
    config = json.loads((folder / "kubelet.yaml").read_text())
    footer = [
        *about,
        f"http://127.0.0.1:{config['healthzPort']}/healthz   http://127.0.0.1:{config['readOnlyPort']}/pods",
        f"Ctrl-C stops what {again} started, no container ({again} finds them again, make down removes all)"
        if ours
        else f"the agent was started by another {again}; Ctrl-C ends this view only",
    ]
    print("\n".join(footer), flush=True) if not os.isatty(1) else None
    command = [str(program), "pods", "-o", "json", "--root-dir", str(folder / "kubelet")]
    live_table.watch(command, lambda: agent_pid(folder) is not None, footer if os.isatty(1) else ())
    log = (folder / "agent.log").read_text(errors="replace").splitlines() if (folder / "agent.log").exists() else []
    print("the agent has ended; the end of its log:", *log[-15:], sep="\n", flush=True)
    return 1


def stop_agent(folder: Path) -> None:
    """End the agent below `folder`, no container."""
    if (pid := agent_pid(folder)) is not None:
        host.end_process(pid, _STOP_S)
    (folder / "agent.pid").unlink(missing_ok=True)


def driver_pid(folder: Path) -> int | None:
    """The running CSI driver of the node in `folder`."""
    try:
        pid = int((folder / "driver.pid").read_text())
    except (OSError, ValueError):
        return None
    process = host.read_process(pid)
    return pid if process is not None and str(folder / "volumes") in process.argv else None


def start_driver(folder: Path, program: Path, kubeconfig: Path) -> None:
    """Start `pykubelet csi-local`, which also provisions volumes for the claims of the cluster."""
    argv = [str(program), "csi-local", "--root-dir", str(folder / "kubelet"), "--data-dir", str(folder / "volumes")]
    argv += ["--node-id", NODE_NAME, "--kubeconfig", str(kubeconfig)]
    pid = host.spawn(argv, folder / "driver.log", dict(os.environ))
    (folder / "driver.pid").write_text(str(pid))


def stop_driver(folder: Path) -> None:
    """End the CSI driver below `folder`, if there is one. Its volumes stay mounted."""
    if (pid := driver_pid(folder)) is not None:
        host.end_process(pid, _STOP_S)
    (folder / "driver.pid").unlink(missing_ok=True)


def down(folder: Path) -> None:
    """Remove the node: agent, driver, control plane, pods, containerd, cgroups, network, mounts, files. After crashes, too."""
    folder = folder.resolve()
    if not folder.exists():
        return
    stop_driver(folder)
    stop_agent(folder)
    local_api.stop(folder)
    _remove_segment(folder)
    controlplane.down(folder)
    testbed = containerd.load(folder)
    containerd.down(folder, [pods_cgroup(testbed)] if testbed else [])


def _remove_segment(folder: Path) -> None:
    """The nodes on a network segment of the folder, each below a folder of its own, and the segment."""
    if (net := segment.load(folder)) is None:
        return
    host.remove_cgroup(net.cgroup)
    for known in folder.glob("*/testbed.json"):
        host.unmount_below(known.parent)
        containerd.down(known.parent)
    segment.down(folder)


def sweep_dead_runs(place: Path | None = None) -> None:
    """Remove what killed test runs left on the machine: the folders of `places.runs` of processes that are gone.

    The processes of a test run start together and all sweep; they do so one after the other. `place`: instead of
    `places.home()`.
    """
    place = place or places.home()
    with (place / "sweep.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for folder, pid in places.runs(place):
            if host.read_process(pid) is None:
                testbed = containerd.load(folder)
                down(folder)
                if testbed is not None:
                    host.remove_cgroup(f"/{testbed.name}")
