"""Reads the addresses of this machine's interfaces from the kernel over netlink.

Owns: one dump request and the parsing of its answer. Source: rtnetlink(7).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

from pykubelet.base.kit.values import Value
from pykubelet.edges.host.fs.errors import HostError, host_error, translating

_RTM_NEWADDR = 20
_RTM_GETADDR = 22
_NLM_F_REQUEST_DUMP = 0x1 | 0x300
_NLMSG_ERROR = 2
_NLMSG_DONE = 3
_IFA_ADDRESS = 1
_IFA_LOCAL = 2
_IFA_FLAGS = 8
_IFA_F_BAD = 0x08 | 0x20 | 0x40  # duplicate, deprecated, tentative
_HEADER = struct.Struct("=IHHII")
_IFADDR = struct.Struct("=BBBBI")
_ATTRIBUTE = struct.Struct("=HH")


class InterfaceAddress(Value):
    """An address of an interface, in its usual spelling. `prefix`: in bits.

    `usable`: it is neither tentative nor deprecated nor a duplicate.
    """

    interface: str
    address: str
    prefix: int
    usable: bool = True

    @property
    def is_v6(self) -> bool:
        """Whether it is an IPv6 address."""
        return ":" in self.address


def parse_addresses(data: bytes) -> Iterator[tuple[int, InterfaceAddress] | None]:
    """Yield the interface index and address for each RTM_NEWADDR (with an empty interface name); None at the end of the dump."""
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, kind, _, _, _ = _HEADER.unpack_from(data, offset)
        if length < _HEADER.size or offset + length > len(data):
            raise HostError("netlink", "", "EBADMSG", "an answer is cut short")
        body = data[offset + _HEADER.size : offset + length]
        offset += (length + 3) & ~3
        if kind == _NLMSG_DONE:
            yield None
        elif kind == _NLMSG_ERROR:
            raise host_error("netlink", "", -struct.unpack_from("=i", body)[0])
        elif kind == _RTM_NEWADDR and (found := _address(body)) is not None:
            yield found


def _address(body: bytes) -> tuple[int, InterfaceAddress] | None:
    family, prefix, flags, _, index = _IFADDR.unpack_from(body)
    if family not in (socket.AF_INET, socket.AF_INET6):
        return None
    values: dict[int, bytes] = {}
    offset = _IFADDR.size
    while offset + _ATTRIBUTE.size <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, offset)
        if length < _ATTRIBUTE.size:
            break
        values[kind] = body[offset + _ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3
    raw = values.get(_IFA_LOCAL) or values.get(_IFA_ADDRESS)
    if raw is None:
        return None
    if _IFA_FLAGS in values:
        flags = struct.unpack("=I", values[_IFA_FLAGS])[0]
    return index, InterfaceAddress("", socket.inet_ntop(family, raw), prefix, not flags & _IFA_F_BAD)


def read_addresses() -> tuple[InterfaceAddress, ...]:
    """All addresses of all interfaces, in the kernel's order."""
    with translating("netlink", ""), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as link:
        link.settimeout(2.0)
        link.bind((0, 0))
        length = _HEADER.size + _IFADDR.size
        request = _HEADER.pack(length, _RTM_GETADDR, _NLM_F_REQUEST_DUMP, 1, 0)
        link.send(request + _IFADDR.pack(socket.AF_UNSPEC, 0, 0, 0, 0))
        found: list[tuple[int, InterfaceAddress]] = []
        while True:
            for item in parse_addresses(link.recv(1 << 18)):
                if item is None:
                    return _named(found)
                found.append(item)


def _named(found: list[tuple[int, InterfaceAddress]]) -> tuple[InterfaceAddress, ...]:
    names = dict(socket.if_nameindex())
    return tuple(InterfaceAddress(names.get(index, str(index)), a.address, a.prefix, a.usable) for index, a in found)
