"""A double of systemd's manager on D-Bus: behind a socket of its own, or as a service on a real message bus.

It answers calls, begins jobs and states when they end, as systemd does. On its own socket it also reads as systemd does: what
arrives in one read with the end of the authentication stays unread until more arrives.
"""

from __future__ import annotations

import itertools
import shutil
import socket
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from jeepney import DBusAddress as Address
from jeepney import (
    HeaderFields,
    Message,
    MessageType,
    Parser,
    new_error,
    new_method_return,
    new_signal,
)
from jeepney.bus_messages import message_bus
from jeepney.io.blocking import DBusConnection, prep_socket

NAME = "org.freedesktop.systemd1"
MANAGER = Address("/org/freedesktop/systemd1", NAME, f"{NAME}.Manager")
LONGEST_S = 60.0
_JOB_METHODS = ("StartTransientUnit", "StopUnit")


class Answers:
    """What the double answers, and what it was asked.

    `errors`: the error name for a method. `result`: how jobs end. `reports_ends`: whether it states that a job has ended; if
    not, it knows no job when asked. `silent`: methods that get no answer.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.callers: set[str | None] = set()
        self.errors: dict[str, str] = {}
        self.silent: set[str] = set()
        self.result = "done"
        self.reports_ends = True
        self._jobs = itertools.count(1)

    def members(self) -> list[str]:
        return [member for member, _ in self.calls]

    def answer(self, call: Message) -> list[Message]:
        """The messages that answer a call, in order."""
        fields = call.header.fields
        member = fields[HeaderFields.member]
        self.callers.add(fields.get(HeaderFields.sender))
        self.calls.append((member, tuple(call.body)))
        if member in self.silent:
            return []
        if member in self.errors:
            return [new_error(call, self.errors[member], "s", ("Unit is refused.",))]
        if member == "GetJob":
            return [new_error(call, f"{NAME}.NoSuchJob", "s", ("No such job.",))]
        if member not in _JOB_METHODS:
            return [new_method_return(call)]
        number = next(self._jobs)
        job = f"/org/freedesktop/systemd1/job/{number}"
        other = job_removed(number + 1000, "/org/freedesktop/systemd1/job/0", "other.service", "done")
        ended = [job_removed(number, job, call.body[0], self.result)] if self.reports_ends else []
        return [other, *ended, new_method_return(call, "o", (job,))]  # the end may come before the number


def job_removed(number: int, job: str, unit: str, result: str) -> Message:
    return new_signal(MANAGER, "JobRemoved", "uoss", (number, job, unit, result))


class PrivateManager:
    """systemd's own socket at `path`, where there is no bus between."""

    def __init__(self, path: str, answers: Answers) -> None:
        self.path = path
        self._answers = answers
        self._peers: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> PrivateManager:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()
        for thread in self._threads:
            thread.join()
        Path(self.path).unlink()

    def hang_up(self) -> None:
        """End all connections, as when systemd is executed anew."""
        while self._peers:
            peer = self._peers.pop()
            try:
                peer.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # the client was quicker

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            self._peers.append(peer)
            self._threads.append(threading.Thread(target=self._serve, args=(peer,)))
            self._threads[-1].start()

    def _serve(self, peer: socket.socket) -> None:
        serials = itertools.count(1)
        with peer:
            try:
                unread = self._authenticate(peer)
                parser = Parser()
                while data := peer.recv(1 << 16):
                    for call in parser.feed(unread + data):
                        for message in self._answers.answer(call):
                            peer.sendall(message.serialise(next(serials)))
                    unread = b""
            except OSError:
                return

    @staticmethod
    def _authenticate(peer: socket.socket) -> bytes:
        """Read up to BEGIN; what came with it in one read."""
        data = peer.recv(4096)
        assert data.startswith(b"\0AUTH EXTERNAL ")
        peer.sendall(b"OK 0123456789abcdef0123456789abcdef\r\n")
        if b"BEGIN\r\n" not in data:
            time.sleep(0.5)  # busy: what comes next is read in one go
            data += peer.recv(4096)
        return data.partition(b"BEGIN\r\n")[2]


class MessageBus:
    """A dbus-daemon of our own at `folder/bus`, which can be stopped and started."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("dbus-daemon") is None:
            pytest.fail("this test needs dbus-daemon (make packages installs it)")
        self.path = str(folder / "bus")
        self._config = folder / "bus.conf"
        self._config.write_text(
            f"<busconfig><type>custom</type><listen>unix:path={self.path}</listen><auth>EXTERNAL</auth>"
            '<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/>'
            '<allow own="*"/></policy></busconfig>'
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = ["dbus-daemon", f"--config-file={self._config}", "--nofork", "--nopidfile", "--print-address"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert b"unix:path" in self._process.stdout.readline()

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None
            Path(self.path).unlink(missing_ok=True)

    def connect(self) -> DBusConnection:
        return DBusConnection(prep_socket(self.path, timeout=LONGEST_S))


class BusService(ABC):
    """A service with these names on a message bus, for as long as the block lasts. Its thread gives each call to `handle`."""

    def __init__(self, connection: DBusConnection, *names: str) -> None:
        self._connection = connection
        for name in names:
            connection.send_and_get_reply(message_bus.RequestName(name), timeout=LONGEST_S)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.hang_up()
        self.wait_ended()
        self._connection.close()

    def hang_up(self) -> None:
        try:
            self._connection.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has hung up, or the bus has ended

    def wait_ended(self) -> None:
        self._thread.join(LONGEST_S)
        assert not self._thread.is_alive()

    @abstractmethod
    def handle(self, call: Message) -> None:
        """Send the answers to a method call."""

    def _serve(self) -> None:
        while True:
            try:
                message = self._connection.receive()
            except OSError:
                return
            if message.header.message_type is MessageType.method_call:
                self.handle(message)


class BusManager(BusService):
    """systemd as a service. `hangs_up_on`: it ends at this call, unanswered."""

    def __init__(self, bus: MessageBus, answers: Answers, hangs_up_on: str = "") -> None:
        self._answers = answers
        self._hangs_up_on = hangs_up_on
        super().__init__(bus.connect(), NAME)

    def handle(self, call: Message) -> None:
        if call.header.fields[HeaderFields.member] == self._hangs_up_on:
            self.hang_up()
            return
        for answer in self._answers.answer(call):
            self._connection.send(answer)
