"""The volumes of a pod as plain values for JSON: where each stands, what works on it, and who keeps it from being unmounted.

Owns: the search for programs and holders in /proc. It runs only for an answer, in a thread, and for `SEARCH_S` at most;
what it has found by then is shown. Holders are searched only for volumes that are to be unmounted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from msgspec.structs import asdict

from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.mounts import DeviceStanding, PodMounts, VolumeStanding
from pykubelet.base.model.node import ApiNode
from pykubelet.base.model.paths import Paths
from pykubelet.base.model.plugins import Plugins, PluginType
from pykubelet.edges.host.fs.programs import RunningProgram, running_program
from pykubelet.edges.host.proc.holders import Holder, HolderSearch

Document = dict[str, Any]
#: How long the search may take, and how long its answer is awaited: seconds.
SEARCH_S, ANSWER_S = 2.0, 3.0
#: Part of the error of a volume whose driver has not registered.
DRIVER_MISSING = "not found in the list of registered CSI drivers"


class VolumeFacts(Value):
    """What was found out about one volume on this machine. `search`: None if holders were not searched."""

    program: RunningProgram | None = None
    search: HolderSearch | None = None


class VolumeContext(Value):
    """What the texts are made with. `names`: `namespace/name` of the pods of the node. `mono`: monotonic seconds now.

    `in_use`: the devices that the agent wants in the Node's `volumesInUse`.
    """

    node: ApiNode
    plugins: Plugins
    names: Mapping[PodUID, str]
    mono: float
    in_use: tuple[str, ...] = ()
    facts: Mapping[str, VolumeFacts] = field(default_factory=dict)


class VolumeSearch:
    """Finds out what happens to volumes on this machine. `paths`: those of the agent."""

    def __init__(self, paths: Paths, flight: SingleFlight) -> None:
        self._paths = paths
        self._flight = flight

    async def find(self, uid: PodUID, mounts: PodMounts | None) -> Mapping[str, VolumeFacts]:
        """The facts by name of the volume, for those that are neither mounted nor simply waiting."""
        standings = mounts.standings if mounts is not None else ()
        watched = [one for one in standings if one.is_leaving or one.since]
        found = await asyncio.gather(*(self._find(uid, one) for one in watched))
        return {one.name: facts for one, facts in zip(watched, found, strict=True)}

    async def _find(self, uid: PodUID, standing: VolumeStanding) -> VolumeFacts:
        directories = [f"{self._paths.pod(uid)}/{standing.directory}"] if standing.directory else []
        device = standing.device
        if device is not None:
            directories.append(device.directory)
        program = next((found for one in directories if (found := running_program(one)) is not None), None)
        is_leaving = standing.is_leaving or (device is not None and device.is_leaving)
        if not is_leaving or not directories:
            return VolumeFacts(program)
        search = HolderSearch(tuple(directories))
        await self._flight.run(f"holders/{uid}/{standing.name}", lambda: search.run(SEARCH_S), ANSWER_S)
        return VolumeFacts(program, search)


def volume_documents(mounts: PodMounts | None, context: VolumeContext) -> list[Document]:
    """One document for each volume of the pod, in the order of its spec."""
    standings = mounts.standings if mounts is not None else ()
    return [_document(one, context.facts.get(one.name, VolumeFacts()), context) for one in standings]


def _document(standing: VolumeStanding, facts: VolumeFacts, context: VolumeContext) -> Document:
    search = facts.search
    return {
        "name": standing.name,
        "spec_name": standing.spec_name,
        "kind": standing.kind,
        "state": standing.state,
        "since": standing.since,
        "driver": standing.driver,
        "error": standing.error,
        "device": asdict(standing.device) if standing.device is not None else None,
        "notes": [*_attachment_notes(standing.device, context), *_driver_notes(standing, context.plugins)],
        "program": _program(facts.program, context.mono),
        "holders": [_holder(one, context.names) for one in search.holders] if search is not None else [],
        "mounts": [asdict(one) for one in search.mounts] if search is not None else [],
        "is_search_complete": search is None or search.is_complete,
    }


def _program(program: RunningProgram | None, mono: float) -> Document | None:
    if program is None:
        return None
    return {"name": program.name, "pid": program.pid, "seconds": max(0.0, mono - program.since)}


def _holder(holder: Holder, names: Mapping[PodUID, str]) -> Document:
    """`pod`: that in whose cgroup the process runs."""
    group = holder.group.replace("_", "-")
    pod = next((name for uid, name in names.items() if f"pod{uid}" in group), "")
    return {"pid": holder.pid, "name": holder.name, "use": holder.use, "path": holder.path, "pod": pod}


def _attachment_notes(device: DeviceStanding | None, context: VolumeContext) -> list[str]:
    """What is missing before a device is attached to the node."""
    if device is None or not device.is_attachable or device.name in context.node.volumes_attached:
        return []
    if device.name not in context.node.volumes_in_use:
        reported = "is about to report" if device.name in context.in_use else "does not report"
        return [f"the agent {reported} {device.name} in the Node's volumesInUse, which comes before its attachment"]
    return [
        f"waits until the attach-detach controller lists {device.name} in the Node's volumesAttached: "
        "see the VolumeAttachments of this node, and the logs of kube-controller-manager and of the driver's controller"
    ]


def _driver_notes(standing: VolumeStanding, plugins: Plugins) -> list[str]:
    """Which drivers have registered, if the one that is needed has not."""
    is_missing = standing.driver != "" and plugins.csi_driver(standing.driver) is None
    if not is_missing and DRIVER_MISSING not in standing.error:
        return []
    others = ", ".join(sorted({plugin.name for plugin in plugins.of(PluginType.CSI)})) or "none"
    notes = [f"the CSI drivers that are registered on this node: {others}"]
    return notes + [f"not registered: {socket}: {problem}" for socket, problem in sorted(plugins.problems.items())]
