"""systemd-logind as a service on a message bus: its delay, its locks, and its announcements."""

from __future__ import annotations

import os
import re
import select
from pathlib import Path
from types import TracebackType

from jeepney import DBusAddress, HeaderFields, Message, new_error, new_method_return, new_signal
from jeepney.io.blocking import open_dbus_connection
from support.fake_systemd import BusService, MessageBus

_MANAGER = DBusAddress("/org/freedesktop/login1", interface="org.freedesktop.login1.Manager")


class FakeLogind(BusService):
    """logind as a service. `drop_in`: the file that a reload reads. `stubborn`: reloads change nothing."""

    def __init__(self, bus: MessageBus, drop_in: Path, delay_s: float = 5.0, *, stubborn: bool = False) -> None:
        self.delay_s = delay_s
        self.inhibited: list[tuple[str, ...]] = []
        self.reloads: list[tuple[str, str, int]] = []
        self._locks: list[int] = []
        self._drop_in = drop_in
        self._stubborn = stubborn
        connection = open_dbus_connection(f"unix:path={bus.path}", enable_fds=True)
        super().__init__(connection, "org.freedesktop.login1", "org.freedesktop.systemd1")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        super().__exit__(kind, error, at)
        for lock in self._locks:
            os.close(lock)

    def announce(self, *, active: bool) -> None:
        """Send PrepareForShutdown to all who listen."""
        self._connection.send(new_signal(_MANAGER, "PrepareForShutdown", "b", (active,)))

    def held_locks(self) -> int:
        """How many locks are not released."""
        ended = select.poll()
        for lock in self._locks:
            ended.register(lock, select.POLLHUP)
        return len(self._locks) - len(ended.poll(0))

    def wait_released(self, within_s: float = 10.0) -> None:
        """Wait until no lock is held. Descriptors on their way through the bus hold it, too, for a moment."""
        for lock in self._locks:
            ended = select.poll()
            ended.register(lock, select.POLLHUP)
            assert ended.poll(within_s * 1000), "a lock is still held"

    def handle(self, call: Message) -> None:
        match call.header.fields[HeaderFields.member]:
            case "Get":
                body = (("t", int(self.delay_s * 1e6)),)
                self._connection.send(new_method_return(call, "v", body))
            case "Inhibit":
                ours, theirs = os.pipe()
                self._locks.append(ours)
                self.inhibited.append(call.body)
                self._connection.send(new_method_return(call, "h", (theirs,)))
                os.close(theirs)
            case "KillUnit":
                self.reloads.append(call.body)
                if not self._stubborn:
                    found = re.search(r"^InhibitDelayMaxSec=(\d+)$", self._drop_in.read_text(), re.MULTILINE)
                    assert found is not None
                    self.delay_s = float(found[1])
                self._connection.send(new_method_return(call))
            case other:
                self._connection.send(new_error(call, f"no.such.method.{other}"))
