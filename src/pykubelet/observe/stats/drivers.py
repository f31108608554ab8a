"""Measures the volumes of CSI drivers: asks each driver, if it can measure at all.

A driver has `ANSWER_S` for all volumes of one pod. Source: Container Storage Interface 1.9, NodeGetVolumeStats.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from pykubelet.base.kit.log import Log
from pykubelet.base.model.ids import PodRef
from pykubelet.base.model.kube_events import KubeEvent, warning
from pykubelet.base.model.mounts import MountedVolume
from pykubelet.base.model.plugins import Plugin, Plugins
from pykubelet.base.model.reasons import EVENT_VOLUME_CONDITION_ABNORMAL
from pykubelet.base.model.usage import FileSystemUse, VolumeUse
from pykubelet.edges.csi import csi_pb2 as pb
from pykubelet.edges.csi.node import Capability, CsiNode
from pykubelet.net.grpc.status import Code, RpcError
from pykubelet.observe.stats.volumes import MeasuredVolume

log = Log("stats")
ANSWER_S = 10.0
_NO_ANSWER = (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.CANCELED)
#: Of a driver's text about the condition of a volume, that is all that is reported.
MAX_CONDITION = 500


def measurements(
    plugins: Plugins, volumes: Iterable[MountedVolume], at: float, *, with_condition: bool = False
) -> list[Coroutine[Any, Any, list[MeasuredVolume]]]:
    """For each driver of the volumes, the work that finds the usage which it reports; a driver may never answer.

    `at`: wall seconds now. `with_condition`: also whether volumes are abnormal.
    """
    by_driver: dict[str, list[MountedVolume]] = {}
    for volume in volumes:
        if volume.csi is not None and (volume.csi.path or not volume.is_block):
            by_driver.setdefault(volume.csi.driver, []).append(volume)
    return [
        _ask(plugin, driven, at, with_condition)
        for name, driven in by_driver.items()
        if (plugin := plugins.csi_driver(name)) is not None
    ]


async def _ask(plugin: Plugin, volumes: list[MountedVolume], at: float, with_condition: bool) -> list[MeasuredVolume]:
    loop, found = asyncio.get_running_loop(), list[MeasuredVolume]()
    until = loop.time() + ANSWER_S
    try:
        with CsiNode(plugin.name, plugin.endpoint, ANSWER_S) as node:
            capabilities = await node.capabilities()
            if Capability.GET_VOLUME_STATS not in capabilities:
                return []
            has_condition = with_condition and Capability.VOLUME_CONDITION in capabilities
            for volume in volumes:
                if (began := loop.time()) >= until:
                    break
                if (answer := await _stats(node, volume, has_condition)) is not None:
                    use, condition = volume_use(volume, answer, at, has_condition=has_condition)
                    found.append(MeasuredVolume(use, plugin.name, loop.time() - began, condition))
    except RpcError as error:
        log.debug("a CSI driver does not report the usage of volumes", driver=plugin.name, error=error)
    return found


async def _stats(node: CsiNode, volume: MountedVolume, has_condition: bool) -> pb.NodeGetVolumeStatsResponse | None:
    """The driver's answer about one volume; None if there is nothing in it. RpcError only if the driver does not answer."""
    assert volume.csi is not None
    try:
        answer = await node.stats(volume.csi.handle, volume.csi.path or volume.host_path)
    except RpcError as error:
        if error.code in _NO_ANSWER:
            raise
        log.debug("a CSI driver does not report the usage of a volume", volume=volume.csi.handle, error=error)
        return None
    if not answer.usage and not has_condition:
        log.debug("failed to get usage from response. usage is nil", volume=volume.csi.handle)
        return None
    return answer


def volume_use(
    volume: MountedVolume, answer: pb.NodeGetVolumeStatsResponse, at: float, *, has_condition: bool
) -> tuple[VolumeUse, str]:
    """A driver's answer as usage of a volume, and what is wrong with the volume. `has_condition`: the answer states that."""
    is_abnormal = answer.volume_condition.abnormal if has_condition and answer.HasField("volume_condition") else None
    use = VolumeUse(volume.name, file_system_use(answer, at), volume.claim, is_local=False, is_abnormal=is_abnormal)
    return use, answer.volume_condition.message[:MAX_CONDITION] if is_abnormal else ""


def condition_event(pod: PodRef, measured: MeasuredVolume) -> KubeEvent | None:
    """The Event about an abnormal volume of the pod; None for any other."""
    if not measured.condition:
        return None
    return warning(EVENT_VOLUME_CONDITION_ABNORMAL, f"Volume {measured.use.name}: {measured.condition}", pod)


def file_system_use(answer: pb.NodeGetVolumeStatsResponse, at: float) -> FileSystemUse:
    """A driver's answer as usage of a file system; what it does not report is None."""
    units = {usage.unit: usage for usage in answer.usage}
    size, inodes = units.get(pb.VolumeUsage.BYTES), units.get(pb.VolumeUsage.INODES)
    return FileSystemUse(
        at=at,
        capacity=size.total if size is not None else None,
        available=size.available if size is not None else None,
        used=size.used if size is not None else None,
        inodes=inodes.total if inodes is not None else None,
        inodes_free=inodes.available if inodes is not None else None,
        inodes_used=inodes.used if inodes is not None else None,
    )
