"""The SOCKS5 handshake that makes a connection to a proxy lead to a server.

The proxy resolves the name. Source: RFC 1928, and RFC 1929 for a user name and password.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket

_VERSION, _NO_LOGIN, _PASSWORD = 5, 0, 2
_CONNECT = b"\x05\x01\x00"
_LENGTHS = {1: 4, 4: 16}
_NAME = 3
_REFUSALS = (
    "",
    "it failed",
    "its rules do not allow it",
    "the network is unreachable",
    "the host is unreachable",
    "the connection was refused",
    "the time to live has expired",
    "it does not know the command",
    "it does not know the kind of address",
)


class SocksError(OSError):
    """The proxy does not connect. The text is the reason."""


async def connect_through(made: socket.socket, host: str, port: int, user: str, password: str) -> None:
    """Connect to `host` through the proxy. `made`: a non-blocking connection to the proxy. Raises OSError."""
    loop = asyncio.get_running_loop()
    methods = bytes((_NO_LOGIN, _PASSWORD)) if user else bytes((_NO_LOGIN,))
    await loop.sock_sendall(made, bytes((_VERSION, len(methods))) + methods)
    version, method = await _exactly(made, 2)
    if version != _VERSION or method not in methods:
        raise SocksError("the proxy speaks no SOCKS5, or wants another login")
    if method == _PASSWORD:
        await loop.sock_sendall(made, b"\x01" + _counted(user) + _counted(password))
        if (await _exactly(made, 2))[1]:
            raise SocksError("the proxy refuses the login")
    await loop.sock_sendall(made, _CONNECT + _address(host) + port.to_bytes(2, "big"))
    _, refusal, _, kind = await _exactly(made, 4)
    if refusal:
        raise SocksError(f"the proxy refuses to connect: {_REFUSALS[min(refusal, len(_REFUSALS) - 1)]}")
    length = _LENGTHS[kind] if kind in _LENGTHS else (await _exactly(made, 1))[0]
    await _exactly(made, length + 2)


def _address(host: str) -> bytes:
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return bytes((_NAME,)) + _counted(host)
    return bytes((1 if ip.version == 4 else 4,)) + ip.packed


def _counted(text: str) -> bytes:
    data = text.encode()
    if len(data) > 255:
        raise SocksError("a name is too long for SOCKS5")
    return bytes((len(data),)) + data


async def _exactly(made: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        part = await asyncio.get_running_loop().sock_recv(made, length - len(data))
        if not part:
            raise SocksError("the proxy closed the connection")
        data += part
    return data
