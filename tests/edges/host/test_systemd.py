"""The systemd driver: properties of slices, and the calls to a double of systemd's manager, also over a real bus."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from jeepney import HeaderFields
from support.fake_systemd import Answers, BusManager, MessageBus, PrivateManager, job_removed
from support.threads import refuse_threads

from pykubelet.edges.host.cgroups.cgroup_values import UNLIMITED, CgroupLimits, CgroupVersion
from pykubelet.edges.host.cgroups.cgroups_v2 import CgroupsV2
from pykubelet.edges.host.cgroups.dbus import DBusConnection
from pykubelet.edges.host.cgroups.systemd import (
    SliceUnits,
    Systemd,
    connect_manager,
    limit_properties,
    slice_properties,
)
from pykubelet.edges.host.fs.errors import HostError

UNIT = "kubepods-burstable-pod1.slice"
LONGEST_S = 60.0


def test_properties_by_version() -> None:
    limits = CgroupLimits(cpu_shares=1024, cpu_quota_us=12_345, cpu_period_us=100_000, memory_bytes=5, pids=UNLIMITED)
    assert limit_properties(limits, CgroupVersion.V2) == [
        ("MemoryMax", ("t", 5)),
        ("CPUWeight", ("t", 39)),
        ("CPUQuotaPerSecUSec", ("t", 130_000)),
        ("CPUQuotaPeriodUSec", ("t", 100_000)),
        ("TasksMax", ("t", (1 << 64) - 1)),
    ]
    protected = CgroupLimits(cpus="0-2,9", unified={"memory.min": "7", "memory.low": "0"})
    assert limit_properties(protected, CgroupVersion.V2) == [
        ("AllowedCPUs", ("ay", b"\x07\x02")),
        ("MemoryMin", ("t", 7)),
        ("MemoryLow", ("t", 0)),
    ]
    assert limit_properties(protected, CgroupVersion.V1) == []
    others = {"memory.high": "1G", "memory.swap.max": "max", "memory.oom.group": "1"}
    assert limit_properties(CgroupLimits(unified=others), CgroupVersion.V2) == [("MemorySwapMax", ("t", (1 << 64) - 1))]
    assert [name for name, _ in limit_properties(limits, CgroupVersion.V1)][:2] == ["MemoryLimit", "CPUShares"]
    found = dict(slice_properties(UNIT, CgroupLimits(), CgroupVersion.V2))
    assert found["Wants"] == ("as", ["kubepods-burstable.slice"])
    assert found["DefaultDependencies"] == ("b", False)
    assert "Wants" not in dict(slice_properties("kubepods.slice", CgroupLimits(), CgroupVersion.V2))


# On systemd's own socket


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def private(answers: Answers, tmp_path: Path) -> Iterator[PrivateManager]:
    with PrivateManager(str(tmp_path / "private"), answers) as manager:
        yield manager


def client_of(bus: str, private: str, timeout_s: float = LONGEST_S) -> Systemd:
    return Systemd(lambda: connect_manager(bus, private), timeout_s)


@pytest.fixture
def client(private: PrivateManager, tmp_path: Path) -> Iterator[Systemd]:
    made = client_of(str(tmp_path / "no-bus"), private.path)
    yield made
    made.close()


def test_slice_is_started_and_waited_for(answers: Answers, client: Systemd) -> None:
    assert client.start_slice(UNIT, [("TasksMax", ("t", 5))])
    assert answers.calls[1:] == [("StartTransientUnit", (UNIT, "replace", [("TasksMax", ("t", 5))], []))]


def test_systemd_that_reads_the_end_of_authentication_and_a_call_together(private: PrivateManager) -> None:
    """A call that systemd reads together with BEGIN is not seen before more arrives."""
    connection = DBusConnection(private.path, LONGEST_S, is_bus=False)
    done = Systemd(lambda: connection, timeout_s=10).start_slice(UNIT, [])
    connection.close()
    assert done


def test_slice_that_exists_is_no_error_and_gets_the_limits(answers: Answers, client: Systemd, tmp_path: Path) -> None:
    answers.errors["StartTransientUnit"] = "org.freedesktop.systemd1.UnitExists"
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
    CgroupsV2(str(root), SliceUnits(client)).create(path, CgroupLimits(pids=9))
    assert answers.calls[2] == ("SetUnitProperties", (UNIT, True, [("TasksMax", ("t", 9))]))
    assert (root / path[1:] / "pids.max").read_text() == "9"


def test_job_that_fails_and_refusals_are_errors_that_name_systemd(answers: Answers, client: Systemd) -> None:
    answers.result = "failed"
    with pytest.raises(HostError, match="the job of StartTransientUnit ended as failed"):
        client.start_slice(UNIT, [])
    answers.errors["StartTransientUnit"] = "org.freedesktop.DBus.Error.AccessDenied"
    with pytest.raises(HostError, match=r"systemd kubepods-burstable-pod1.slice: Unit is refused\."):
        client.start_slice(UNIT, [])


def test_stopping_what_is_not_there_is_fine(answers: Answers, client: Systemd) -> None:
    client.stop_unit(UNIT)
    assert answers.members() == ["Subscribe", "StopUnit", "ResetFailedUnit"]
    answers.errors["StopUnit"] = "org.freedesktop.systemd1.NoSuchUnit"
    client.stop_unit(UNIT)


def test_end_of_a_job_that_is_never_signalled_is_asked_for(answers: Answers, client: Systemd) -> None:
    answers.reports_ends = False
    assert client.start_slice(UNIT, [])
    assert answers.members()[-1] == "GetJob"


def test_new_connection_where_systemd_has_ended_the_old_one(
    answers: Answers, client: Systemd, private: PrivateManager
) -> None:
    assert client.start_slice(UNIT, [])
    private.hang_up()
    assert client.start_slice("kubepods-pod2.slice", [])
    assert answers.members().count("Subscribe") == 2


def test_call_without_an_answer_is_given_up(answers: Answers, private: PrivateManager, tmp_path: Path) -> None:
    answers.silent.add("SetUnitProperties")
    client = client_of(str(tmp_path / "no-bus"), private.path, timeout_s=0.5)
    with pytest.raises(HostError, match=r"systemd .*: SetUnitProperties was not answered in time \(0.5 s\)") as caught:
        client.set_properties(UNIT, [])
    assert caught.value.errno_name == "ETIMEDOUT"
    client.start_slice(UNIT, [])  # the connection is as good as before
    assert answers.members().count("Subscribe") == 1
    client.close()


def test_connection_waits_for_a_thread(monkeypatch: pytest.MonkeyPatch, answers: Answers, client: Systemd) -> None:
    refused = refuse_threads(monkeypatch, "dbus", times=2)
    assert client.start_slice(UNIT, [])
    assert len(refused) == 2 and answers.members().count("Subscribe") == 1


def test_silent_socket_is_given_up(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        with pytest.raises(HostError, match="timed out"):
            DBusConnection(str(tmp_path / "s"), 0.05, is_bus=False)


def test_no_systemd_is_a_clear_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="needs systemd, which is not running here"):
        client_of(str(tmp_path / "a"), str(tmp_path / "b")).start_slice(UNIT, [])


# On a real message bus


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[MessageBus]:
    made = MessageBus(tmp_path)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def bus_client(bus: MessageBus, tmp_path: Path) -> Iterator[Systemd]:
    made = client_of(bus.path, str(tmp_path / "no-private-socket"))
    yield made
    made.close()


@pytest.mark.integration
def test_many_threads_share_one_connection_to_the_bus(bus: MessageBus, bus_client: Systemd, answers: Answers) -> None:
    units = [f"kubepods-pod{number}.slice" for number in range(64)]
    with BusManager(bus, answers), ThreadPoolExecutor(8) as threads:
        assert all(threads.map(lambda unit: bus_client.start_slice(unit, []), units))
    started = sorted(body[0] for member, body in answers.calls if member == "StartTransientUnit")
    assert started == sorted(units)
    assert len(answers.callers) == 1


@pytest.mark.integration
def test_restart_of_the_bus_is_survived(bus: MessageBus, bus_client: Systemd, answers: Answers) -> None:
    with BusManager(bus, answers):
        assert bus_client.start_slice(UNIT, [])
        bus.stop()
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(bus_client.set_properties, UNIT, [("TasksMax", ("t", 5))])
        bus.start()
        with BusManager(bus, answers):
            waiting.result(LONGEST_S)
    assert answers.members() == ["Subscribe", "StartTransientUnit", "Subscribe", "SetUnitProperties"]


@pytest.mark.integration
def test_systemd_executed_anew_in_the_middle_of_a_call(bus: MessageBus, bus_client: Systemd, answers: Answers) -> None:
    with BusManager(bus, answers, hangs_up_on="StartTransientUnit") as before, ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(bus_client.start_slice, UNIT, [])
        before.wait_ended()
        answers.errors["StartTransientUnit"] = "org.freedesktop.systemd1.UnitExists"
        with BusManager(bus, answers):
            assert waiting.result(LONGEST_S) is False


@pytest.mark.integration
def test_end_of_a_job_counts_from_systemd_only(bus: MessageBus, bus_client: Systemd, answers: Answers) -> None:
    """Any process may send a signal to any connection on a bus."""
    answers.reports_ends = False
    with BusManager(bus, answers), bus.connect() as other, ThreadPoolExecutor(1) as thread:
        bus_client.set_properties(UNIT, [])
        (caller,) = answers.callers
        stop = threading.Event()

        def forge() -> None:
            while not stop.wait(0.005):
                message = job_removed(1, "/org/freedesktop/systemd1/job/1", UNIT, "failed")
                message.header.fields[HeaderFields.destination] = caller
                other.send(message)

        forging = thread.submit(forge)
        try:
            assert bus_client.start_slice(UNIT, [])
        finally:
            stop.set()
        forging.result(LONGEST_S)


@pytest.mark.integration
def test_own_socket_of_systemd_serves_where_it_is_not_on_the_bus(
    bus: MessageBus, private: PrivateManager, answers: Answers
) -> None:
    client = client_of(bus.path, private.path)
    assert client.start_slice(UNIT, [])
    assert answers.callers == {None}
    client.close()
