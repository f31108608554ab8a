"""Usage in the messages of the CRI. Pure.

What the kernel does not report is left out, and so is what would be available of something that has no limit.
"""

from __future__ import annotations

from collections.abc import Sequence

from pykubelet.base.model.usage import CpuUse, GroupUse, InterfaceUse, MemoryUse, NetworkUse, PsiData, PsiStats
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet_cri_docker.stats.group_files import MeasuredUse
from pykubelet_cri_docker.stats.tracked import LayerSize


def show_container(
    item: pb.Container, group: GroupUse, nano_cores: int | None, layer: LayerSize | None, storage: str
) -> pb.ContainerStats:
    """The statistics of a container. `nano_cores` None: this is the first reading. `storage`: the directory of all writable layers."""
    at_ns = _nanoseconds(group.at)
    return pb.ContainerStats(
        attributes=pb.ContainerAttributes(
            id=item.id, metadata=item.metadata, labels=item.labels, annotations=item.annotations
        ),
        cpu=_cpu(group, at_ns, nano_cores),
        memory=_memory(group, at_ns),
        writable_layer=_file_system(layer, storage) if layer is not None else None,
        swap=_swap(group.memory, at_ns),
        io=_io(group, at_ns),
    )


def show_sandbox(
    item: pb.PodSandbox,
    group: GroupUse,
    nano_cores: int | None,
    network: NetworkUse | None,
    inside: Sequence[GroupUse],
) -> pb.PodSandboxStats:
    """The statistics of a sandbox, without those of its containers. `group`: the whole pod. `inside`: its containers."""
    at_ns = _nanoseconds(group.at)
    return pb.PodSandboxStats(
        attributes=pb.PodSandboxAttributes(
            id=item.id, metadata=item.metadata, labels=item.labels, annotations=item.annotations
        ),
        linux=pb.LinuxPodSandboxStats(
            cpu=_cpu(group, at_ns, nano_cores),
            memory=_memory(group, at_ns),
            network=_network(network) if network is not None else None,
            process=pb.ProcessUsage(
                timestamp=at_ns, process_count=_number(sum(each.processes or 0 for each in inside))
            ),
            io=_io(group, at_ns),
        ),
    )


def pod_group(own: MeasuredUse, inside: Sequence[GroupUse]) -> GroupUse:
    """What a pod uses: its cgroup, or the sum of its sandbox and its containers if it has none."""
    if own.is_whole_pod:
        return own.group
    groups = (own.group, *inside)
    memory = MemoryUse(
        usage=sum(group.memory.usage for group in groups),
        working_set=sum(group.memory.working_set for group in groups),
        rss=sum(group.memory.rss for group in groups),
        page_faults_below=sum(group.memory.page_faults_below for group in groups),
        major_page_faults_below=sum(group.memory.major_page_faults_below for group in groups),
    )
    return GroupUse(own.group.at, CpuUse(sum(group.cpu.total_ns for group in groups)), memory)


def _nanoseconds(at: float) -> int:
    return int(at * 1e9)


def _number(value: int) -> pb.UInt64Value:
    return pb.UInt64Value(value=max(0, value))


def _cpu(group: GroupUse, at_ns: int, nano_cores: int | None) -> pb.CpuUsage:
    return pb.CpuUsage(
        timestamp=at_ns,
        usage_core_nano_seconds=_number(group.cpu.total_ns),
        usage_nano_cores=_number(nano_cores) if nano_cores is not None else None,
        psi=_pressure(group.pressure.get("cpu")),
    )


def _memory(group: GroupUse, at_ns: int) -> pb.MemoryUsage:
    use = group.memory
    return pb.MemoryUsage(
        timestamp=at_ns,
        working_set_bytes=_number(use.working_set),
        available_bytes=_number(use.limit - use.working_set) if use.limit is not None else None,
        usage_bytes=_number(use.usage),
        rss_bytes=_number(use.rss),
        page_faults=_number(use.page_faults_below),
        major_page_faults=_number(use.major_page_faults_below),
        psi=_pressure(group.pressure.get("memory")),
    )


def _swap(use: MemoryUse, at_ns: int) -> pb.SwapUsage | None:
    if use.swap is None:
        return None
    limit = use.swap_limit
    available = _number(limit - use.swap) if limit is not None else None
    return pb.SwapUsage(timestamp=at_ns, swap_available_bytes=available, swap_usage_bytes=_number(use.swap))


def _io(group: GroupUse, at_ns: int) -> pb.IoUsage | None:
    found = _pressure(group.pressure.get("io"))
    return pb.IoUsage(timestamp=at_ns, psi=found) if found is not None else None


def _pressure(found: PsiStats | None) -> pb.PsiStats | None:
    if found is None:
        return None
    return pb.PsiStats(Some=_stalled(found.some), Full=_stalled(found.full) if found.full is not None else None)


def _stalled(line: PsiData) -> pb.PsiData:
    return pb.PsiData(Total=line.total_us * 1000, Avg10=line.avg10, Avg60=line.avg60, Avg300=line.avg300)


def _file_system(layer: LayerSize, storage: str) -> pb.FilesystemUsage:
    return pb.FilesystemUsage(
        timestamp=_nanoseconds(layer.at),
        fs_id=pb.FilesystemIdentifier(mountpoint=storage),
        used_bytes=_number(layer.used),
        inodes_used=_number(layer.inodes),
    )


def _network(use: NetworkUse) -> pb.NetworkUsage:
    """All interfaces, and as the default one `eth0`, or else the first."""
    shown = [_interface(interface) for interface in use.interfaces]
    return pb.NetworkUsage(
        timestamp=_nanoseconds(use.at), default_interface=shown[0] if shown else None, interfaces=shown
    )


def _interface(found: InterfaceUse) -> pb.NetworkInterfaceUsage:
    return pb.NetworkInterfaceUsage(
        name=found.name,
        rx_bytes=_number(found.rx_bytes),
        rx_errors=_number(found.rx_errors),
        tx_bytes=_number(found.tx_bytes),
        tx_errors=_number(found.tx_errors),
    )
