"""Listening sockets of processes that were killed and cannot end, because one of their threads waits for a file system that hangs.

The kernel keeps all descriptors of such a process until its last thread has ended, so its successor finds its ports taken, and
connections to them are never answered. Nothing of a process that still runs is touched. Blocks for milliseconds.
Source: proc(5), sock_diag(7), `SOCK_DESTROY` in the kernel's `include/uapi/linux/sock_diag.h`.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator

from pykubelet.base.kit.log import Log
from pykubelet.edges.host.fs.errors import HostError, Translating, host_error
from pykubelet.edges.host.fs.files import read_text

log = Log("fs")
_LISTENS = "0A"
_SIGKILL = 1 << 8
_NETLINK_SOCK_DIAG = 4
_SOCK_DESTROY = 21
_REQUEST_ACK = 0x1 | 0x4
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBBI")
_TABLE_BYTES = 64 << 20


def is_dying(pid: int) -> bool:
    """Whether the process was killed and has not ended: its main thread has, and all others are to end."""
    try:
        if _state(f"/proc/{pid}/stat") != "Z":
            return False
        others = [name for name in os.listdir(f"/proc/{pid}/task") if name != str(pid)]
        return bool(others) and all(_is_killed(f"/proc/{pid}/task/{name}/status") for name in others)
    except (HostError, OSError):
        return False


def release_port(port: int) -> bool:
    """Close the TCP sockets that listen at `port` for processes that are dying. Returns whether there was one. HostError."""
    found = list(_listening(port))
    if not found:
        return False
    held = {inode for pid in _dying() for inode in _sockets_of(pid)}
    dead = [(family, address) for family, address, inode in found if inode in held]
    for family, address in dead:
        _destroy(family, address, port)
        log.warning("closed a port of a process that was killed and cannot end: a file system hangs", port=port)
    return bool(dead)


def _dying() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit() and is_dying(int(name)))


def _state(path: str) -> str:
    """The state of a process or thread: the field after its name, which may contain anything."""
    return read_text(path).rpartition(")")[2].strip()[:1]


def _is_killed(path: str) -> bool:
    pending = (line.split()[1] for line in read_text(path).splitlines() if line.startswith(("SigPnd:", "ShdPnd:")))
    return any(int(mask, 16) & _SIGKILL for mask in pending)


def _sockets_of(pid: int) -> Iterator[str]:
    """The inodes of the sockets that the threads of a process have."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        folder = f"/proc/{pid}/task/{thread}/fd"
        try:
            for descriptor in os.listdir(folder):
                kind, _, inode = os.readlink(f"{folder}/{descriptor}").partition(":[")
                if kind == "socket":
                    yield inode.rstrip("]")
        except OSError:
            continue  # it has just ended


def _listening(port: int) -> Iterator[tuple[int, bytes, str]]:
    """Family, address and inode of each socket that listens at the port."""
    for family, table in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        try:
            lines = read_text(f"/proc/self/net/{table}", _TABLE_BYTES).splitlines()[1:]
        except HostError:
            continue
        for line in lines:
            fields = line.split()
            address, _, its_port = fields[1].partition(":")
            if fields[3] == _LISTENS and int(its_port, 16) == port:
                words = (int(address[at : at + 8], 16) for at in range(0, len(address), 8))
                yield family, b"".join(word.to_bytes(4, sys.byteorder) for word in words), fields[9]


def _destroy(family: int, address: bytes, port: int) -> None:
    """End one listening socket, whoever has it."""
    own = (
        struct.pack("!HH", port, 0)
        + address.ljust(16, b"\0")
        + bytes(16)
        + struct.pack("=III", 0, ~0 & 0xFFFFFFFF, ~0 & 0xFFFFFFFF)
    )
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, 1 << int(_LISTENS, 16)) + own
    with (
        Translating("close", f"port {port}"),
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as link,
    ):
        link.settimeout(2.0)
        link.send(_HEADER.pack(_HEADER.size + len(body), _SOCK_DESTROY, _REQUEST_ACK, 1, 0) + body)
        answer = link.recv(1 << 16)
    number = -struct.unpack_from("=i", answer, _HEADER.size)[0]
    if number:
        raise host_error("close", f"port {port}", number)


def peer_is_dying(link: socket.socket) -> bool:
    """Whether the process at the other end of a unix socket is dying."""
    pid = struct.unpack("=iII", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    return is_dying(pid)
