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

CONTAINERD, CRIO = "containerd", "crio"
CNI_BIN = "/usr/lib/cni"
_SBIN = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Testbed:
    """A private runtime, containerd or CRI-O. Written to the folder at the first `up`, so that later calls find the same one.

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
        """Whether the runtime is CRI-O, which has neither `ctr` nor containerd's other services."""
        return self.kind == CRIO

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
        """The runtime's configuration; its path marks the process as this testbed's."""
        return self.root / f"{self.kind}.toml"

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

    def ctr(self, *arguments: str, namespace: str = "k8s.io", timeout_s: float = 120) -> str:
        """Run `ctr` against this containerd; returns its output."""
        program = shutil.which("ctr", path=self.env["PATH"])
        if program is None:
            raise TestbedError("ctr is missing: install the Debian package containerd")
        command = [program, "--address", str(self.socket), "--namespace", namespace, *arguments]
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
        """The process of this containerd, or None when it does not run."""
        try:
            pid = int((self.root / f"{self.kind}.pid").read_text())
        except (OSError, ValueError):
            return None
        process = host.read_process(pid)
        return pid if process is not None and str(self.config_file) in process.argv else None


def _crio_environment(root: Path) -> dict[str, str]:
    """Variables that keep CRI-O and skopeo away from the machine's own settings of containers."""
    return {
        "CONTAINERS_REGISTRIES_CONF": str(root / "registries.conf"),
        "CONTAINERS_STORAGE_CONF": str(root / "storage.conf"),
        "XDG_RUNTIME_DIR": str(root),
    }
