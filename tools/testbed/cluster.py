"""`make run-cluster` and `make run-storage`: a cluster of one machine for trying it: control plane, node, and example objects.

Owns the order of starts and ends, and the process of the CSI driver. Containers, volumes and the cluster's objects outlive this
program; only `down` ends them.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from testbed import containerd, controlplane, images, node
from testbed.controlplane import ControlPlane
from testbed.host import TestbedError


def run(program: Path, folder: Path, examples: Path, again: str = "make run-cluster", has_storage: bool = False) -> int:
    """Bring the cluster up with the objects of `examples`, show the node's pods until Ctrl-C; returns the exit code.

    `again`: the command that takes up where this one stops. `has_storage`: `pykubelet csi-local` provisions volumes.
    Ctrl-C ends the agent, the driver and the control plane. What runs already is shown, and ended only if no other `run` shows it.
    """
    folder, examples = folder.resolve(), examples.resolve()
    with node.owning(folder) as ours:
        if not ours and node.agent_pid(folder) is None:
            raise TestbedError(f"another run on {folder} is starting or stopping: try again")
        try:
            if ours:
                _start(program, folder, examples, has_storage)
            return node.watch(folder, program, ours, _about(folder, examples), again)
        except KeyboardInterrupt:
            return 0
        finally:
            if ours:
                node.stop_driver(folder)
                node.stop_agent(folder)
                controlplane.stop(folder)


def _start(program: Path, folder: Path, examples: Path, has_storage: bool) -> None:
    plane = controlplane.up(folder)
    testbed = containerd.up(folder, (images.BUSYBOX,))
    if node.agent_pid(folder) is None:
        manifests = folder / "manifests"
        manifests.mkdir(exist_ok=True)
        joined = node.Joined(controlplane.node_kubeconfig(plane, node.NODE_NAME), plane.authority)
        node.start_agent(testbed, program, manifests, joined)
    if has_storage and node.driver_pid(folder) is None:
        node.start_driver(folder, program, plane.admin)
    _apply(plane, examples)


def _apply(plane: ControlPlane, examples: Path) -> None:
    command = [plane.programs.kubectl, "--kubeconfig", str(plane.admin), "apply", "-f", str(examples)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise TestbedError(f"kubectl apply -f {examples}: {done.stderr}")


def _about(folder: Path, examples: Path) -> list[str]:
    plane = controlplane.load(folder)
    kubeconfig = plane.admin if plane else "(starting)"
    driver = f" {folder}/driver.log" if (folder / "driver.log").exists() else ""
    return [
        f"examples {examples}   logs {folder}/agent.log{driver} {folder}/controlplane/*.log",
        f"export KUBECONFIG={kubeconfig}",
    ]
