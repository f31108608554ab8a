"""Usage in the messages of the CRI."""

from __future__ import annotations

from pykubelet.base.model.usage import CpuUse, GroupUse, InterfaceUse, MemoryUse, NetworkUse, PsiData, PsiStats
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet_cri_docker.stats.group_files import MeasuredUse
from pykubelet_cri_docker.stats.show_stats import pod_group, show_container, show_sandbox
from pykubelet_cri_docker.stats.tracked import LayerSize

AT = 1_700_000_000.5
MEMORY = MemoryUse(usage=1000, working_set=700, rss=400, page_faults_below=11, major_page_faults_below=3)
ITEM = pb.Container(
    id="c", metadata=pb.ContainerMetadata(name="main", attempt=2), labels={"a": "b"}, annotations={"x": "y"}
)


def group(cpu_ns: int = 5, memory: MemoryUse = MEMORY, **more: object) -> GroupUse:
    return GroupUse(AT, CpuUse(cpu_ns), memory, **more)  # type: ignore[arg-type]


def test_a_container() -> None:
    layer = LayerSize(AT + 1, 4096, 2, 0.0, 0.0)
    shown = show_container(ITEM, group(), 250, layer, "/var/lib/docker/overlay2")
    assert shown.attributes == pb.ContainerAttributes(
        id="c", metadata=ITEM.metadata, labels=ITEM.labels, annotations=ITEM.annotations
    )
    assert shown.cpu.timestamp == shown.memory.timestamp == 1_700_000_000_500_000_000
    assert (shown.cpu.usage_core_nano_seconds.value, shown.cpu.usage_nano_cores.value) == (5, 250)
    memory = shown.memory
    assert (memory.usage_bytes.value, memory.working_set_bytes.value, memory.rss_bytes.value) == (1000, 700, 400)
    assert (memory.page_faults.value, memory.major_page_faults.value) == (11, 3)
    written = shown.writable_layer
    assert (written.timestamp, written.fs_id.mountpoint) == (1_700_000_001_500_000_000, "/var/lib/docker/overlay2")
    assert (written.used_bytes.value, written.inodes_used.value) == (4096, 2)


def test_what_is_not_known_is_left_out_and_zero_is_not() -> None:
    shown = show_container(ITEM, group(), None, None, "")
    assert not shown.cpu.HasField("usage_nano_cores") and not shown.memory.HasField("available_bytes")
    assert not any(shown.HasField(name) for name in ("writable_layer", "swap", "io"))
    assert show_container(ITEM, group(), 0, None, "").cpu.HasField("usage_nano_cores")


def test_available_is_the_rest_of_a_limit() -> None:
    limited = MemoryUse(usage=1000, working_set=700, limit=1200, swap=10, swap_limit=50)
    shown = show_container(ITEM, group(memory=limited), None, None, "")
    assert (shown.memory.available_bytes.value, shown.swap.swap_available_bytes.value) == (500, 40)
    assert shown.swap.swap_usage_bytes.value == 10
    lowered = MemoryUse(usage=1000, working_set=700, limit=600, swap=10)
    shown = show_container(ITEM, group(memory=lowered), None, None, "")
    assert shown.memory.HasField("available_bytes") and shown.memory.available_bytes.value == 0
    assert not shown.swap.HasField("swap_available_bytes")


def test_pressure_is_in_nanoseconds() -> None:
    stalled = PsiStats(PsiData(3, 1.5, 0.25, 0.0), PsiData(2, 0.5, 0.0, 0.0))
    shown = show_container(ITEM, group(pressure={"cpu": stalled, "io": stalled}), None, None, "")
    assert (shown.cpu.psi.Some.Total, shown.cpu.psi.Some.Avg10, shown.cpu.psi.Full.Total) == (3000, 1.5, 2000)
    assert shown.io.psi == shown.cpu.psi and shown.io.timestamp == shown.cpu.timestamp
    assert not shown.memory.HasField("psi")


def test_a_sandbox() -> None:
    item = pb.PodSandbox(id="s", metadata=pb.PodSandboxMetadata(name="web", uid="u"), labels={"a": "b"})
    network = NetworkUse(
        AT, (InterfaceUse("eth0", rx_bytes=1, rx_errors=2, tx_bytes=3, tx_errors=4), InterfaceUse("n"))
    )
    shown = show_sandbox(item, group(), 7, network, [group(processes=2), group(processes=None), group(processes=3)])
    assert (shown.attributes.id, shown.attributes.metadata.uid, shown.attributes.labels["a"]) == ("s", "u", "b")
    linux = shown.linux
    assert (linux.cpu.usage_nano_cores.value, linux.memory.usage_bytes.value) == (7, 1000)
    assert linux.process.process_count.value == 5
    assert [each.name for each in linux.network.interfaces] == ["eth0", "n"]
    default = linux.network.default_interface
    assert default.name == "eth0" and linux.network.timestamp == linux.cpu.timestamp
    assert (default.rx_bytes.value, default.rx_errors.value) == (1, 2)
    assert (default.tx_bytes.value, default.tx_errors.value) == (3, 4)
    assert not show_sandbox(item, group(), 7, None, []).linux.HasField("network")


def test_a_pod_without_a_cgroup_is_the_sum_of_its_parts() -> None:
    whole = group(cpu_ns=100)
    assert pod_group(MeasuredUse(whole, 0.0, is_whole_pod=True), [group()]) == whole
    summed = pod_group(MeasuredUse(group(cpu_ns=1), 0.0), [group(cpu_ns=2), group(cpu_ns=3)])
    assert (summed.cpu.total_ns, summed.memory.usage, summed.memory.working_set) == (6, 3000, 2100)
    assert (summed.memory.page_faults_below, summed.memory.rss, summed.memory.limit) == (33, 1200, None)
