"""An NFS server and an iSCSI target on loopback of the virtual machine, and how to silence them. Only for the virtual machine."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NFS_PORT = 2049
EXPORTS = Path("/etc/exports")


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
