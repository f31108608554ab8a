"""systemd-logind on the system bus: delays a shutdown of the machine, and reports when one is announced.

Owns: the connection, the inhibitor lock and the override of logind's configuration. All calls block, so call them in a thread.
Source: systemd's documentation "Inhibitor Locks" and org.freedesktop.login1(5).
"""

from __future__ import annotations

import math
import os
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any, Protocol

from jeepney import DBusAddress, HeaderFields, MatchRule, Message, MessageType, Properties, message_bus, new_method_call
from jeepney.io.blocking import open_dbus_connection
from jeepney.io.common import RouterClosed
from jeepney.wrappers import DBusErrorResponse

from pykubelet.edges.host.fs.errors import HostError, Translating

WHAT, WHO, WHY, MODE = "shutdown", "kubelet", "Kubelet needs time to handle node shutdown", "delay"
DROP_IN = "/etc/systemd/logind.conf.d/99-kubelet.conf"
CALL_TIMEOUT_S = 10.0
_MANAGER = DBusAddress("/org/freedesktop/login1", "org.freedesktop.login1", "org.freedesktop.login1.Manager")
_SYSTEMD = DBusAddress("/org/freedesktop/systemd1", "org.freedesktop.systemd1", "org.freedesktop.systemd1.Manager")
_SIGNAL = MatchRule(
    type="signal",
    interface="org.freedesktop.login1.Manager",
    member="PrepareForShutdown",
    path="/org/freedesktop/login1",
)
_SIGHUP = 1
#: The most announcements that wait to be read. For a shutdown that is cancelled, logind sends two.
_MAX_WAITING = 64


class Lock(Protocol):
    """An inhibitor lock. The shutdown continues once all locks are released."""

    def release(self) -> None:
        """Let the shutdown continue. Further calls do nothing."""


class ShutdownManager(Protocol):
    """Announces a shutdown and lets locks delay it. All methods block, and may raise HostError."""

    def max_delay_s(self) -> float:
        """The most seconds for which a lock delays the shutdown."""

    def raise_max_delay(self, seconds: int) -> None:
        """Request a longer delay. It takes effect a moment later, when `max_delay_s` returns it."""

    def inhibit(self) -> Lock:
        """Take a lock that delays the shutdown."""

    def watch(self, announce: Callable[[bool], None]) -> None:
        """Call `announce` with True for each announced shutdown and with False for each cancelled one.

        Returns after `close`. Raises HostError if the connection ends for another reason.
        """

    def close(self) -> None:
        """End the connection and a `watch` on it. Locks stay in force."""


class LogindLock:
    """A lock of logind: a file descriptor that the shutdown waits for."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        """Close the descriptor."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class Logind:
    """A connection to logind. The constructor raises HostError if there is no system bus or it refuses the connection."""

    def __init__(self, bus: str = "SYSTEM", drop_in: str = DROP_IN) -> None:
        self._drop_in = drop_in
        self._closing = False
        self._calling, self._watching = threading.Lock(), threading.Lock()
        with _translating("connect"):
            self._calls = open_dbus_connection(bus, enable_fds=True)
            try:
                self._signals = open_dbus_connection(bus)
            except BaseException:
                self._calls.close()
                raise

    def max_delay_s(self) -> float:
        """Read the property InhibitDelayMaxUSec."""
        answer = self._call("InhibitDelayMaxUSec", Properties(_MANAGER).get("InhibitDelayMaxUSec"))
        return int(answer[0][1]) / 1e6

    def raise_max_delay(self, seconds: int) -> None:
        """Write the drop-in file, and send SIGHUP to logind's unit so that it reads the file."""
        text = f"# Kubelet logind override\n[Login]\nInhibitDelayMaxSec={math.ceil(seconds)}\n"
        with Translating("write", self._drop_in):
            os.makedirs(os.path.dirname(self._drop_in), mode=0o755, exist_ok=True)
            with open(self._drop_in, "w", encoding="ascii") as file:
                os.fchmod(file.fileno(), 0o644)
                file.write(text)
        self._call("KillUnit", new_method_call(_SYSTEMD, "KillUnit", "ssi", ("systemd-logind.service", "all", _SIGHUP)))

    def inhibit(self) -> LogindLock:
        """Call Inhibit. The lock is the descriptor in the answer."""
        (descriptor,) = self._call("Inhibit", new_method_call(_MANAGER, "Inhibit", "ssss", (WHAT, WHO, WHY, MODE)))
        return LogindLock(descriptor.to_raw_fd())

    def watch(self, announce: Callable[[bool], None]) -> None:
        """Follow the signal PrepareForShutdown. Any sender is accepted, because test suites send it themselves."""
        try:
            announced: deque[Message] = deque(maxlen=_MAX_WAITING)
            with (
                self._watching,
                _translating("watch"),
                self._signals.filter(_SIGNAL, queue=announced),
            ):
                self._signals.send_and_get_reply(message_bus.AddMatch(_SIGNAL), timeout=CALL_TIMEOUT_S)
                while True:
                    message: Message = self._signals.recv_until_filtered(announced)
                    if message.header.fields.get(HeaderFields.signature) == "b":
                        announce(bool(message.body[0]))
        except HostError:
            if not self._closing:
                raise

    def close(self) -> None:
        """Close both connections. Calls of other threads on them fail at once, and are waited for."""
        self._closing = True
        for connection, used in ((self._calls, self._calling), (self._signals, self._watching)):
            with suppress(OSError):  # the bus has closed it already
                connection.sock.shutdown(socket.SHUT_RDWR)
            with used:
                connection.close()

    def _call(self, name: str, message: Message) -> tuple[Any, ...]:
        with self._calling, _translating(name):
            answer = self._calls.send_and_get_reply(message, timeout=CALL_TIMEOUT_S)
            if answer.header.message_type is MessageType.error:
                raise DBusErrorResponse(answer)
            return tuple(answer.body)


class _Translating(AbstractContextManager[None]):
    """Translates the errors of a bus to HostError."""

    def __init__(self, operation: str) -> None:
        self._operation = operation

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _where: object) -> None:
        if isinstance(error, DBusErrorResponse):
            raise HostError(self._operation, "logind", "", f"{error.name}: {error.data}") from error
        if isinstance(error, (OSError, TimeoutError, RouterClosed, EOFError, KeyError, ValueError)):
            raise HostError(self._operation, "logind", "", str(error) or type(error).__name__) from error


def _translating(operation: str) -> AbstractContextManager[None]:
    return _Translating(operation)
