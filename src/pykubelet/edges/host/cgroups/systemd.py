"""The systemd cgroup driver: cgroups are slices that systemd creates on request.

Owns: the calls to systemd's manager and the properties of a slice. The driver of the cgroup version then writes the files of
the cgroup, as runtimes do, because systemd has no properties for some of them (huge pages).
Source: org.freedesktop.systemd1(5), systemd.resource-control(5), the cgroup driver of opencontainers/cgroups.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from queue import Empty
from typing import Any, TypeVar

from pykubelet.base.kit.cpuset import parse_cpuset
from pykubelet.base.kit.text import parse_decimal
from pykubelet.edges.host.cgroups.cgroup_values import CgroupLimits, CgroupVersion, shares_to_weight
from pykubelet.edges.host.cgroups.dbus import BUS, ConnectionLost, DBusConnection, DBusError, DBusMessage
from pykubelet.edges.host.fs.errors import HostError

T = TypeVar("T")

PRIVATE_SOCKET = "/run/systemd/private"
BUS_SOCKET = "/run/dbus/system_bus_socket"
TIMEOUT_S = 30.0
CONNECT_S = 10.0
AGAIN_S = 0.1
JOB_POLL_S = 1.0
_MANAGER = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")
_INFINITY = (1 << 64) - 1
_UNIT_EXISTS = "org.freedesktop.systemd1.UnitExists"
_NO_SUCH_UNIT = "org.freedesktop.systemd1.NoSuchUnit"
_NO_SUCH_JOB = "org.freedesktop.systemd1.NoSuchJob"
#: The errors with which the bus answers while systemd is not connected to it.
_AWAY = frozenset(f"org.freedesktop.DBus.Error.{name}" for name in ("NoReply", "ServiceUnknown", "NameHasNoOwner"))
_DEFAULT_PERIOD_US = 100_000

_MEMORY = (
    ("memory.min", "MemoryMin"),
    ("memory.low", "MemoryLow"),
    ("memory.high", "MemoryHigh"),
    ("memory.swap.max", "MemorySwapMax"),
)

#: A name, and a value with its D-Bus type.
Property = tuple[str, tuple[str, Any]]


def limit_properties(limits: CgroupLimits, version: CgroupVersion) -> list[Property]:
    """The properties of a slice for `limits`."""
    v2 = version is CgroupVersion.V2
    found: list[Property] = []
    if limits.memory_bytes is not None:
        found.append(("MemoryMax" if v2 else "MemoryLimit", ("t", _or_infinity(limits.memory_bytes))))
    if limits.cpu_shares:
        weight = shares_to_weight(limits.cpu_shares) if v2 else limits.cpu_shares
        found.append(("CPUWeight" if v2 else "CPUShares", ("t", weight)))
    if limits.cpu_quota_us:
        found.append(("CPUQuotaPerSecUSec", ("t", quota_per_second(limits))))
        found.append(("CPUQuotaPeriodUSec", ("t", limits.cpu_period_us or _DEFAULT_PERIOD_US)))
    if limits.pids is not None:
        found.append(("TasksMax", ("t", _or_infinity(limits.pids))))
    if v2 and limits.cpus:
        found.append(("AllowedCPUs", ("ay", _cpu_mask(limits.cpus))))
    if v2:
        # Without these properties, systemd restores the defaults when its configuration is reloaded.
        amounts = ((name, _bytes(limits.unified.get(file, ""))) for file, name in _MEMORY)
        found.extend((name, ("t", amount)) for name, amount in amounts if amount is not None)
    return found


def _bytes(text: str) -> int | None:
    """The amount in a file of the memory controller; None for none, and for one with a suffix."""
    return _INFINITY if text.strip() == "max" else parse_decimal(text.strip(), _INFINITY)


def _cpu_mask(cpus: str) -> bytes:
    """A bit mask of CPUs; CPU 0 is the lowest bit of the first byte."""
    mask = sum(1 << cpu for cpu in parse_cpuset(cpus))
    return mask.to_bytes((mask.bit_length() + 7) // 8, "little")


def _or_infinity(value: int) -> int:
    return _INFINITY if value < 0 else value


def quota_per_second(limits: CgroupLimits) -> int:
    """Microseconds of CPU per second, in steps of 10 ms, because systemd rounds down to such steps."""
    quota, period = limits.cpu_quota_us or 0, limits.cpu_period_us or _DEFAULT_PERIOD_US
    if quota < 0:
        return _INFINITY
    return -(-(quota * 1_000_000 // period) // 10_000) * 10_000


def slice_properties(unit: str, limits: CgroupLimits, version: CgroupVersion) -> list[Property]:
    """All properties of a new slice."""
    parent = parent_slice(unit)
    found: list[Property] = [("Description", ("s", f"Kubernetes pods {unit}"))]
    if parent is not None:
        found.append(("Wants", ("as", [parent])))
    blocks = "IOAccounting" if version is CgroupVersion.V2 else "BlockIOAccounting"
    found.extend((name, ("b", True)) for name in ("MemoryAccounting", "CPUAccounting", "TasksAccounting", blocks))
    found.append(("DefaultDependencies", ("b", False)))
    return found + limit_properties(limits, version)


def parent_slice(unit: str) -> str | None:
    """The name of the parent slice, derived from the name of the slice; None at the top."""
    stem, dash, _ = unit.removesuffix(".slice").rpartition("-")
    return f"{stem}.slice" if dash else None


class Systemd:
    """Calls to systemd's manager over one persistent connection, from any number of threads.

    If the connection ends or systemd cannot be reached for a moment (it was re-executed, or the bus was restarted), a call is
    repeated until its deadline. All calls are safe to repeat after they took effect.
    """

    def __init__(self, connect: Callable[[], DBusConnection] | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self._connect = connect or connect_manager
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._connection: DBusConnection | None = None

    def start_slice(self, unit: str, properties: list[Property]) -> bool:
        """Start a transient slice and wait until it has started. Returns False if it existed already."""

        def start(manager: _Manager) -> bool:
            try:
                manager.run_job("StartTransientUnit", "ssa(sv)a(sa(sv))", (unit, "replace", properties, []))
            except DBusError as error:
                if error.name == _UNIT_EXISTS:
                    return False
                raise
            return True

        return self._use(unit, start)

    def set_properties(self, unit: str, properties: list[Property]) -> None:
        """Change properties of a slice until the next boot."""
        self._use(unit, lambda manager: manager.call("SetUnitProperties", "sba(sv)", (unit, True, properties)))

    def stop_unit(self, unit: str) -> None:
        """Stop a slice and everything in it. Does nothing if the slice does not exist."""

        def stop(manager: _Manager) -> None:
            try:
                manager.run_job("StopUnit", "ss", (unit, "replace"))
                manager.call("ResetFailedUnit", "s", (unit,))
            except DBusError as error:
                if error.name != _NO_SUCH_UNIT:
                    raise

        self._use(unit, stop)

    def close(self) -> None:
        """Close the connection. The next call opens a new one."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _use(self, unit: str, work: Callable[[_Manager], T]) -> T:
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return work(_Manager(self._connected(), deadline, unit))
            except ConnectionLost as error:
                away = str(error)
            except DBusError as error:
                if error.name not in _AWAY:
                    raise HostError("systemd", unit, "", str(error)) from error
                away = str(error)
            except TimeoutError as error:
                raise _late(unit, f"{error} ({self._timeout_s:g} s)") from error
            if time.monotonic() + AGAIN_S >= deadline:
                raise _late(unit, f"systemd could not be reached for {self._timeout_s:g} s: {away}")
            time.sleep(AGAIN_S)  # noqa: TID251 - a worker thread

    def _connected(self) -> DBusConnection:
        with self._lock:
            if self._connection is None or self._connection.is_lost:
                try:
                    self._connection = self._connect()
                except HostError as error:
                    if error.op == "connect" or self._connection is not None:  # systemd exists on this machine
                        raise ConnectionLost(str(error)) from error
                    raise
            return self._connection


def _late(unit: str, message: str) -> HostError:
    return HostError("systemd", unit, "ETIMEDOUT", message)


class _Manager:
    """systemd's manager object during one call for `unit`, with the deadline of the call."""

    def __init__(self, connection: DBusConnection, deadline: float, unit: str) -> None:
        self._connection = connection
        self._deadline = deadline
        self._unit = unit

    def call(self, member: str, signature: str, body: tuple[Any, ...]) -> DBusMessage:
        return self._connection.call(_MANAGER, member, signature, body, deadline=self._deadline)

    def run_job(self, member: str, signature: str, body: tuple[Any, ...]) -> None:
        """Call a method that starts a job, and wait for the job's end. Raises HostError if the job fails.

        The sender of the answer reports the end with the signal JobRemoved (number, path, unit, result). The signal is lost if
        systemd is re-executed in the meantime, so the manager is also polled for the job.
        """
        with self._connection.signals("JobRemoved") as ended:
            begun = self.call(member, signature, body)
            asked_at = time.monotonic()
            while True:
                now = time.monotonic()
                if now >= self._deadline:
                    raise TimeoutError(f"the job of {member} did not end in time")
                if now >= asked_at + JOB_POLL_S:
                    if not self._is_running(begun.body[0]):
                        return
                    asked_at = now
                try:
                    signal = ended.get(timeout=max(0.0, min(asked_at + JOB_POLL_S, self._deadline) - now))
                except Empty:
                    continue
                if signal is None:
                    raise ConnectionLost(member)
                if signal.sender == begun.sender and signal.body[1:2] == begun.body:
                    if signal.body[3] != "done":
                        raise HostError("systemd", self._unit, "", f"the job of {member} ended as {signal.body[3]}")
                    return

    def _is_running(self, job: str) -> bool:
        number = job.rpartition("/")[2]
        try:
            self.call("GetJob", "u", (int(number) if number.isdigit() else 0,))
        except DBusError as error:
            if error.name == _NO_SUCH_JOB:
                return False
            raise
        return True


def connect_manager(bus_socket: str = BUS_SOCKET, private_socket: str = PRIVATE_SOCKET) -> DBusConnection:
    """Connect to the system bus, else to systemd's own socket, and subscribe to the ends of jobs.

    Raises HostError if systemd does not run on this machine (`op` is `systemd`) or cannot be reached now (`op` is `connect`).
    """
    problems = []
    for path, is_bus in ((bus_socket, True), (private_socket, False)):
        if not os.path.exists(path):
            continue
        try:
            return _subscribed(DBusConnection(path, CONNECT_S, is_bus=is_bus), is_bus=is_bus)
        except (HostError, DBusError, ConnectionLost, TimeoutError) as error:
            problems.append(f"{path}: {error}")
    if problems:
        raise HostError("connect", "", "", "; ".join(problems))
    raise HostError("systemd", "", "", "the systemd cgroup driver needs systemd, which is not running here")


def _subscribed(connection: DBusConnection, *, is_bus: bool) -> DBusConnection:
    deadline = time.monotonic() + CONNECT_S
    try:
        if is_bus:
            rule = "type='signal',sender='org.freedesktop.systemd1',interface='org.freedesktop.systemd1.Manager',"
            connection.call(BUS, "AddMatch", "s", (rule + "member='JobRemoved'",), deadline=deadline)
        connection.call(_MANAGER, "Subscribe", deadline=deadline)
    except BaseException:
        connection.close()
        raise
    return connection


class SliceUnits:
    """The slices of cgroups, which systemd creates and stops. Paths are paths of slices."""

    def __init__(self, systemd: Systemd) -> None:
        self._systemd = systemd

    def create(self, path: str, limits: CgroupLimits, version: CgroupVersion) -> None:
        """Start a transient slice, or set the properties of the existing one."""
        unit = os.path.basename(path)
        if not self._systemd.start_slice(unit, slice_properties(unit, limits, version)):
            self.update(path, limits, version)

    def update(self, path: str, limits: CgroupLimits, version: CgroupVersion) -> None:
        """Set the properties of the slice."""
        properties = limit_properties(limits, version)
        if properties:
            self._systemd.set_properties(os.path.basename(path), properties)

    def remove(self, path: str) -> None:
        """Stop the slice."""
        self._systemd.stop_unit(os.path.basename(path))
