"""logind's inhibitor locks and announcements, over a real message bus."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fake_logind import FakeLogind
from support.fake_systemd import MessageBus

from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.services.logind import Logind

WAIT_S = 60.0


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[MessageBus]:
    made = MessageBus(tmp_path)
    made.start()
    yield made
    made.stop()


def connect(bus: MessageBus, tmp_path: Path) -> Logind:
    return Logind(f"unix:path={bus.path}", str(tmp_path / "logind.conf.d" / "99-kubelet.conf"))


def test_a_lock_delays_until_it_is_released(bus: MessageBus, tmp_path: Path) -> None:
    with FakeLogind(bus, tmp_path / "none") as logind:
        manager = connect(bus, tmp_path)
        lock = manager.inhibit()
        assert logind.inhibited == [("shutdown", "kubelet", "Kubelet needs time to handle node shutdown", "delay")]
        assert logind.held_locks() == 1
        manager.close()
        assert logind.held_locks() == 1, "the lock does not depend on the connection"
        lock.release()
        lock.release()
        logind.wait_released()


def test_the_delay_is_raised_by_a_drop_in_file_and_a_reload(bus: MessageBus, tmp_path: Path) -> None:
    drop_in = tmp_path / "logind.conf.d" / "99-kubelet.conf"
    with FakeLogind(bus, drop_in, delay_s=5) as logind:
        manager = connect(bus, tmp_path)
        assert manager.max_delay_s() == 5
        manager.raise_max_delay(45)
        assert manager.max_delay_s() == 45
        assert drop_in.read_text() == "# Kubelet logind override\n[Login]\nInhibitDelayMaxSec=45\n"
        assert (drop_in.stat().st_mode & 0o777, drop_in.parent.stat().st_mode & 0o777) == (0o644, 0o755)
        assert logind.reloads == [("systemd-logind.service", "all", 1)]
        manager.close()


def test_announcements_are_heard_until_the_connection_is_closed(bus: MessageBus, tmp_path: Path) -> None:
    heard: queue.SimpleQueue[bool] = queue.SimpleQueue()
    with FakeLogind(bus, tmp_path / "none") as logind:
        manager = connect(bus, tmp_path)
        watching = threading.Thread(target=manager.watch, args=(heard.put,))
        watching.start()
        first: bool | None = None
        for _ in range(600):  # until the subscription is there
            logind.announce(active=True)
            try:
                first = heard.get(timeout=0.1)
                break
            except queue.Empty:
                continue
        logind.announce(active=False)
        later = [first]
        while later[-1] is not False:
            later.append(heard.get(timeout=WAIT_S))
        assert set(later[:-1]) == {True}
        manager.close()
        watching.join(WAIT_S)
        assert not watching.is_alive()


def test_a_bus_that_ends_is_an_error_of_the_watch(bus: MessageBus, tmp_path: Path) -> None:
    failed: queue.SimpleQueue[HostError | None] = queue.SimpleQueue()

    def watch(manager: Logind) -> None:
        try:
            manager.watch(lambda _: None)
            failed.put(None)
        except HostError as error:
            failed.put(error)

    manager = connect(bus, tmp_path)
    watching = threading.Thread(target=watch, args=(manager,))
    watching.start()
    bus.stop()
    error = failed.get(timeout=WAIT_S)
    watching.join(WAIT_S)
    manager.close()
    assert error is not None and str(error).startswith("watch logind: ")


def test_a_machine_without_a_bus_or_without_logind_is_an_error(bus: MessageBus, tmp_path: Path) -> None:
    manager = connect(bus, tmp_path)
    with pytest.raises(HostError, match=r"InhibitDelayMaxUSec logind: .*ServiceUnknown"):
        manager.max_delay_s()
    manager.close()
    bus.stop()
    with pytest.raises(HostError, match="connect logind: "):
        connect(bus, tmp_path)
