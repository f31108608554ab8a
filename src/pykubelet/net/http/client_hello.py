"""Chooses the TLS context of a connection by the key exchange groups that the client offers, before the handshake.

In Python's `ssl`, a context has either one group (`SSLContext.set_ecdh_curve`) or OpenSSL's own choice of groups. A server
that may use several therefore has a context for each. The ClientHello is peeked at and stays in the socket for the handshake.

Source: RFC 8446 sections 4.1.2, 4.2.7 and 5.1; RFC 8422 section 5.1.1.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Mapping

from pykubelet.base.kit.readiness import wait_ready
from pykubelet.net.http.checked_tls import SUPPORTED_GROUPS, CheckedTls, hello_extensions, listed_groups

_RECORD_HEAD = 5
_HELLO_BYTES = _RECORD_HEAD + (1 << 14)


class ContextsByGroup:
    """Chooses between contexts. `contexts`: by the number of the group in TLS, the preferred one first; each allows only one."""

    def __init__(self, contexts: Mapping[int, CheckedTls]) -> None:
        self._contexts = dict(contexts)

    async def for_client(self, end: socket.socket, within_s: float) -> CheckedTls:
        """The first context that the client can use. If there is none, or no ClientHello arrives in time, the first of all
        contexts, with which the handshake fails."""
        offered = offered_groups(await _peek(end, within_s))
        usable = (context for group, context in self._contexts.items() if group in offered)
        return next(usable, next(iter(self._contexts.values())))


def offered_groups(data: bytes) -> frozenset[int]:
    """The groups in the ClientHello at the start of `data`; none if it lacks the extension, is incomplete or malformed. Pure."""
    try:
        [size] = struct.unpack_from(">xxxH", data)
        extensions = dict(hello_extensions(data[_RECORD_HEAD : _RECORD_HEAD + size]))
        return frozenset(listed_groups(extensions[SUPPORTED_GROUPS]))
    except (struct.error, LookupError, ValueError):
        return frozenset()


async def _peek(end: socket.socket, within_s: float) -> bytes:
    """Peek at the first record of the connection; only a part of it if the connection ends or `within_s` passes."""
    data = b""
    try:
        async with asyncio.timeout(within_s):
            while True:
                wanted = _RECORD_HEAD
                if len(data) >= _RECORD_HEAD:
                    wanted += struct.unpack_from(">H", data, 3)[0]
                if len(data) >= min(wanted, _HELLO_BYTES):
                    return data
                end.setsockopt(
                    socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted
                )  # otherwise the bytes that were peeked at would wake the task again and again
                await wait_ready(end.fileno())
                before, data = data, end.recv(_HELLO_BYTES, socket.MSG_PEEK)
                if len(data) <= len(before):
                    return data  # the client sends nothing more
    except (TimeoutError, OSError):
        return data
    finally:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
