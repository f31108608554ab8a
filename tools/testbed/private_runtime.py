"""A private container runtime below a folder: its name, its paths, its environment and its process.

`containerd.py` starts and stops it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from testbed import host
from testbed.host import TestbedError
from testbed.network import Network

CONTAINERD, CRIO, DOCKER = "containerd", "crio", "docker"
#: The program of Docker Engine.
DOCKERD = "dockerd"
CNI_BIN = "/usr/lib/cni"
_SBIN = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Testbed:
    """A private runtime: containerd, CRI-O, or Docker Engine. Written to the folder at the first `up`; later calls find the same one.

    `launcher`: what is put before the command that starts it, such as one that enters a network namespace.
    """

    __test__ = False

    folder: str
    name: str
    subnet: str
    snapshotter: str
    bin_dir: str = ""
    shared_chains_were_there: bool = False
    launcher: tuple[str, ...] = ()
    kind: str = CONTAINERD

    @property
    def root(self) -> Path:
        """Everything of this runtime is below it."""
        return Path(self.folder, self.kind)

    @property
    def is_crio(self) -> bool:
        """Whether the runtime is CRI-O."""
        return self.kind == CRIO

    @property
    def is_docker(self) -> bool:
        """Whether the runtime is Docker Engine, behind a program that serves the CRI."""
        return self.kind == DOCKER

    @property
    def is_containerd(self) -> bool:
        """Whether the runtime is containerd, which has services beside the CRI, and `ctr`."""
        return self.kind == CONTAINERD

    @property
    def maps_host_ports(self) -> bool:
        """Whether a port of the machine leads to a container: CRI-O has rules of its own for it, which are left out here."""
        return not self.is_crio

    @property
    def socket(self) -> Path:
        """The runtime's socket, which serves CRI."""
        return self.root / f"{self.kind}.sock"

    @property
    def endpoint(self) -> str:
        """The socket as KubeletConfiguration's containerRuntimeEndpoint has it."""
        return f"unix://{self.socket}"

    @property
    def state(self) -> Path:
        """containerd's volatile state: bundles, root file systems, network namespaces."""
        return self.root / "state"

    @property
    def registries(self) -> Path:
        """The runtime's registry config_path: a folder with a hosts.toml for each registry."""
        return self.root / "registries"

    @property
    def devices(self) -> Path:
        """Where the runtime looks for descriptions of devices (CDI), if it knows them."""
        return self.root / "cdi"

    @property
    def network(self) -> Network:
        """The pod network."""
        return Network(self.name, self.subnet)

    @property
    def config_file(self) -> Path:
        """The configuration of containerd or CRI-O."""
        return self.root / f"{self.kind}.toml"

    @property
    def mark(self) -> str:
        """The argument of a command by which a process is this testbed's runtime."""
        return str(self.socket if self.is_docker else self.config_file)

    @property
    def shim_address(self) -> Path:
        """The socket of the containerd that the shims of the containers belong to; Docker Engine has one of its own."""
        return self.state / "containerd" / "containerd.sock" if self.is_docker else self.socket

    @property
    def bundles(self) -> list[Path]:
        """The folders of the containers that containerd's shims run."""
        state = self.state / "containerd" / "daemon" if self.is_docker else self.state
        return list(state.glob("io.containerd.runtime.v2.task/*/*"))

    @property
    def log_file(self) -> Path:
        """The log of the runtime."""
        return self.root / f"{self.kind}.log"

    @property
    def cgroup(self) -> str:
        """Where the runtime and the parents of its containers run."""
        return f"/{self.name}-runtime"

    @property
    def cni_bin(self) -> str:
        """Where the CNI plugins are: `cni` beside another containerd, if it is there, else the system's."""
        own = os.path.join(self.bin_dir, "cni")
        return own if self.bin_dir and os.path.isdir(own) else CNI_BIN

    @property
    def env(self) -> dict[str, str]:
        """Environment for the runtime and ctr: their own folder first, then the system's."""
        path = f"{self.bin_dir}:{_SBIN}" if self.bin_dir else _SBIN
        kept = {key: value for key, value in os.environ.items() if key in ("HOME", "LANG")}
        return kept | {"PATH": path} | (_crio_environment(self.root) if self.is_crio else {})

    def ctr(self, *arguments: str, timeout_s: float = 120) -> str:
        """Run `ctr` against the containerd that runs the containers; returns its output."""
        program = shutil.which("ctr", path=self.env["PATH"])
        if program is None:
            raise TestbedError("ctr is missing: install the Debian package containerd")
        namespace = "moby" if self.is_docker else "k8s.io"
        command = [program, "--address", str(self.shim_address), "--namespace", namespace, *arguments]
        try:
            done = subprocess.run(
                command,
                env=self.env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=True,
            )
        except subprocess.CalledProcessError as error:
            raise TestbedError(f"ctr {' '.join(arguments)}: {error.stderr.strip()}") from error
        return done.stdout

    def pid(self) -> int | None:
        """The process that serves the CRI, or None when it does not run."""
        try:
            pid = int((self.root / f"{self.kind}.pid").read_text())
        except (OSError, ValueError):
            return None
        process = host.read_process(pid)
        return pid if process is not None and self.mark in process.argv else None


def _crio_environment(root: Path) -> dict[str, str]:
    """Variables that keep CRI-O and skopeo away from the machine's own settings of containers."""
    return {
        "CONTAINERS_REGISTRIES_CONF": str(root / "registries.conf"),
        "CONTAINERS_STORAGE_CONF": str(root / "storage.conf"),
        "XDG_RUNTIME_DIR": str(root),
    }
