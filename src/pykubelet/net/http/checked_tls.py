"""TLS contexts that refuse a key exchange which costs this side much and the peer nothing, before OpenSSL computes it.

OpenSSL uses the finite-field groups ffdhe2048 to ffdhe8192 where the peer asks for them, and Python's `ssl` can only leave them out by
allowing a single group. One exchange in ffdhe8192 takes 0.1 s of CPU, in which the event loop does nothing else. The reference kubelet
has none of them. So the peer's hello is read before OpenSSL gets it. What handshakes cost beyond the usual is counted.

Source: RFC 8446 sections 4.1, 4.2.7, 4.2.8 and 5.1; RFC 8701 (values that clients send to be ignored).
"""

from __future__ import annotations

import asyncio
import ssl
import struct
import time
from collections.abc import Iterator
from typing import Any

#: The most bytes that a peer may send in a handshake: more than a chain of four certificates with RSA keys of 8,192 bits. OpenSSL takes
#: 100 KiB, which is 40 ms of CPU for a chain of many small ones.
MAX_HANDSHAKE_BYTES = 16 << 10
#: How many records with less data than `SMALL_RECORD_BYTES` a client may send until it is authorized. Event loops read 256 KiB at once,
#: which may be 11,000 records of one byte: 5 ms of CPU for each connection.
MAX_SMALL_RECORDS = 128
SMALL_RECORD_BYTES = 1024
#: The CPU time that a handshake may take without being counted.
USUAL_CPU_S = 0.002
#: No hello is longer: OpenSSL's limit is 20,000 bytes for that of a server, and a record for that of a client.
MAX_HELLO_BYTES = 20_000
_RECORD_HEAD, _MESSAGE_HEAD = 5, 4
_CHANGE_CIPHER_SPEC, _ALERT, _HANDSHAKE = 20, 21, 22
_CLIENT_HELLO, _SERVER_HELLO = 1, 2
SUPPORTED_GROUPS, _KEY_SHARE = 10, 51
#: Groups that every OpenSSL here has: P-256, P-384, P-521 and X25519.
_USUAL = frozenset({23, 24, 25, 29})
#: With X448, and the hybrid groups with ML-KEM: no exchange takes more than two milliseconds.
_CHEAP = _USUAL | {30, 0x11EB, 0x11EC, 0x11ED} | {value << 8 | value for value in range(0x0A, 0x100, 0x10)}


class HelloReader:
    """Collects the first message of a handshake from the bytes of a connection, in time linear in their number."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._message = bytearray()

    def feed(self, data: bytes) -> bytes | None:
        """Take the next bytes. Returns the message once it is there, and nothing if the peer begins with something else, which OpenSSL
        refuses or takes for TLS without groups. Raises ssl.SSLError if it is too long."""
        self._data += data
        at = 0
        while at < len(self._data):
            if self._data[at] not in (_CHANGE_CIPHER_SPEC, _ALERT, _HANDSHAKE):
                if self._message:
                    raise _refused("the peer's hello is interrupted")
                return b""
            if len(self._data) - at < _RECORD_HEAD:
                break
            kind, size = struct.unpack_from(">BxxH", self._data, at)
            if len(self._data) - at < _RECORD_HEAD + size:
                break
            if kind == _HANDSHAKE:
                self._message += self._data[at + _RECORD_HEAD : at + _RECORD_HEAD + size]
                if (message := self._whole()) is not None:
                    return message
            at += _RECORD_HEAD + size
        del self._data[:at]
        if len(self._message) + len(self._data) > MAX_HELLO_BYTES:
            raise _refused("the peer's hello is too long")
        return None

    def _whole(self) -> bytes | None:
        """The first message, if it is whole."""
        while self._message[:_MESSAGE_HEAD] == bytes(_MESSAGE_HEAD):  # a HelloRequest, which OpenSSL passes over too
            del self._message[:_MESSAGE_HEAD]
        size = _MESSAGE_HEAD + int.from_bytes(self._message[1:_MESSAGE_HEAD], "big")
        return bytes(self._message[:size]) if len(self._message) >= max(size, _MESSAGE_HEAD) else None


class _CheckedTlsObject(ssl.SSLObject):
    """One connection. `incoming`: where the event loop puts what the peer sends. `maker`: where costs are counted.

    `small_records`: how many more the peer may send; None: any number.
    """

    maker: CheckedTls
    incoming: ssl.MemoryBIO
    taken: int
    hello: HelloReader | None
    cpu_s: float
    small_records: int | None

    def read(self, *args: Any, **more: Any) -> Any:
        """As the base class. Raises ssl.SSLError after too many small records."""
        found: Any = super().read(*args, **more)
        if self.small_records is not None and (found if isinstance(found, int) else len(found)) < SMALL_RECORD_BYTES:
            self.small_records -= 1
            if self.small_records < 0:
                raise _refused("the peer sends too many small records")
        return found

    def do_handshake(self) -> None:
        """As the base class. Raises ssl.SSLError if the peer asks for too much."""
        began, before = time.thread_time(), self.cpu_s
        try:
            self._go_on()
        finally:
            self.cpu_s += time.thread_time() - began
            self.maker.unusual_cpu_s += _unusual(self.cpu_s) - _unusual(before)

    def _go_on(self) -> None:
        behind = self._check() if self.incoming.pending else b""
        try:
            super().do_handshake()
        except ssl.SSLWantReadError:
            if behind:
                raise _refused("the peer sends too much in its handshake") from None
            raise
        self.incoming.write(behind)  # requests, for example

    def _check(self) -> bytes:
        """Check what has come. Returns what OpenSSL may not take for the handshake."""
        # OpenSSL asks for more only when it has taken all, so that everything here is new
        data = self.incoming.read()
        most = MAX_HANDSHAKE_BYTES - self.taken
        now, behind = data[:most], data[most:]
        self.taken += len(now)
        if self.hello is not None and (message := self.hello.feed(now)) is not None:
            self.hello = None
            is_cheap = is_cheap_for_server if self.server_side else is_cheap_for_client
            if message and not is_cheap(message):
                raise _refused("the peer asks for a key exchange in a group that is not used")
        self.incoming.write(now)
        return behind


class CheckedTls(ssl.SSLContext):
    """A context as `ssl.SSLContext`, for event loops. `unusual_cpu_s`: what handshakes have cost above `USUAL_CPU_S` each."""

    sslobject_class = _CheckedTlsObject
    unusual_cpu_s = 0.0

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: Any = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """As the base class."""
        made = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        assert isinstance(made, _CheckedTlsObject)
        made.maker, made.incoming = self, incoming
        made.taken, made.hello, made.cpu_s = 0, HelloReader(), 0.0
        made.small_records = MAX_SMALL_RECORDS if server_side else None
        return made

    def take_unusual_cpu_s(self) -> float:
        """`unusual_cpu_s` since the last call."""
        taken, self.unusual_cpu_s = self.unusual_cpu_s, 0.0
        return taken


def unusual_cpu_s(transport: asyncio.BaseTransport) -> float:
    """What the handshake of a connection has cost above `USUAL_CPU_S`: CPU seconds."""
    connection = transport.get_extra_info("ssl_object")
    return _unusual(connection.cpu_s) if isinstance(connection, _CheckedTlsObject) else 0.0


def allow_small_records(transport: asyncio.BaseTransport) -> None:
    """Let the peer of a connection send any number of them."""
    connection = transport.get_extra_info("ssl_object")
    if isinstance(connection, _CheckedTlsObject):
        connection.small_records = None


def _unusual(cpu_s: float) -> float:
    return max(cpu_s - USUAL_CPU_S, 0.0)


def is_cheap_for_server(message: bytes) -> bool:
    """Whether any OpenSSL answers this ClientHello with a cheap group. Pure.

    It takes the group of a key share that it knows, or asks for one in the client's list: the first that it knows, or its favorite.
    """
    try:
        extensions = dict(hello_extensions(message))
        groups = listed_groups(extensions[SUPPORTED_GROUPS]) if SUPPORTED_GROUPS in extensions else ()
        shares = _shared_groups(extensions[_KEY_SHARE]) if _KEY_SHARE in extensions else ()
    except (struct.error, IndexError, ValueError):
        return False
    first = next((at for at, group in enumerate(groups) if group in _USUAL), len(groups))
    return _CHEAP.issuperset(shares) and _CHEAP.issuperset(groups[:first])


def is_cheap_for_client(message: bytes) -> bool:
    """Whether the server chooses a cheap group in this ServerHello, which may ask for another hello. Pure."""
    try:
        share = dict(hello_extensions(message)).get(_KEY_SHARE)
        return share is None or struct.unpack_from(">H", share)[0] in _CHEAP
    except (struct.error, IndexError, ValueError):
        return False


def hello_extensions(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The extensions of a hello by their numbers. Raises struct.error, IndexError and ValueError if it is malformed. Pure."""
    kind = message[0]
    if kind not in (_CLIENT_HELLO, _SERVER_HELLO):
        raise ValueError("no hello")
    at = _MESSAGE_HEAD + 2 + 32
    at += 1 + message[at]
    if kind == _CLIENT_HELLO:
        at += 2 + struct.unpack_from(">H", message, at)[0]
        at += 1 + message[at]
    else:
        at += 2 + 1
    if at == len(message):
        return
    [size] = struct.unpack_from(">H", message, at)
    at += 2
    if at + size != len(message):
        raise ValueError("wrong length of extensions")
    while at < len(message):
        number, size = struct.unpack_from(">HH", message, at)
        at += 4 + size
        if at > len(message):
            raise ValueError("wrong length of an extension")
        yield number, message[at - size : at]


def listed_groups(extension: bytes) -> tuple[int, ...]:
    """The groups in the extension of a client. Raises struct.error if it is malformed. Pure."""
    [size] = struct.unpack_from(">H", extension)
    return struct.unpack_from(f">{size // 2}H", extension, 2)


def _shared_groups(extension: bytes) -> tuple[int, ...]:
    """The groups of the keys that a client sends."""
    found, at = [], 2
    while at < len(extension):
        group, size = struct.unpack_from(">HH", extension, at)
        found.append(group)
        at += 4 + size
    return tuple(found)


def _refused(why: str) -> ssl.SSLError:
    error = ssl.SSLError(ssl.SSL_ERROR_SSL, why)
    error.library, error.reason = "", why  # which only OpenSSL's own errors have
    return error
