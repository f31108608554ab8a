"""The volumes of a pod as plain values for JSON: where each stands, what works on it, and who keeps it from being unmounted.

Owns: the search for programs and holders in /proc. It runs only for an answer, in a thread, and for `SEARCH_S` at most;
what it has found by then is shown. Holders are searched only for volumes that are to be unmounted.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from msgspec.structs import asdict

from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.mounts import DeviceStatus, MountStatus
from pykubelet.base.model.node import ApiNode
from pykubelet.base.model.paths import Paths
from pykubelet.base.model.plugins import Plugins, PluginType
from pykubelet.edges.csi.node import RunningCall, running_calls
from pykubelet.edges.host.fs.programs import RunningProgram, running_program
from pykubelet.edges.host.proc.holders import Holder, HolderSearch
from pykubelet.edges.host.proc.kernel_waits import ProcessState, kernel_wait
from pykubelet.edges.plugins.channels import UNIX
from pykubelet.edges.plugins.peer import serving_process

Document = dict[str, Any]
#: How long the search may take, and how long its answer is awaited: seconds.
SEARCH_S, ANSWER_S = 2.0, 3.0
_CSI = "/volumes/kubernetes.io~csi/"
_STATES = {
    "T": ", which a signal has stopped: it goes on after SIGCONT",
    "t": ", which a debugger has stopped",
    "D": ", which waits in the kernel",
    "Z": ", which has ended",
}
#: Part of the error of a volume whose driver has not registered.
DRIVER_MISSING = "not found in the list of registered CSI drivers"


class VolumeFacts(Value):
    """What was found out about one volume on this machine. `search`: None if holders were not searched.

    `calls`: those that its driver has not answered. `kernel_wait`: what the agent waits for in the kernel, in words.
    """

    program: RunningProgram | None = None
    search: HolderSearch | None = None
    calls: tuple[RunningCall, ...] = ()
    kernel_wait: str = ""


class VolumeContext(Value):
    """What the texts are made with. `names`: `namespace/name` of the pods of the node. `mono`: monotonic seconds now.

    `in_use`: the devices that the agent wants in the Node's `volumesInUse`. `statuses`: where the volumes of all pods stand.
    """

    node: ApiNode
    plugins: Plugins
    names: Mapping[PodUID, str]
    mono: float
    in_use: tuple[str, ...] = ()
    statuses: Mapping[PodUID, tuple[MountStatus, ...]] = field(default_factory=dict)
    facts: Mapping[str, VolumeFacts] = field(default_factory=dict)


class VolumeSearch:
    """Finds out what happens to volumes on this machine. `paths`: those of the agent."""

    def __init__(self, paths: Paths, flight: SingleFlight) -> None:
        self._paths = paths
        self._flight = flight

    async def find(self, pods: Mapping[PodUID, tuple[MountStatus, ...]]) -> Mapping[PodUID, Mapping[str, VolumeFacts]]:
        """The facts by pod and name of the volume, for those that are neither mounted nor simply waiting."""
        found = {
            uid: {status.name: self._facts(uid, status) for status in statuses if status.is_leaving or status.since}
            for uid, statuses in pods.items()
        }
        every = [facts.search for of_pod in found.values() for facts in of_pod.values()]
        searches = [search for search in every if search is not None]
        if searches:
            await self._flight.run(f"holders/{','.join(pods)}", lambda: _run_all(searches), ANSWER_S)
        return found

    def _facts(self, uid: PodUID, status: MountStatus) -> VolumeFacts:
        """What is known without a search, and the search that is to be made."""
        device, key = status.device, f"volume/{uid}/{status.name}"
        directories = [f"{self._paths.pod(uid)}/{status.directory}"] if status.directory else []
        keys = [key]
        if device is not None:
            directories.append(device.directory)
            keys.append(f"device/{device.name}")
        program = next((found for directory in directories if (found := running_program(directory)) is not None), None)
        threads = [thread for key in keys if (thread := self._flight.thread(key)) is not None]
        waits = [words for thread in threads if (words := kernel_wait(thread))] if program is None else []
        is_leaving = status.is_leaving or (device is not None and device.is_leaving)
        # a CSI driver mounts the volume below its directory: that mount holds nothing up
        own = [f"{directory}/mount" for directory in directories[:1] if _CSI in directory]
        search = HolderSearch((*directories, *own)) if is_leaving and directories else None
        return VolumeFacts(program, search, self._calls(status, directories), waits[0] if waits else "")

    def _calls(self, status: MountStatus, directories: list[str]) -> tuple[RunningCall, ...]:
        """The calls about the volume: those with a path below its directories. Block volumes have paths of their own, with its name.

        While an operation runs, calls without a path, which ask what the driver can do, count too: they come first.
        """
        is_busy = status.is_busy or (status.device is not None and status.device.is_busy)

        def is_about(path: str) -> bool:
            if any(path == directory or path.startswith(f"{directory}/") for directory in directories):
                return True
            parts = path.removeprefix(f"{self._paths.plugins}/").split("/")
            return path.startswith(f"{self._paths.plugins}/") and status.spec_name in parts

        calls = running_calls(status.driver)  # of a volume that is only known from the disk, the driver is unknown
        is_busy = is_busy and status.driver != ""
        found = [call for call in calls if any(is_about(path) for path in call.paths) or (is_busy and not call.paths)]
        return tuple({call.name: call for call in reversed(found)}.values())


def _run_all(searches: list[HolderSearch]) -> None:
    """Search for all within `SEARCH_S`, one after the other, so that no more than one thread is busy."""
    until = time.monotonic() + SEARCH_S
    for search in searches:
        search.run(until - time.monotonic())


def volume_documents(uid: PodUID, context: VolumeContext) -> list[Document]:
    """One document for each volume of the pod."""
    statuses = context.statuses.get(uid, ())
    return [_document(uid, status, context.facts.get(status.name, VolumeFacts()), context) for status in statuses]


def _document(uid: PodUID, status: MountStatus, facts: VolumeFacts, context: VolumeContext) -> Document:
    search = facts.search
    notes = [
        *_attachment_notes(status.device, context),
        *_driver_notes(status, facts, context.plugins),
        *_other_pod_notes(uid, status, context),
        *([f"the agent waits for {facts.kernel_wait}"] if facts.kernel_wait else ()),
    ]
    return {
        "name": status.name,
        "spec_name": status.spec_name,
        "kind": status.kind,
        "state": status.state,
        "since": status.since,
        "driver": status.driver,
        "error": status.error,
        "device": asdict(status.device) if status.device is not None else None,
        "claim": status.claim,
        "next_step": status.next_step,
        "next_at": status.next_at,
        "notes": notes,
        "calls": [_call(call, context.mono) for call in facts.calls],
        "program": _program(facts.program, context.mono),
        "holders": [_holder(holder, context.names) for holder in search.holders] if search is not None else [],
        "mounts": [asdict(mount) for mount in search.mounts] if search is not None else [],
        "is_search_complete": search is None or search.is_complete,
    }


def _program(program: RunningProgram | None, mono: float) -> Document | None:
    if program is None:
        return None
    return {"name": program.name, "pid": program.pid, "seconds": max(0.0, mono - program.since)}


def _call(call: RunningCall, mono: float) -> Document:
    """`seconds`: since the call. `left`: the seconds after which it is given up."""
    seconds, left = max(0.0, mono - call.since), max(0.0, call.until - mono)
    return {"driver": call.driver, "name": call.name, "seconds": seconds, "left": left}


def _other_pod_notes(uid: PodUID, status: MountStatus, context: VolumeContext) -> list[str]:
    """The operations for other pods that an operation on the same device has to wait for."""
    device = status.device
    if device is None or status.is_busy or device.is_busy or not (status.is_leaving or status.since):
        return []
    return [
        f"waits for an operation on the same volume, for pod {context.names.get(other, other)}: {mount.state}"
        for other, statuses in context.statuses.items()
        if other != uid
        for mount in statuses
        if mount.is_busy and mount.device is not None and mount.device.name == device.name
    ]


def _holder(holder: Holder, names: Mapping[PodUID, str]) -> Document:
    """`pod`: the process runs in its cgroup."""
    group = holder.group.replace("_", "-")
    pod = next((name for uid, name in names.items() if f"pod{uid}" in group), "")
    return {"pid": holder.pid, "name": holder.name, "use": holder.use, "path": holder.path, "pod": pod}


def _attachment_notes(device: DeviceStatus | None, context: VolumeContext) -> list[str]:
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


def _driver_notes(status: MountStatus, facts: VolumeFacts, plugins: Plugins) -> list[str]:
    """Which drivers have registered, if the one that is needed has not; else its process, if it does not answer or has failed."""
    name = status.driver or (facts.calls[0].driver if facts.calls else "")
    driver = plugins.csi_driver(name) if name else None
    is_failing = status.error or (status.device is not None and status.device.error)
    if driver is not None and (facts.calls or is_failing):
        return [_process_note(name, serving_process(driver.endpoint.removeprefix(UNIX)))]
    is_missing = status.driver != "" and driver is None
    if not is_missing and DRIVER_MISSING not in status.error:
        return []
    others = ", ".join(sorted({plugin.name for plugin in plugins.of(PluginType.CSI)})) or "none"
    notes = [f"the CSI drivers that are registered on this node: {others}"]
    return notes + [f"not registered: {socket}: {problem}" for socket, problem in sorted(plugins.problems.items())]


def _process_note(driver: str, found: ProcessState | str) -> str:
    if isinstance(found, str):
        return f"the driver {driver}: {found}"
    state = _STATES.get(found.state, "")
    return f"the driver {driver} is process {found.pid} ({found.name}){state}"
