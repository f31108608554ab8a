"""Reads the addresses of this machine's interfaces from the kernel over netlink, and adds and removes one.

Owns: the requests and the parsing of their answers. Source: rtnetlink(7).
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import struct
from collections.abc import Iterator

from pykubelet.base.kit.values import Value
from pykubelet.edges.host.fs.errors import HostError, Translating, host_error

_RTM_NEWADDR = 20
_RTM_DELADDR = 21
_RTM_GETADDR = 22
_NLM_F_REQUEST_ACK = 0x1 | 0x4
_NLM_F_CREATE = 0x400
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
    with Translating("netlink", ""), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as link:
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


def add_address(interface: str, address: str) -> bool:
    """Give an interface a further address, for this machine alone (a prefix of all bits). Returns False if it has it. Raises HostError."""
    return _change_address(_RTM_NEWADDR, _NLM_F_REQUEST_ACK | _NLM_F_CREATE, interface, address, errno.EEXIST)


def remove_address(interface: str, address: str) -> bool:
    """Take an address from an interface. Returns False if it does not have it. Raises HostError."""
    return _change_address(_RTM_DELADDR, _NLM_F_REQUEST_ACK, interface, address, errno.EADDRNOTAVAIL)


def _change_address(kind: int, flags: int, interface: str, address: str, is_done: int) -> bool:
    parsed = ipaddress.ip_address(address)
    raw, family = parsed.packed, socket.AF_INET if parsed.version == 4 else socket.AF_INET6
    with (
        Translating("netlink", interface),
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as link,
    ):
        link.settimeout(2.0)
        link.bind((0, 0))
        body = _IFADDR.pack(family, parsed.max_prefixlen, 0, 0, socket.if_nametoindex(interface))
        for attribute in (_IFA_LOCAL, _IFA_ADDRESS):
            body += _ATTRIBUTE.pack(_ATTRIBUTE.size + len(raw), attribute) + raw
        link.send(_HEADER.pack(_HEADER.size + len(body), kind, flags, 1, 0) + body)
        number = -struct.unpack_from("=i", link.recv(1 << 16), _HEADER.size)[0]
    if number and number != is_done:
        raise host_error("netlink", interface, number)
    return not number
