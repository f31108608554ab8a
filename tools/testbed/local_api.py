"""The local API of a node below one folder: `pykubelet local-api`, started before the agent, which joins it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from testbed import claims, host
from testbed.host import TestbedError

#: From the start until the API serves: keys are made the first time. This is for a machine that is very busy.
_START_S = 60.0
_STOP_S = 15.0


def start(folder: Path, program: Path, node: str, manifests: Path) -> tuple[Path, Path]:
    """Start it, and return the kubeconfig of the node and the file of the authority. `manifests`: the folder that is applied."""
    data = _data(folder)
    data.mkdir(parents=True, exist_ok=True)
    port = host.free_port(6443, claims.folder(folder))
    argv = [str(program), "local-api", "--data-dir", str(data), "--port", str(port), "--node-name", node]
    started = host.spawn([*argv, "--apply-dir", str(manifests)], folder / "local-api.log", dict(os.environ))
    (folder / "local-api.pid").write_text(str(started))

    def serves() -> bool:
        if pid(folder) is None:
            raise TestbedError(f"the local API has ended: see {folder / 'local-api.log'}")
        with socket.socket() as end:
            return (data / "kubelet.kubeconfig").exists() and end.connect_ex(("127.0.0.1", port)) == 0

    if not host.wait_until(serves, _START_S):
        raise TestbedError(f"the local API does not serve: see {folder / 'local-api.log'}")
    return data / "kubelet.kubeconfig", data / "ca.crt"


def about(folder: Path) -> list[str]:
    """What people need to use it; nothing if it does not run."""
    if pid(folder) is None:
        return []
    return [f"export KUBECONFIG={_data(folder) / 'admin.kubeconfig'}   # then: kubectl get pods -A"]


def no_manifests(folder: Path) -> Path:
    """An empty folder of static pods: the manifests are applied to the API instead."""
    place = folder / "static"
    place.mkdir(exist_ok=True)
    return place


def pid(folder: Path) -> int | None:
    """The running API of the node in `folder`."""
    try:
        found = int((folder / "local-api.pid").read_text())
    except (OSError, ValueError):
        return None
    process = host.read_process(found)
    return found if process is not None and str(_data(folder)) in process.argv else None


def stop(folder: Path) -> None:
    """End it, if it runs. Its objects stay."""
    if (running := pid(folder)) is not None:
        host.end_process(running, _STOP_S)
    (folder / "local-api.pid").unlink(missing_ok=True)


def _data(folder: Path) -> Path:
    return folder / "local-api"
