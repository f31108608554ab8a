"""The systemd driver: properties, the wire format byte by byte, and the talk with a manager that a thread plays."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pykubelet.edges.host import dbus
from pykubelet.edges.host.cgroup_values import UNLIMITED, CgroupLimits, CgroupVersion
from pykubelet.edges.host.cgroups_v2 import CgroupsV2
from pykubelet.edges.host.dbus import Connection, Message, Variant
from pykubelet.edges.host.errors import HostError
from pykubelet.edges.host.systemd import Systemd, SystemdCgroups, connect_manager, limit_properties, slice_properties

UNIT = "kubepods-burstable-pod1.slice"
JOB = "/org/freedesktop/systemd1/job/7"


def test_hello_as_the_specification_writes_it() -> None:
    fields = {
        dbus.PATH: "/org/freedesktop/DBus",
        dbus.DESTINATION: "org.freedesktop.DBus",
        dbus.INTERFACE: "org.freedesktop.DBus",
        dbus.MEMBER: "Hello",
    }
    wire = dbus.encode_message(Message(dbus.METHOD_CALL, 1, fields))
    assert wire[:16] == b"l\x01\x00\x01" + b"\0\0\0\0" + b"\x01\0\0\0" + b"\x6e\0\0\0"
    assert wire[16:48] == b"\x01\x01o\0\x15\0\0\0/org/freedesktop/DBus\0\0\0"
    assert len(wire) == dbus.message_length(wire[:16]) == 128
    assert dbus.decode_message(wire).fields == fields


@pytest.mark.parametrize(
    ("signature", "body"),
    [
        ("ssa(sv)a(sa(sv))", ("u", "replace", [("A", Variant("t", 1 << 63)), ("B", Variant("as", ["x", "y"]))], [])),
        ("uoss", (7, JOB, UNIT, "done")),
        ("a{sv}", ([("k", Variant("b", True)), ("l", Variant("a(yu)", [(1, 2)]))],)),
        ("yqnixdgb", (1, 2, -3, -4, -5, 0.5, "a{sv}", False)),
        ("aai", ([[1], [], [2, 3]],)),
    ],
)
def test_values_survive_the_wire(signature: str, body: tuple[Any, ...]) -> None:
    message = Message(dbus.SIGNAL, 9, {dbus.SIGNATURE: signature}, body)
    assert dbus.decode_message(dbus.encode_message(message)) == message


def test_cut_messages_are_refused() -> None:
    wire = dbus.encode_message(Message(dbus.SIGNAL, 9, {dbus.SIGNATURE: "s"}, ("text",)))
    for length in range(12, 20):
        with pytest.raises(ValueError, match="cut short"):
            dbus.decode_message(wire[:length])
    with pytest.raises(ValueError, match="little-endian"):
        dbus.decode_message(b"B" + wire[1:])


def test_properties_by_version() -> None:
    limits = CgroupLimits(cpu_shares=1024, cpu_quota_us=12_345, cpu_period_us=100_000, memory_bytes=5, pids=UNLIMITED)
    assert limit_properties(limits, CgroupVersion.V2) == [
        ("MemoryMax", Variant("t", 5)),
        ("CPUWeight", Variant("t", 100)),
        ("CPUQuotaPerSecUSec", Variant("t", 130_000)),
        ("CPUQuotaPeriodUSec", Variant("t", 100_000)),
        ("TasksMax", Variant("t", (1 << 64) - 1)),
    ]
    assert [name for name, _ in limit_properties(limits, CgroupVersion.V1)][:2] == ["MemoryLimit", "CPUShares"]
    found = dict(slice_properties(UNIT, CgroupLimits(), CgroupVersion.V2))
    assert found["Wants"] == Variant("as", ["kubepods-burstable.slice"])
    assert found["DefaultDependencies"] == Variant("b", False)
    assert "Wants" not in dict(slice_properties("kubepods.slice", CgroupLimits(), CgroupVersion.V2))


Answer = Callable[[str, tuple[Any, ...]], tuple[str, tuple[Any, ...]] | str]


class Manager:
    """Plays systemd: answers each call with what `answer` says, an error name or a result, and ends jobs."""

    def __init__(self, path: str, answer: Answer) -> None:
        self.path = path
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.result = "done"
        self._answer = answer
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def stop(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            with peer, peer.makefile("rb") as stream:
                assert stream.readline().startswith(b"\0AUTH EXTERNAL ")
                peer.sendall(b"OK 0123456789abcdef0123456789abcdef\r\n")
                assert stream.readline() == b"BEGIN\r\n"
                while len(head := stream.read(16)) == 16:
                    self._one(peer, dbus.decode_message(head + stream.read(dbus.message_length(head) - 16)))

    def _one(self, peer: socket.socket, call: Message) -> None:
        member = call.fields[dbus.MEMBER]
        self.calls.append((member, call.body))
        answered = self._answer(member, call.body)
        removed = {dbus.MEMBER: "JobRemoved", dbus.SIGNATURE: "uoss", dbus.PATH: "/"}
        out = [Message(dbus.SIGNAL, 1, removed, (1, "/org/freedesktop/systemd1/job/1", "other.service", "done"))]
        if isinstance(answered, str):
            fields = {dbus.REPLY_SERIAL: call.serial, dbus.ERROR_NAME: answered, dbus.SIGNATURE: "s"}
            out.append(Message(dbus.ERROR, 2, fields, ("Unit says no.",)))
        else:
            signature, body = answered
            if signature == "o":  # the job may end before its number is told
                out.append(Message(dbus.SIGNAL, 3, removed, (7, JOB, UNIT, self.result)))
            out.append(
                Message(dbus.METHOD_RETURN, 4, {dbus.REPLY_SERIAL: call.serial, dbus.SIGNATURE: signature}, body)
            )
        peer.sendall(b"".join(dbus.encode_message(message) for message in out))


errors: dict[str, str] = {}


def obedient(member: str, _: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]] | str:
    if member in errors:
        return errors[member]
    return ("o", (JOB,)) if member in ("StartTransientUnit", "StopUnit") else ("", ())


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    errors.clear()
    made = Manager(str(tmp_path / "private"), obedient)
    yield made
    made.stop()


@pytest.fixture
def client(manager: Manager) -> Systemd:
    return Systemd(lambda: Connection(manager.path, 5, is_bus=False))


def test_slice_is_started_and_waited_for(manager: Manager, client: Systemd) -> None:
    assert client.start_slice(UNIT, [("TasksMax", Variant("t", 5))])
    assert manager.calls == [("StartTransientUnit", (UNIT, "replace", [("TasksMax", Variant("t", 5))], []))]


def test_slice_that_exists_is_no_error_and_gets_the_limits(manager: Manager, client: Systemd, tmp_path: Path) -> None:
    errors["StartTransientUnit"] = "org.freedesktop.systemd1.UnitExists"
    root = tmp_path / "cgroup"
    path = "/kubepods.slice/kubepods-burstable.slice/" + UNIT
    for directory in (
        root,
        *(root / part for part in ("kubepods.slice", "kubepods.slice/kubepods-burstable.slice", path[1:])),
    ):
        directory.mkdir()
        (directory / "cgroup.controllers").write_text("cpu pids")
        (directory / "cgroup.subtree_control").write_text("")
        (directory / "pids.max").write_text("")
    SystemdCgroups(CgroupsV2(str(root)), client).create(path, CgroupLimits(pids=9))
    assert manager.calls[1] == ("SetUnitProperties", (UNIT, True, [("TasksMax", Variant("t", 9))]))
    assert (root / path[1:] / "pids.max").read_text() == "9"


def test_job_that_fails_and_refusals_are_told(manager: Manager, client: Systemd) -> None:
    manager.result = "failed"
    with pytest.raises(HostError, match="the job ended as failed"):
        client.start_slice(UNIT, [])
    errors["StartTransientUnit"] = "org.freedesktop.DBus.Error.AccessDenied"
    with pytest.raises(HostError, match=r"systemd kubepods-burstable-pod1.slice: Unit says no\."):
        client.start_slice(UNIT, [])


def test_stopping_what_is_not_there_is_fine(manager: Manager, client: Systemd) -> None:
    client.stop_unit(UNIT)
    assert [member for member, _ in manager.calls] == ["StopUnit", "ResetFailedUnit"]
    errors["StopUnit"] = "org.freedesktop.systemd1.NoSuchUnit"
    client.stop_unit(UNIT)


def test_silent_manager_is_given_up(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        with pytest.raises(HostError) as caught:
            Connection(str(tmp_path / "s"), 0.05, is_bus=False)
        assert "timed out" in str(caught.value)


def test_no_systemd_is_said_clearly(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="needs systemd, which is not running here"):
        connect_manager(str(tmp_path / "a"), str(tmp_path / "b"))
