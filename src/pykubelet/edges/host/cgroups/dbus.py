"""A D-Bus connection that many threads can use at once: method calls, their answers, and signals.

Owns: the socket, the authentication and the reading thread. jeepney encodes and decodes the messages. Not here: the called
methods (`systemd.py`). Source: the D-Bus specification, "Message Protocol" and "Authentication Protocol" (EXTERNAL).
"""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Any

from jeepney import DBusAddress, HeaderFields, Message, MessageFlag, MessageType, Parser, new_method_call

from pykubelet.base.kit.flight import start_thread
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import Value
from pykubelet.edges.host.fs.errors import HostError, Translating

log = Log("dbus")

BUS = ("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus")
_LONGEST_MESSAGE = 1 << 24
_LONGEST_ANSWER_LINE = 1024

#: Destination (the well-known name), object path, interface.
Address = tuple[str, str, str]


class DBusError(Exception):
    """The answer to a method call was an error: `name` (`org.freedesktop.systemd1.UnitExists`) and the peer's text."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(name, message)
        self.name = name
        self.message = message

    def __str__(self) -> str:
        return self.message or self.name


class ConnectionLost(Exception):
    """The connection ended before the answer or the signal came. It is not known whether the call took effect."""


class DBusMessage(Value):
    """An answer or a signal. `sender`: the peer's unique name on the bus; None without a bus."""

    sender: str | None
    body: tuple[Any, ...]


#: Signals as they come; None: the connection has ended.
Signals = SimpleQueue[DBusMessage | None]


class DBusConnection:
    """One authenticated connection to the peer at a unix socket. `is_bus`: the peer is a message bus, which expects a Hello.

    Any number of threads may call at once. The constructor raises HostError if nothing listens on the socket, if the peer does
    not answer in time, or if it refuses the authentication.
    """

    def __init__(self, path: str, timeout_s: float, *, is_bus: bool) -> None:
        self._path = path
        self._serials = itertools.count(1)
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._answers: dict[int, SimpleQueue[Message | None]] = {}
        self._listeners: dict[int, tuple[str, Signals]] = {}
        self._lost = False
        self._parser = Parser()
        with Translating("connect", path):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            try:
                self._socket.settimeout(timeout_s)
                self._socket.connect(path)
                self._authenticate()
                self._socket.settimeout(None)
                start_thread(self._read, "dbus")
            except BaseException:
                self._socket.close()
                raise
        if is_bus:
            try:
                self.call(BUS, "Hello", deadline=time.monotonic() + timeout_s)
            except (ConnectionLost, DBusError, TimeoutError) as error:
                self.close()
                raise HostError("connect", path, "", f"the bus does not take the connection: {error}") from error

    @property
    def is_lost(self) -> bool:
        """Whether the connection has ended. Calls then raise ConnectionLost."""
        return self._lost

    def close(self) -> None:
        """End the connection. Calls in progress raise ConnectionLost."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the reader, which closes the socket
        except OSError:
            pass  # the peer has closed it already

    def call(
        self, address: Address, member: str, signature: str = "", body: tuple[Any, ...] = (), *, deadline: float
    ) -> DBusMessage:
        """Call a method and wait for its answer until `deadline` (time.monotonic()).

        Raises DBusError if the answer is an error, ConnectionLost, and TimeoutError if there is no answer by then.
        """
        destination, path, interface = address
        message = new_method_call(DBusAddress(path, destination, interface), member, signature or None, body)
        message.header.flags |= MessageFlag.no_auto_start
        answer: SimpleQueue[Message | None] = SimpleQueue()
        serial = next(self._serials)
        with self._lock:
            if self._lost:
                raise ConnectionLost(self._path)
            self._answers[serial] = answer
        try:
            with self._sending:
                self._socket.sendall(message.serialise(serial))
            received = answer.get(timeout=max(0.0, deadline - time.monotonic()))
        except OSError as error:
            raise ConnectionLost(f"{self._path}: {error}") from error
        except Empty:
            raise TimeoutError(f"{member} was not answered in time") from None
        finally:
            with self._lock:
                self._answers.pop(serial, None)
        if received is None:
            raise ConnectionLost(self._path)
        if received.header.message_type is MessageType.error:
            text = received.body[0] if received.body and isinstance(received.body[0], str) else ""
            raise DBusError(received.header.fields.get(HeaderFields.error_name, ""), text)
        return _received(received)

    @contextmanager
    def signals(self, member: str) -> Iterator[Signals]:
        """Collect the signals of this name that arrive within the block."""
        queue: Signals = SimpleQueue()
        with self._lock:
            if self._lost:
                raise ConnectionLost(self._path)
            self._listeners[id(queue)] = (member, queue)
        try:
            yield queue
        finally:
            with self._lock:
                self._listeners.pop(id(queue), None)

    def _authenticate(self) -> None:
        """Authenticate with AUTH and BEGIN in one write, so that the peer reads BEGIN before it answers.

        If BEGIN were sent alone, systemd could read it together with the first message, and would then leave that message
        unprocessed until more bytes arrive on the connection.
        """
        identity = str(os.getuid()).encode().hex().encode()
        self._socket.sendall(b"\0AUTH EXTERNAL " + identity + b"\r\nBEGIN\r\n")
        answer = b""
        while b"\r\n" not in answer:
            part = self._socket.recv(_LONGEST_ANSWER_LINE)
            if not part or len(answer) > _LONGEST_ANSWER_LINE:
                raise ConnectionResetError(104, "no answer to the authentication")
            answer += part
        line, _, rest = answer.partition(b"\r\n")
        if not line.startswith(b"OK"):
            raise PermissionError(13, f"authentication refused: {line.decode('ascii', 'replace')}")
        self._parser.add_data(rest)

    def _read(self) -> None:
        """The reading thread: distribute the received messages until the connection ends."""
        try:
            while data := self._socket.recv(1 << 16):
                self._parser.add_data(data)
                while (message := self._parser.get_next_message()) is not None:
                    self._hand_out(message)
                if self._parser.buf.bytes_buffered > _LONGEST_MESSAGE:
                    log.warning("a D-Bus message is too long; the connection is closed", socket=self._path)
                    break
        except OSError:
            pass  # treated like the end of the connection
        except Exception as error:  # noqa: BLE001 - jeepney raises many kinds on a message that makes no sense
            log.warning("a D-Bus message cannot be read; the connection is closed", socket=self._path, error=error)
        with self._lock:
            self._lost = True
            queues = [*self._answers.values(), *(queue for _, queue in self._listeners.values())]
        self.close()  # ends a call that is being sent
        with self._sending:  # no thread sends to a number that another file may have by then
            self._socket.close()
        for queue in queues:
            queue.put(None)

    def _hand_out(self, message: Message) -> None:
        kind, fields = message.header.message_type, message.header.fields
        with self._lock:
            if kind in (MessageType.method_return, MessageType.error):
                answer = self._answers.get(fields.get(HeaderFields.reply_serial))
                if answer is not None:
                    answer.put(message)
            elif kind is MessageType.signal:
                for member, queue in self._listeners.values():
                    if fields.get(HeaderFields.member) == member:
                        queue.put(_received(message))


def _received(message: Message) -> DBusMessage:
    return DBusMessage(message.header.fields.get(HeaderFields.sender), tuple(message.body))
