"""`/stats/summary`: `Usage` in the format of the stats API. Pure.

Source: the Kubernetes documentation "Node metrics data" (Summary API, stats/v1alpha1).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pykubelet.base.api.times import format_time
from pykubelet.base.kit.values import replace
from pykubelet.base.model.usage import (
    ContainerUse,
    FileSystemUse,
    GroupUse,
    InterfaceUse,
    NetworkUse,
    NodeUse,
    PodUse,
    PsiData,
    PsiStats,
    Usage,
    VolumeUse,
    parts_on_disk,
)

Json = dict[str, Any]
DEFAULT_INTERFACE = "eth0"
_NOTHING = PsiData(0, 0.0, 0.0, 0.0)


def render_summary(usage: Usage, node: str, agent_started: float, *, only_cpu_and_memory: bool) -> Json:
    """The document. `agent_started`: wall seconds. Raises ValueError if there is no usage yet."""
    if usage.node is None:
        raise ValueError(usage.error or "nothing is known yet")
    pods = [_pod(pod, usage.node, brief=only_cpu_and_memory) for pod in usage.pods.values()]
    return {"node": _node(usage.node, node, agent_started, brief=only_cpu_and_memory), "pods": pods}


def _filled(document: Mapping[str, Any]) -> Json:
    """The document without fields that are not known."""
    return {key: value for key, value in document.items() if value is not None}


def _node(use: NodeUse, name: str, agent_started: float, *, brief: bool) -> Json:
    started = {"kubelet": agent_started}
    system = [
        _filled({"name": key, "startTime": format_time(started.get(key, group.made_at)), **_usage(group, brief=brief)})
        for key, group in use.system.items()
    ]
    document = {
        "nodeName": name,
        "systemContainers": system,
        "startTime": format_time(use.booted_at),
        **_usage(use.group, capacity=max(0, use.memory_capacity - use.huge_pages), brief=brief),
    }
    if not brief:
        document |= {
            "network": _network(use.network),
            "fs": _fs(use.fs),
            "runtime": _filled({"imageFs": _fs(use.image_fs), "containerFs": _fs(use.container_fs)}),
            "rlimit": _filled({"time": format_time(use.group.at), "maxpid": use.max_pids, "curproc": use.running_pids}),
        }
    return _filled(document)


def _pod(use: PodUse, node: NodeUse, *, brief: bool) -> Json:
    ref = {"name": use.ref.name, "namespace": use.ref.namespace, "uid": use.ref.uid}
    document: Json = {
        "podRef": ref,
        "startTime": format_time(use.started_at),
        "containers": [_container(container, brief=brief) for container in use.containers],
    }
    if use.group is not None:
        document |= _usage(use.group, brief=brief)
    if not brief:
        processes = use.group.processes if use.group is not None else None
        document |= {
            "network": _network(use.network),
            "volume": [_volume(volume) for volume in use.volumes] or None,
            "ephemeral-storage": _ephemeral(use, node),
            "process_stats": {"process_count": processes} if processes is not None else None,
        }
    return _filled(document)


def _container(use: ContainerUse, *, brief: bool) -> Json:
    document = {"name": use.name, "startTime": format_time(use.started_at), **_usage(use.group, brief=brief)}
    if not brief:
        document |= {"rootfs": _fs(use.rootfs), "logs": _fs(use.logs)}
    return _filled(document)


def _usage(group: GroupUse, *, capacity: int | None = None, brief: bool) -> Json:
    """CPU, memory and swap of a cgroup. `capacity`: that of the machine without huge pages, for the root cgroup."""
    at, memory = format_time(group.at), group.memory
    limit = memory.limit if capacity is None else capacity
    pressure = group.pressure
    document: Json = {
        "cpu": _filled(
            {
                "time": at,
                "usageNanoCores": group.nano_cores,
                "usageCoreNanoSeconds": group.cpu.total_ns,
                "psi": _psi(pressure.get("cpu")),
            }
        ),
        "memory": _filled(
            {
                "time": at,
                "availableBytes": max(0, limit - memory.working_set) if limit is not None else None,
                "usageBytes": memory.usage,
                "workingSetBytes": memory.working_set,
                "rssBytes": memory.rss,
                "pageFaults": memory.page_faults,
                "majorPageFaults": memory.major_page_faults,
                "psi": _psi(pressure.get("memory")),
            }
        ),
    }
    if memory.swap is not None:
        free = max(0, memory.swap_limit - memory.swap) if memory.swap_limit is not None else None
        document["swap"] = _filled({"time": at, "swapAvailableBytes": free, "swapUsageBytes": memory.swap})
    if not brief and "io" in pressure:
        document["io"] = {"time": at, "psi": _psi(pressure["io"])}
    return document


def _psi(pair: PsiStats | None) -> Json:
    """Pressure stall information. Missing values are zero, because clients rely on the fields since they are GA."""
    if pair is None:
        pair = PsiStats(_NOTHING)
    return {"full": _pressure(pair.full or _NOTHING), "some": _pressure(pair.some)}


def _pressure(psi: PsiData) -> Json:
    """One line of pressure. `total`: microseconds (`docs/decisions/0022-totals-of-pressure-are-microseconds.md`)."""
    return {"total": psi.total_us, "avg10": psi.avg10, "avg60": psi.avg60, "avg300": psi.avg300}


def _network(use: NetworkUse | None) -> Json | None:
    """All interfaces. Only `eth0` is reported as the default one, because clients expect this name or none."""
    if use is None:
        return None
    interfaces = [_interface(interface) for interface in use.interfaces]
    default = next((interface for interface in interfaces if interface["name"] == DEFAULT_INTERFACE), {"name": ""})
    return {"time": format_time(use.at), **default, "interfaces": interfaces}


def _interface(use: InterfaceUse) -> Json:
    return {
        "name": use.name,
        "rxBytes": use.rx_bytes,
        "rxErrors": use.rx_errors,
        "txBytes": use.tx_bytes,
        "txErrors": use.tx_errors,
    }


def _fs(use: FileSystemUse | None) -> Json | None:
    if use is None:
        return None
    return _filled(
        {
            "time": format_time(use.at),
            "availableBytes": use.available,
            "capacityBytes": use.capacity,
            "usedBytes": use.used,
            "inodesFree": use.inodes_free,
            "inodes": use.inodes,
            "inodesUsed": use.inodes_used,
        }
    )


def _volume(volume: VolumeUse) -> Json:
    document = {**(_fs(volume.fs) or {}), "name": volume.name}
    if volume.claim is not None:
        document["pvcRef"] = {"namespace": volume.claim[0], "name": volume.claim[1]}
    if volume.is_abnormal is not None:
        document["volumeHealthStats"] = {"abnormal": volume.is_abnormal}
    return document


def _ephemeral(use: PodUse, node: NodeUse) -> Json | None:
    """The pod's usage of the node's own disk."""
    if node.fs is None:
        return None
    parts = parts_on_disk(use)
    document = _fs(replace(node.fs, at=max(part.at for part in (node.fs, *parts)))) or {}
    return document | {
        "usedBytes": sum(part.used or 0 for part in parts),
        "inodesUsed": sum(part.inodes_used or 0 for part in parts),
    }
