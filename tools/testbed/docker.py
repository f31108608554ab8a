"""Docker Engine as the runtime of a test bed: a private dockerd, and `pykubelet cri-docker` of this checkout before it.

The folder of programs has `dockerd`; `containerd` and `runc` are taken from there or from the system. Everything that they
write stays below the test bed's folder. Standard library only, so Docker's API is spoken by hand.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from pathlib import Path

from testbed import host, images, runc
from testbed.checkout import CHECKOUT
from testbed.host import TestbedError
from testbed.private_runtime import DOCKERD, Testbed

_API = "/v1.41"


class _Connection(http.client.HTTPConnection):
    """HTTP to the daemon on a unix socket."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("docker", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def engine_socket(testbed: Testbed) -> Path:
    """Where dockerd serves its API."""
    return testbed.root / "engine.sock"


def _daemon_config(testbed: Testbed) -> Path:
    return testbed.root / "daemon.json"


def call(testbed: Testbed, method: str, path: str, body: Path | None = None) -> tuple[int, str]:
    """Status and body of dockerd's answer. Raises OSError and HTTPException."""
    with contextlib.closing(_Connection(engine_socket(testbed), 120)) as connection:
        if body is None:
            connection.request(method, path)
        else:
            with body.open("rb") as content:
                headers = {"Content-Type": "application/x-tar", "Content-Length": str(body.stat().st_size)}
                connection.request(method, path, content, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")


def _answers(testbed: Testbed) -> bool:
    try:
        return call(testbed, "GET", "/_ping")[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def _render(testbed: Testbed, script: Path) -> dict[str, object]:
    """The daemon's configuration. It has no network of its own: pods get theirs from CNI."""
    root = testbed.root
    return {
        "hosts": [f"unix://{engine_socket(testbed)}"],
        "data-root": str(root / "root"),
        "exec-root": str(testbed.state),
        "pidfile": str(root / "dockerd.pid"),
        "storage-driver": "overlay2" if testbed.snapshotter == "overlayfs" else "vfs",
        "cgroup-parent": f"{testbed.cgroup}/containers",
        "exec-opts": ["native.cgroupdriver=cgroupfs"],
        "live-restore": True,
        "runtimes": {name: {"path": str(script)} for name in ("testbed", "test-handler")},
        "default-runtime": "testbed",
        "bridge": "none",
        "iptables": False,
        "ip-forward": False,
        "ip-masq": False,
    }


def start_daemon(testbed: Testbed) -> None:
    """Start dockerd if it does not run, and wait until it answers. Raises TestbedError."""
    if _daemon_pid(testbed) is None:
        _daemon_config(testbed).write_text(json.dumps(_render(testbed, runc.write_script(testbed)), indent=2))
        for left in (testbed.root / "dockerd.pid", testbed.state / "containerd" / "containerd.pid"):
            left.unlink(missing_ok=True)  # of killed ones: their pids may be in use again
        argv = [*testbed.launcher, runc.find_program(testbed, DOCKERD), "--config-file", str(_daemon_config(testbed))]
        log = testbed.root / "dockerd.log"
        host.spawn(argv, log, testbed.env, testbed.cgroup)
        if not host.wait_until(lambda: _answers(testbed), 60):
            raise TestbedError(f"{DOCKERD} does not answer; see {log}")


def arguments(testbed: Testbed, engine: Path | None = None) -> list[str]:
    """The command that serves the CRI over the daemon. `engine`: its socket, if it is another one."""
    program = CHECKOUT / ".venv" / "bin" / "pykubelet"
    if not program.exists():
        raise TestbedError(f"{program} is missing: make env")
    root = testbed.root
    options = {
        "--socket": testbed.socket,
        "--docker-socket": engine or engine_socket(testbed),
        "--state-dir": root / "adapter",
        "--cni-conf-dir": root / "cni",
        "--cni-bin-dir": testbed.cni_bin,
        "--cni-cache-dir": root / "networks",
        "--netns-dir": root / "netns",
        "--cdi-spec-dirs": testbed.devices,
        "--pause-image": images.PAUSE,
    }
    given = [str(part) for option in options.items() for part in option]
    restricted = [] if host.has_capability(runc.CAP_SYS_RESOURCE) else ["--restrict-oom-score-adj"]
    return [str(program), "cri-docker", *given, *restricted]


def load_image(testbed: Testbed, archive: Path) -> None:
    """Put the images of a docker-archive into the daemon's storage. Raises TestbedError."""
    status, answer = call(testbed, "POST", f"{_API}/images/load?quiet=1", archive)
    if status != 200 or '"error"' in answer:
        raise TestbedError(f"{archive} cannot be loaded: {answer.strip()}")


def _daemon_pid(testbed: Testbed) -> int | None:
    return _pid_of(testbed.root / "dockerd.pid", str(_daemon_config(testbed)))


def _pid_of(file: Path, mark: str) -> int | None:
    try:
        process = host.read_process(int(file.read_text()))
    except (OSError, ValueError):
        return None
    return process.pid if process is not None and mark in process.argv else None


def daemons(testbed: Testbed) -> list[int]:
    """The processes behind the CRI that run: dockerd and its containerd."""
    own = testbed.state / "containerd"
    found = (_daemon_pid(testbed), _pid_of(own / "containerd.pid", str(own / "containerd.toml")))
    return [pid for pid in found if pid is not None]
