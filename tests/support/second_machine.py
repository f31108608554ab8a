"""A second machine inside of the virtual machine: a container of systemd-nspawn with systemd, containerd and an empty copy of the image.

Owns the container, its root below /var/lib/machines, and its cable to this machine. The copy is a disk that `tools/testvm` attaches; what
is written to it stays until the virtual machine is switched off.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from support.typed import run
from support.unit import LONG_S, systemctl
from testbed import host
from testvm.machine import SECOND_ROOT

_SHARE = "/share"
_UNIT = "second-machine.service"
_NETWORK = Path("/run/systemd/network")
# as a machine has it that is not shared with another one
_ENVIRONMENT = {"SYSTEMD_NSPAWN_API_VFS_WRITABLE": "yes", "SYSTEMD_SECCOMP": "no"}

#: The variable that makes a kubelet one of an older release, and is exported to every command on the machine.
EMULATED = "PYKUBELET_EMULATED_VERSION"


class SecondMachine:
    """`name` at `address`, which reaches this machine at `gateway`; both are in a /24. Made once in the life of the virtual machine."""

    def __init__(self, name: str, address: str, gateway: str) -> None:
        self.name, self.address, self.gateway = name, address, gateway
        self.root = Path("/var/lib/machines", name)

    @property
    def prefix(self) -> tuple[str, ...]:
        """What to put before a command that is to run on it, as root."""
        words = ("systemd-run", "--quiet", f"--machine={self.name}", "--pipe", "--wait", "--collect", "--uid=root")
        exported = (f"--setenv={EMULATED}={os.environ[EMULATED]}",) if EMULATED in os.environ else ()
        return (*words, "--setenv=DEBIAN_FRONTEND=noninteractive", *exported, "--working-directory=/root", "--")

    def start(self) -> None:
        """Boot it; returns when its containerd answers."""
        self.root.mkdir(parents=True, exist_ok=True)
        run("mount", SECOND_ROOT, self.root)
        (self.root / "etc/hostname").write_text(f"{self.name}\n")
        (self.root / "etc/fstab").write_text("")
        (self.root / "etc/hosts").write_text(
            f"127.0.0.1 localhost\n{self.address} {self.name}\n{self.gateway} {os.uname().nodename}\n"
        )
        for path in (self.root / "etc/cni/net.d").iterdir():
            path.unlink()
        inside = self.root / "etc/systemd/network/10-host0.network"
        inside.write_text(f"[Match]\nName=host0\n\n[Network]\nAddress={self.address}/24\nGateway={self.gateway}\n")
        _NETWORK.mkdir(parents=True, exist_ok=True)
        (_NETWORK / f"10-{self.name}.network").write_text(
            f"[Match]\nName=ve-{self.name}\n\n[Network]\nAddress={self.gateway}/24\n"
        )
        run("networkctl", "reload")
        settings = [f"--setenv={name}={value}" for name, value in _ENVIRONMENT.items()]
        words = ["systemd-nspawn", "--quiet", "--boot", f"--directory={self.root}", f"--machine={self.name}"]
        words += ["--network-veth", "--capability=all", "--private-users=no", "--console=passive", "--link-journal=no"]
        words += ["--property=DeviceAllow=char-* rwm", "--property=DeviceAllow=block-* rwm"]
        words += ["--bind=/dev/kmsg", f"--bind-ro={_SHARE}"]
        run("systemd-run", "--quiet", f"--unit={_UNIT}", "--collect", *settings, *words)
        answers = host.wait_until(self._answers, LONG_S, 2)
        assert answers, run("journalctl", "-b", "-n", "100", "-u", _UNIT, check=False)

    def _answers(self) -> bool:
        command = [*self.prefix, "ctr", "version"]
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0

    def run(self, *command: str | Path, check: bool = True, text: str = "") -> str:
        """As `typed.run`, on this machine; a failure has the end of its journal."""
        words = [str(word).replace("$", "$$") for word in command]  # or systemd would put its variables there
        try:
            return run(*self.prefix, *words, check=check, text=text)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.journal()}") from None

    def journal(self) -> str:
        """The end of its journal."""
        return run(*self.prefix, "journalctl", "-b", "-n", "80", "-o", "short-monotonic", check=False)

    def stop(self) -> None:
        """End it with all its processes."""
        systemctl("stop", _UNIT, check=False)
        host.unmount_below(self.root)
        shutil.rmtree(self.root, ignore_errors=True)
        (_NETWORK / f"10-{self.name}.network").unlink(missing_ok=True)
        run("networkctl", "reload", check=False)
