"""An NFS server and an iSCSI target on loopback of the virtual machine, and how to silence them. Only for the virtual machine."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NFS_PORT = 2049
EXPORTS = Path("/etc/exports")
MULTIPATH_CONFIG = Path("/etc/multipath.conf")


def run(*words: str) -> str:
    """The output of a command; an AssertionError with what it prints when it fails."""
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}"
    return done.stdout


@contextmanager
def nfs_server(export: Path) -> Iterator[None]:
    """The kernel's NFS server with `export` for everybody, over IPv4 and IPv6; stopped at the end."""
    export.mkdir(parents=True, exist_ok=True)
    EXPORTS.write_text(f"{export} *(rw,sync,no_subtree_check,no_root_squash,insecure)\n")
    run("systemctl", "start", "nfs-server.service")
    try:
        yield
    finally:
        EXPORTS.write_text("")
        run("systemctl", "stop", "nfs-server.service")


@contextmanager
def silenced(port: int) -> Iterator[None]:
    """What is sent to the server's port over IPv4 is lost for as long as this lasts: the server seems to hang."""
    rule = ("OUTPUT", "-o", "lo", "-p", "tcp", "--dport", str(port), "-j", "DROP")
    run("iptables", "-w", "-I", *rule)
    try:
        yield
    finally:
        run("iptables", "-w", "-D", *rule)


@contextmanager
def multipathd() -> Iterator[None]:
    """The daemon that makes one device of several paths to a disk, for disks that have several paths."""
    MULTIPATH_CONFIG.write_text("defaults {\n find_multipaths yes\n}\n")
    run("systemctl", "restart", "multipathd.service")
    try:
        yield
    finally:
        run("systemctl", "stop", "multipathd.socket", "multipathd.service")
        MULTIPATH_CONFIG.unlink()


class IscsiTarget:
    """The user-space iSCSI target of the machine: disks that are sparse files, from logical unit 1 on."""

    IQN = "iqn.2026-11.com.example:storage"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add_disk(self, lun: int, size: int = 64 << 20) -> None:
        """One more logical unit."""
        image = self._folder / f"disk-{lun}"
        with image.open("wb") as file:
            file.truncate(size)
        self._admin("new", "logicalunit", "--lun", str(lun), "-b", str(image))

    def require(self, user: str, password: str) -> None:
        """Ask who logs in for this name and password."""
        account = ("--user", user, "--password", password)
        run("tgtadm", "--lld", "iscsi", "--op", "new", "--mode", "account", *account)
        self._admin("bind", "account", "--user", user)

    def sessions(self) -> list[str]:
        """The sessions of this node with the target."""
        done = subprocess.run(["iscsiadm", "-m", "session"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        return [line for line in done.stdout.splitlines() if self.IQN in line]

    def records(self) -> list[str]:
        """The node's records of the target."""
        done = subprocess.run(["iscsiadm", "-m", "node"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        return [line for line in done.stdout.splitlines() if self.IQN in line]

    @contextmanager
    def running(self) -> Iterator[IscsiTarget]:
        """The target answers on loopback, for everybody; stopped at the end, with all sessions ended."""
        self._folder.mkdir(parents=True)
        run("modprobe", "iscsi_tcp")
        run("systemctl", "start", "tgt.service", "iscsid.socket")
        try:
            self._admin("new", "target", "-T", self.IQN)
            self._admin("bind", "target", "-I", "ALL")
            yield self
        finally:
            subprocess.run(["iscsiadm", "-m", "node", "-u"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
            subprocess.run(["iscsiadm", "-m", "node", "-o", "delete"], stdin=subprocess.DEVNULL, check=False)
            run("systemctl", "stop", "tgt.service")

    def _admin(self, operation: str, mode: str, *words: str) -> None:
        run("tgtadm", "--lld", "iscsi", "--op", operation, "--mode", mode, "--tid", "1", *words)
