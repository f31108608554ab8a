"""A node of an ordinary user: `examples/rootless/node.sh`, started as a user of the test's own in a mount namespace.

The machine is not changed: the user exists, and `/dev/net/tun` is usable by everybody as on Debian, in that namespace only.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from support.agent import WAIT_S
from testbed import containerd, host, images, packages, runtimes
from testbed.private_runtime import CNI_BIN, CONTAINERD

CHECKOUT = Path(__file__).parents[2]
PYKUBELET = Path(sys.executable).with_name("pykubelet")
UID, FIRST_SUBID, SUBIDS = 54321, 1_000_000_000, 65_536
TUN = Path("/dev/net/tun")
_READ_ONLY = 10255
_NAMESPACE = """
for name in passwd subuid subgid; do touch "/etc/$name"; mount --bind "$1/user/$name" "/etc/$name"; done
mount --bind "$1/user/tun" /dev/net/tun
shift
exec "$@"
"""


def obstacle(bin_dir: str) -> str:
    """Why this machine cannot run a rootless node without cgroups on the runtime in `bin_dir`; empty if it can."""
    if os.geteuid() != 0:
        return "root makes the user of this test"
    if absent := packages.missing(packages.ROOTLESS):
        return f"missing Debian packages: {' '.join(absent)}"
    if containerd.kind(bin_dir) != CONTAINERD:
        return "the script starts containerd"
    if re.search(r" v?2\.", runtimes.version(Path(bin_dir) if bin_dir else None)):
        return "containerd 2 has no setting for pods without cgroups"
    if not TUN.exists():
        return f"{TUN} does not exist, so slirp4netns cannot work"
    as_user = [*_as_user(), "test", "-r", str(PYKUBELET), "-a", "-r", str(CHECKOUT / "examples")]
    if subprocess.run(as_user, stdin=subprocess.DEVNULL, check=False).returncode != 0:
        return f"no other user may read {CHECKOUT}"
    command = [*_as_user(), "unshare", "--user", "--map-root-user", "true"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return f"this machine lets ordinary users make no user namespaces: {done.stderr.strip()}" if done.returncode else ""


def _as_user(uid: int = UID) -> list[str]:
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]


class RootlessNode:
    """A node below `folder`, which other users can reach. `bin_dir`: the programs of another containerd than the system's.

    `uid`: the user. `enter`: a command before the script that makes it run as this user, in place of the test's own.
    """

    def __init__(self, folder: Path, bin_dir: str = "", uid: int = UID, enter: Sequence[str] = ()) -> None:
        self.folder = folder
        self._uid = uid
        self._enter = enter or self._own_user()
        self.node = folder / "n"
        self._bin_dir = bin_dir
        self._port = host.free_port(10255)
        self._process: subprocess.Popen[bytes] | None = None
        (self.node / "manifests").mkdir(parents=True)
        for path in (self.node, self.node / "manifests"):
            os.chown(path, uid, uid)

    def start(self, *flags: str, within_s: float = WAIT_S) -> None:
        """Start it; returns when the agent answers."""
        self.launch(*flags)
        self.wait(lambda: self.pods() is not None, "the agent answers", within_s)

    def launch(self, *flags: str) -> None:
        """Start it; returns at once."""
        archives = [images.build(name, self.folder / "images") for name in (images.PAUSE, images.BUSYBOX)]
        env = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.folder),
            "PYKUBELET": str(PYKUBELET),
            "PYTHONDONTWRITEBYTECODE": "1",
            "SANDBOX_IMAGE": images.PAUSE,
            "IMAGES": " ".join(map(str, archives)),
            "CONTAINERD_BIN": self._bin_dir,
            "CNI_BIN": CNI_BIN,
            "ROOTLESSKIT_FLAGS": f"--port-driver=builtin -p 127.0.0.1:{self._port}:{_READ_ONLY}/tcp",
        }
        command = [*self._enter, "env", "-i", *(f"{key}={value}" for key, value in env.items())]
        command += [str(CHECKOUT / "examples/rootless/node.sh"), str(self.node)]
        command += ["--hostname-override", "rootless", "-v", "2", "--read-only-port", str(_READ_ONLY), *flags]
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self.folder
            )

    def wait_ended(self) -> int:
        """Wait until the script has ended of itself. Returns its exit code. subprocess.TimeoutExpired: it goes on."""
        assert self._process is not None, "not started"
        return self._process.wait(WAIT_S)

    def _own_user(self) -> list[str]:
        """The command that starts a program as the test's own user. Writes the files that describe the user."""
        user = self.folder / "user"
        user.mkdir()
        (user / "passwd").write_text(f"root:x:0:0::/root:/bin/sh\nordinary:x:{UID}:{UID}::{self.folder}:/bin/sh\n")
        for name in ("subuid", "subgid"):
            (user / name).write_text(f"ordinary:{FIRST_SUBID}:{SUBIDS}\n")
        os.mknod(user / "tun", stat.S_IFCHR, TUN.stat().st_rdev)
        (user / "tun").chmod(0o666)
        namespace = ["unshare", "--mount", "--propagation", "private", "sh", "-euc", _NAMESPACE, "sh"]
        return [*namespace, str(self.folder), *_as_user()]

    def configure(self, text: str) -> None:
        """Write the agent's configuration, in place of that of the script."""
        (self.node / "kubelet.yaml").write_text(text)

    def put(self, *pods: Mapping[str, Any]) -> None:
        """Write manifests."""
        for pod in pods:
            file = self.node / "manifests" / f"{pod['metadata']['name']}.json"
            part = file.with_suffix(".part")
            part.write_text(json.dumps(pod))
            part.replace(file)

    def remove(self, *names: str) -> None:
        """Remove manifests."""
        for name in names:
            (self.node / "manifests" / f"{name}.json").unlink()

    def ask(self, *words: str) -> str:
        """The output of a command of the agent's program, run by the user outside of the node."""
        command = [*_as_user(self._uid), str(PYKUBELET), *words, "--root-dir", str(self.node / "kubelet")]
        env = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True
        ).stdout

    def get(self, path: str) -> Any:
        """What the read-only port answers, through the port that rootlesskit publishes; None if it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=10) as answer:
                return json.loads(answer.read())
        except (OSError, ValueError, http.client.HTTPException):
            return None

    def pods(self) -> list[dict[str, Any]] | None:
        """The pods; None if the agent does not answer."""
        answer = self.get("/pods")
        return None if answer is None else list(answer.get("items") or ())

    def pod(self, name: str) -> dict[str, Any] | None:
        """The static pod of a manifest; None while it is not known."""
        found = self.pods() or []
        return next((pod for pod in found if pod["metadata"]["name"] == f"{name}-rootless"), None)

    def wait(self, holds: Callable[[], Any], what: str, within_s: float = WAIT_S) -> None:
        """Wait until `holds`. AssertionError with the end of the log if it takes too long or the node has ended."""
        deadline = time.monotonic() + within_s
        while not holds():
            ended = self._process is None or self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                raise AssertionError(f"not within {within_s} s: {what}\n{self.log()[-4000:]}")
            time.sleep(0.3)

    def log(self) -> str:
        """What the node has written, with the agent's log."""
        return (self.folder / "log").read_text(errors="replace")

    def processes(self) -> list[host.Process]:
        """The processes of the node on the machine, with those in its containers."""
        return [process for process in host.processes() if str(self.node) in " ".join(process.argv)]

    def agent_pid(self) -> int:
        """The agent's process, as the machine numbers it."""
        mark = str(self.node / "kubelet.yaml")
        found = [p for p in host.processes() if mark in p.argv and "python" in os.path.basename(p.argv[0])]
        # a program that it starts has its command line for a moment
        (agent,) = [process for process in found if process.parent not in {other.pid for other in found}]
        return agent.pid

    def stop(self) -> None:
        """End the node with all its containers, and remove its files."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(30)
        host.wait_until(lambda: not self.processes(), 30)
        host.kill_all([process.pid for process in self.processes()])
        shutil.rmtree(self.folder)
