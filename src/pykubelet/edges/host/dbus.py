"""As much of D-Bus as is needed to ask systemd for a slice: calls, answers and signals over one socket.

Owns: the wire format (little-endian only) and one blocking connection. Not here: what is asked (`systemd`).
Source: the D-Bus specification, "Message Protocol" and "Authentication Protocol" (EXTERNAL).
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any

from pykubelet.base.kit.values import Value, field
from pykubelet.edges.host.errors import HostError, translating

METHOD_CALL, METHOD_RETURN, ERROR, SIGNAL = 1, 2, 3, 4
PATH, INTERFACE, MEMBER, ERROR_NAME, REPLY_SERIAL, DESTINATION, SENDER, SIGNATURE = range(1, 9)
_FIELD_TYPES = {
    PATH: "o",
    INTERFACE: "s",
    MEMBER: "s",
    ERROR_NAME: "s",
    REPLY_SERIAL: "u",
    DESTINATION: "s",
    SENDER: "s",
    SIGNATURE: "g",
}
_FIXED = {"y": "<B", "q": "<H", "n": "<h", "i": "<i", "u": "<I", "b": "<I", "x": "<q", "t": "<Q", "d": "<d"}
_ALIGN = {"y": 1, "g": 1, "v": 1, "q": 2, "n": 2, "x": 8, "t": 8, "d": 8, "(": 8, "{": 8}
_LIMIT = 1 << 24


class DBusError(Exception):
    """An answer that is an error: `name` (`org.freedesktop.systemd1.UnitExists`) and the sender's words."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(name, message)
        self.name = name
        self.message = message

    def __str__(self) -> str:
        return self.message or self.name


class Variant(Value):
    """A value with its own type."""

    signature: str
    value: Any


class Message(Value):
    """`fields` by number; `body` decoded by its signature."""

    kind: int
    serial: int
    fields: Mapping[int, Any] = field(default_factory=dict)
    body: tuple[Any, ...] = ()


def split_signature(signature: str) -> list[str]:
    """The complete types of a signature: `sa(sv)` is `s` and `a(sv)`."""
    types, at = [], 0
    while at < len(signature):
        end = _end_of_type(signature, at)
        types.append(signature[at:end])
        at = end
    return types


def _end_of_type(signature: str, at: int) -> int:
    if signature[at] == "a":
        return _end_of_type(signature, at + 1)
    if signature[at] not in "({":
        return at + 1
    depth, end = 1, at + 1
    while depth:
        depth += {"(": 1, "{": 1, ")": -1, "}": -1}.get(signature[end], 0)
        end += 1
    return end


def _pad(out: bytearray, kind: str) -> None:
    align = _ALIGN.get(kind[0], 4)
    out += b"\0" * (-len(out) % align)


def _encode(out: bytearray, kind: str, value: Any) -> None:
    _pad(out, kind)
    if kind in _FIXED:
        out += struct.pack(_FIXED[kind], value)
    elif kind in ("s", "o"):
        data = value.encode()
        out += struct.pack("<I", len(data)) + data + b"\0"
    elif kind == "g":
        out += bytes([len(value)]) + value.encode() + b"\0"
    elif kind == "v":
        _encode(out, "g", value.signature)
        _encode(out, value.signature, value.value)
    elif kind[0] == "a":
        length_at = len(out)
        out += b"\0\0\0\0"
        _pad(out, kind[1:])
        start = len(out)
        for item in value:
            _encode(out, kind[1:], item)
        struct.pack_into("<I", out, length_at, len(out) - start)
    else:
        for part, item in zip(split_signature(kind[1:-1]), value, strict=True):
            _encode(out, part, item)


def encode_message(message: Message) -> bytes:
    """The bytes of a message; its body's types are in the field SIGNATURE."""
    body = bytearray()
    types = split_signature(message.fields.get(SIGNATURE, ""))
    for kind, value in zip(types, message.body, strict=True):
        _encode(body, kind, value)
    out = bytearray(struct.pack("<cBBBII", b"l", message.kind, 0, 1, len(body), message.serial))
    listed = [(number, Variant(_FIELD_TYPES[number], value)) for number, value in message.fields.items()]
    _encode(out, "a(yv)", listed)
    _pad(out, "(")
    return bytes(out + body)


class _Reader:
    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    def read(self, kind: str) -> Any:
        self.at += -self.at % _ALIGN.get(kind[0], 4)
        if kind in _FIXED:
            value = struct.unpack_from(_FIXED[kind], self.data, self.at)[0]
            self.at += struct.calcsize(_FIXED[kind])
            return bool(value) if kind == "b" else value
        if kind in ("s", "o"):
            return self._text(self.read("u"))
        if kind == "g":
            return self._text(self.read("y"))
        if kind == "v":
            signature = self.read("g")
            return Variant(signature, self.read(signature))
        if kind[0] == "a":
            length = self.read("u")
            self.at += -self.at % _ALIGN.get(kind[1], 4)
            end = self.at + length
            items = []
            while self.at < end:
                items.append(self.read(kind[1:]))
            return items
        return tuple(self.read(part) for part in split_signature(kind[1:-1]))

    def _text(self, length: int) -> str:
        text = self.data[self.at : self.at + length].decode("utf-8", "replace")
        self.at += length + 1
        return text


def decode_message(data: bytes) -> Message:
    """The message in `data`; ValueError when it is none."""
    if data[:1] != b"l":
        raise ValueError("not a little-endian D-Bus message")
    try:
        kind, serial = data[1], struct.unpack_from("<I", data, 8)[0]
        reader = _Reader(data, 12)
        fields = {number: variant.value for number, variant in reader.read("a(yv)")}
        reader.at += -reader.at % 8
        body = _Reader(data[reader.at :])
        values = tuple(body.read(part) for part in split_signature(fields.get(SIGNATURE, "")))
    except (struct.error, IndexError) as error:
        raise ValueError("a D-Bus message is cut short") from error
    return Message(kind, serial, fields, values)


def message_length(head: bytes) -> int:
    """The length of the whole message whose first 16 bytes these are."""
    body, fields = struct.unpack_from("<I", head, 4)[0], struct.unpack_from("<I", head, 12)[0]
    return int(16 + fields + (-fields % 8) + body)


class Connection:
    """One authenticated connection to the peer at a unix socket. `is_bus`: a message bus, which wants a Hello first.

    Not for two threads at once. HostError: the peer is not there, does not answer in time, or talks nonsense.
    """

    def __init__(self, path: str, timeout_s: float, *, is_bus: bool) -> None:
        self._path = path
        self._serial = 0
        self._signals: list[Message] = []
        with translating("connect", path):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            try:
                self._socket.settimeout(timeout_s)
                self._socket.connect(path)
                self._authenticate()
            except BaseException:
                self._socket.close()
                raise
        if is_bus:
            self.call("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", "Hello")

    def close(self) -> None:
        self._socket.close()

    def call(
        self, destination: str, path: str, interface: str, member: str, signature: str = "", body: tuple[Any, ...] = ()
    ) -> tuple[Any, ...]:
        """Call a method and wait for its answer; DBusError when that is an error. Signals on the way are kept."""
        self._serial += 1
        fields = {PATH: path, INTERFACE: interface, MEMBER: member, DESTINATION: destination}
        if signature:
            fields[SIGNATURE] = signature
        with translating("send", self._path):
            self._socket.sendall(encode_message(Message(METHOD_CALL, self._serial, fields, body)))
        while True:
            message = self._receive()
            if message.kind == SIGNAL:
                self._signals.append(message)
            elif message.fields.get(REPLY_SERIAL) == self._serial:
                if message.kind == ERROR:
                    text = message.body[0] if message.body and isinstance(message.body[0], str) else ""
                    raise DBusError(message.fields.get(ERROR_NAME, ""), text)
                return message.body

    def wait_signal(self, member: str, wanted: Callable[[tuple[Any, ...]], bool]) -> tuple[Any, ...]:
        """The body of the first signal that is wanted, among those kept and those that come."""
        while True:
            message = self._signals.pop(0) if self._signals else self._receive()
            if message.kind == SIGNAL and message.fields.get(MEMBER) == member and wanted(message.body):
                return message.body

    def _authenticate(self) -> None:
        identity = str(os.getuid()).encode().hex().encode()
        self._socket.sendall(b"\0AUTH EXTERNAL " + identity + b"\r\n")
        answer = b""
        while not answer.endswith(b"\r\n"):
            part = self._socket.recv(1)  # one byte: what follows belongs to the messages
            if not part or len(answer) > 1024:
                raise ConnectionResetError(104, "no answer to the authentication")
            answer += part
        if not answer.startswith(b"OK"):
            raise PermissionError(13, f"authentication refused: {answer.decode('ascii', 'replace').strip()}")
        self._socket.sendall(b"BEGIN\r\n")

    def _receive(self) -> Message:
        with translating("receive", self._path):
            head = self._read(16)
            length = message_length(head)
            if length > _LIMIT:
                raise ConnectionResetError(104, "an answer is too long")
            data = head + self._read(length - 16)
        try:
            return decode_message(data)
        except ValueError as error:
            raise HostError("receive", self._path, "EBADMSG", str(error)) from error

    def _read(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            part = self._socket.recv(length - len(data))
            if not part:
                raise ConnectionResetError(104, "the connection was closed")
            data += part
        return bytes(data)
