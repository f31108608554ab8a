"""The SOCKS5 handshake that makes a connection to a proxy lead to a server.

The proxy resolves the name. Source: RFC 1928, and RFC 1929 for a user name and password.
"""

from __future__ import annotations

import asyncio
import ipaddress
from typing import cast

_VERSION, _NO_LOGIN, _PASSWORD = 5, 0, 2
_CONNECT = b"\x05\x01\x00"
_LENGTHS = {1: 4, 4: 16}
_NAME = 3
#: The most bytes that wait to be read: the longest answer has a name of 255.
_LONGEST = 512
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


class SocksHandshake(asyncio.Protocol):
    """The protocol of a connection to a proxy until `connect` has returned. Then another one takes the transport over."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._has_ended = False
        self._waiter: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's class does not derive from it

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`. Ends the connection if the proxy sends more than a handshake has."""
        self._received += data
        if len(self._received) > _LONGEST:
            assert self.transport is not None
            self.transport.abort()
            self._has_ended = True
        self._wake()

    def connection_lost(self, _: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._has_ended = True
        self._wake()

    async def connect(self, host: str, port: int, user: str, password: str) -> asyncio.Transport:
        """Connect to `host` through the proxy. Returns the transport, which leads there. Raises OSError."""
        assert self.transport is not None
        methods = bytes((_NO_LOGIN, _PASSWORD)) if user else bytes((_NO_LOGIN,))
        version, method = await self._ask(bytes((_VERSION, len(methods))) + methods, 2)
        if version != _VERSION or method not in methods:
            raise SocksError("the proxy speaks no SOCKS5, or wants another login")
        if method == _PASSWORD:
            login = b"\x01" + _counted(user) + _counted(password)
            if (await self._ask(login, 2))[1]:
                raise SocksError("the proxy refuses the login")
        _, refusal, _, kind = await self._ask(_CONNECT + _address(host) + port.to_bytes(2, "big"), 4)
        if refusal:
            raise SocksError(f"the proxy refuses to connect: {_REFUSALS[min(refusal, len(_REFUSALS) - 1)]}")
        length = _LENGTHS[kind] if kind in _LENGTHS else (await self._exactly(1))[0]
        await self._exactly(length + 2)
        if self._received or self._has_ended:
            raise SocksError("the proxy sends something before the connection is in use, or closes it")
        return self.transport

    async def _ask(self, data: bytes, length: int) -> bytes:
        assert self.transport is not None
        self.transport.write(data)
        return await self._exactly(length)

    async def _exactly(self, length: int) -> bytes:
        while len(self._received) < length:
            if self._has_ended:
                raise SocksError("the proxy closed the connection")
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        data = bytes(self._received[:length])
        del self._received[:length]
        return data

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


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
