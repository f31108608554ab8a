"""The systemd cgroup driver: groups are slices that systemd makes at our request.

Owns: the calls to systemd's manager and the properties of a slice. The files of the group are then written by the
driver for the cgroup version, as runtimes do: systemd has no properties for some (huge pages).
Source: org.freedesktop.systemd1(5), systemd.resource-control(5), the cgroup driver of opencontainers/cgroups.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

from pykubelet.edges.host.cgroup_values import CgroupLimits, CgroupVersion, shares_to_weight
from pykubelet.edges.host.cgroups import Cgroups
from pykubelet.edges.host.dbus import Connection, DBusError, Variant
from pykubelet.edges.host.errors import HostError

T = TypeVar("T")

PRIVATE_SOCKET = "/run/systemd/private"
BUS_SOCKET = "/run/dbus/system_bus_socket"
TIMEOUT_S = 30.0
_MANAGER = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")
_INFINITY = (1 << 64) - 1
_UNIT_EXISTS = "org.freedesktop.systemd1.UnitExists"
_NO_SUCH_UNIT = "org.freedesktop.systemd1.NoSuchUnit"
_DEFAULT_PERIOD_US = 100_000

Property = tuple[str, Variant]


def limit_properties(limits: CgroupLimits, version: CgroupVersion) -> list[Property]:
    """The properties that say what `limits` says."""
    v2 = version is CgroupVersion.V2
    found: list[Property] = []
    if limits.memory_bytes is not None:
        found.append(("MemoryMax" if v2 else "MemoryLimit", Variant("t", _or_infinity(limits.memory_bytes))))
    if limits.cpu_shares:
        weight = shares_to_weight(limits.cpu_shares) if v2 else limits.cpu_shares
        found.append(("CPUWeight" if v2 else "CPUShares", Variant("t", weight)))
    if limits.cpu_quota_us:
        found.append(("CPUQuotaPerSecUSec", Variant("t", quota_per_second(limits))))
        found.append(("CPUQuotaPeriodUSec", Variant("t", limits.cpu_period_us or _DEFAULT_PERIOD_US)))
    if limits.pids is not None:
        found.append(("TasksMax", Variant("t", _or_infinity(limits.pids))))
    return found


def _or_infinity(value: int) -> int:
    return _INFINITY if value < 0 else value


def quota_per_second(limits: CgroupLimits) -> int:
    """Microseconds of CPU in each second, in steps of 10 ms, because systemd rounds down to such steps."""
    quota, period = limits.cpu_quota_us or 0, limits.cpu_period_us or _DEFAULT_PERIOD_US
    if quota < 0:
        return _INFINITY
    return -(-(quota * 1_000_000 // period) // 10_000) * 10_000


def slice_properties(unit: str, limits: CgroupLimits, version: CgroupVersion) -> list[Property]:
    """All properties of a new slice."""
    parent = parent_slice(unit)
    found: list[Property] = [("Description", Variant("s", f"Kubernetes pods {unit}"))]
    if parent is not None:
        found.append(("Wants", Variant("as", [parent])))
    blocks = "IOAccounting" if version is CgroupVersion.V2 else "BlockIOAccounting"
    found.extend(
        (name, Variant("b", True)) for name in ("MemoryAccounting", "CPUAccounting", "TasksAccounting", blocks)
    )
    found.append(("DefaultDependencies", Variant("b", False)))
    return found + limit_properties(limits, version)


def parent_slice(unit: str) -> str | None:
    """The slice in which a slice lies, by its name; None at the top."""
    stem, dash, _ = unit.removesuffix(".slice").rpartition("-")
    return f"{stem}.slice" if dash else None


class Systemd:
    """Calls to the manager, each over a connection of its own: a kept one would collect the signals of every unit."""

    def __init__(self, connect: Callable[[], Connection] | None = None) -> None:
        self._connect = connect or connect_manager

    def start_slice(self, unit: str, properties: list[Property]) -> bool:
        """Start a transient slice and wait until it is there; False when it was there already."""

        def start(connection: Connection) -> bool:
            try:
                job = _call(connection, "StartTransientUnit", "ssa(sv)a(sa(sv))", (unit, "replace", properties, []))
            except DBusError as error:
                if error.name == _UNIT_EXISTS:
                    return False
                raise
            _wait_job(connection, job[0], unit)
            return True

        return self._use(unit, start)

    def set_properties(self, unit: str, properties: list[Property]) -> None:
        """Change a slice until the next boot."""
        self._use(unit, lambda c: _call(c, "SetUnitProperties", "sba(sv)", (unit, True, properties)))

    def stop_unit(self, unit: str) -> None:
        """Stop a slice and all in it; nothing happens when there is none."""

        def stop(connection: Connection) -> None:
            try:
                job = _call(connection, "StopUnit", "ss", (unit, "replace"))
            except DBusError as error:
                if error.name == _NO_SUCH_UNIT:
                    return
                raise
            _wait_job(connection, job[0], unit)
            try:
                _call(connection, "ResetFailedUnit", "s", (unit,))
            except DBusError as error:
                if error.name != _NO_SUCH_UNIT:
                    raise

        self._use(unit, stop)

    def _use(self, unit: str, work: Callable[[Connection], T]) -> T:
        connection = self._connect()
        try:
            return work(connection)
        except DBusError as error:
            raise HostError("systemd", unit, "", str(error)) from error
        finally:
            connection.close()


def connect_manager(private_socket: str = PRIVATE_SOCKET, bus_socket: str = BUS_SOCKET) -> Connection:
    """systemd's own socket, else the system bus; subscribed to the ends of jobs. HostError when systemd is not there."""
    if os.path.exists(private_socket):
        connection = Connection(private_socket, TIMEOUT_S, is_bus=False)
    elif os.path.exists(bus_socket):
        connection = Connection(bus_socket, TIMEOUT_S, is_bus=True)
        rule = "type='signal',interface='org.freedesktop.systemd1.Manager',member='JobRemoved'"
        bus = "org.freedesktop.DBus"
        connection.call(bus, "/org/freedesktop/DBus", bus, "AddMatch", "s", (rule,))
    else:
        raise HostError("systemd", "", "", "the systemd cgroup driver needs systemd, which is not running here")
    _call(connection, "Subscribe", "", ())
    return connection


def _call(connection: Connection, member: str, signature: str, body: tuple[Any, ...]) -> tuple[Any, ...]:
    return connection.call(*_MANAGER, member, signature, body)


def _wait_job(connection: Connection, job: str, unit: str) -> None:
    """JobRemoved carries the job's number, path, unit and result."""
    result = connection.wait_signal("JobRemoved", lambda body: len(body) == 4 and body[1] == job)[3]
    if result != "done":
        raise HostError("systemd", unit, "", f"the job ended as {result}")


class SystemdCgroups:
    """The driver: slices by systemd, files by `files`, the driver of the cgroup version. Paths are paths of slices."""

    def __init__(self, files: Cgroups, systemd: Systemd) -> None:
        self._files = files
        self._systemd = systemd

    @property
    def version(self) -> CgroupVersion:
        return self._files.version

    def controllers(self) -> frozenset[str]:
        return self._files.controllers()

    def exists(self, path: str) -> bool:
        return self._files.exists(path)

    def create(self, path: str, limits: CgroupLimits) -> None:
        unit = os.path.basename(path)
        if not self._systemd.start_slice(unit, slice_properties(unit, limits, self.version)):
            self._set(unit, limits)
        self._files.create(path, limits)

    def update(self, path: str, limits: CgroupLimits) -> None:
        self._set(os.path.basename(path), limits)
        self._files.update(path, limits)

    def memory_used(self, path: str) -> int:
        return self._files.memory_used(path)

    def remove(self, path: str) -> bool:
        if self._files.exists(path):
            self._systemd.stop_unit(os.path.basename(path))
        return self._files.remove(path)

    def enter(self, path: str) -> None:
        self._files.enter(path)  # also where a unit of that name is unknown to systemd

    def pids(self, path: str) -> frozenset[int]:
        return self._files.pids(path)

    def kill(self, path: str) -> int:
        return self._files.kill(path)

    def children(self, path: str) -> tuple[str, ...]:
        return self._files.children(path)

    def _set(self, unit: str, limits: CgroupLimits) -> None:
        properties = limit_properties(limits, self.version)
        if properties:
            self._systemd.set_properties(unit, properties)
