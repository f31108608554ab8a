"""What the charts remember of the node and of each pod."""

from __future__ import annotations

from pykubelet.base.kit.cells import Mailbox, make_cell
from pykubelet.base.kit.clock import ManualClock
from pykubelet.base.model.ids import PodRef, PodUID
from pykubelet.base.model.usage import (
    ContainerUse,
    CpuUse,
    FileSystemUse,
    GroupUse,
    InterfaceUse,
    MemoryUse,
    NetworkUse,
    NodeUse,
    PodUse,
    Usage,
    VolumeUse,
)
from pykubelet.serve.page.history import KEPT, PERIOD_S, History

WEB = PodRef("default", "web", PodUID("web"))


def group(at: float) -> GroupUse:
    return GroupUse(at=at, cpu=CpuUse(), memory=MemoryUse(working_set=1 << 20), nano_cores=5_000_000)


def network(at: float, received: int, sent: int) -> NetworkUse:
    return NetworkUse(at, (InterfaceUse("eth0", rx_bytes=received, tx_bytes=sent),))


def node(at: float) -> NodeUse:
    return NodeUse(group(at), memory_capacity=1 << 30, booted_at=0.0, network=network(at, 0, 0))


def pod(at: float, traffic: tuple[int, int] | None, *, used: int | None = None) -> PodUse:
    files = FileSystemUse(at, used=used) if used is not None else None
    container = ContainerUse("app", "id", "image", "/pod/id", 0.0, group(at), rootfs=files, logs=files)
    elsewhere = VolumeUse("far", FileSystemUse(at, used=10**9), is_local=False)
    here = (VolumeUse("near", files), elsewhere) if files is not None else ()
    return PodUse(WEB, "/pod", 0.0, group(at), (container,), network(at, *traffic) if traffic else None, volumes=here)


def make_history() -> History:
    return History(make_cell("usage", Usage())[0], Mailbox("wanted"), ManualClock())


def test_network_is_reported_by_the_second_and_disk_without_volumes_elsewhere() -> None:
    history = make_history()
    history.add(0.0, node(100.0), [pod(100.0, (1000, 0))])
    history.add(5.0, node(105.0), [pod(105.0, (6000, 50), used=300)])
    history.add(10.0, node(110.0), [pod(110.0, (200, 0), used=300)])  # another network namespace: counters begin anew
    history.add(15.0, node(115.0), [pod(115.0, None)])  # that of the node
    points = history.pods[WEB.uid].points
    assert [point.at for point in points] == [100.0, 105.0, 110.0, 115.0]
    assert [(point.received, point.sent) for point in points] == [(None, None), (1000, 10), (0, 0), (None, None)]
    assert [point.disk for point in points] == [None, 900, 900, None]
    assert [point.received for point in history.node.points] == [None, 0, 0, 0]


def test_what_is_gone_is_forgotten_and_the_past_has_an_end() -> None:
    history = make_history()
    for number in range(KEPT + 5):
        at = number * PERIOD_S
        history.add(at, node(at), [pod(at, None)])
        history.add(at + 0.1, node(at), [])  # too soon after the last
    assert len(history.node.points) == len(history.pods[WEB.uid].points) == KEPT
    history.add(1e6, node(1e6), [])
    assert not history.pods
