"""Writes the agent's state files, with one entry of everything: the files that the tests keep of each release.

Usage: ``python tools/gen_states.py`` writes ``tests/support/states/<version>``, as a part of making a release. The tests use `read`
too: this version must find in an older release's files what it finds in its own.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from pykubelet import __version__
from pykubelet.act.pods.hooks import HookRecords
from pykubelet.act.runtime.lifecycle.decide_userns import format_mapping, namespace_at, parse_mapping
from pykubelet.base.api.codec import decode, encode
from pykubelet.base.api.core import ContainerStatus, PodStatus, ResourceRequirements
from pykubelet.base.kit.clock import ManualClock
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.model.claims import ClaimDevice
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.placement import MemoryBlock
from pykubelet.base.model.roster import NameHolder
from pykubelet.base.model.sizing import PodSize
from pykubelet.desired.roster.holders import HolderMemory
from pykubelet.desired.roster.kept_size import KeptSize
from pykubelet.desired.roster.size_memory import SizeMemory
from pykubelet.desired.sources.decide_quarantine import Suspect
from pykubelet.edges.host.fs.checkpoint import Checkpoint
from pykubelet.observe.shutdown.record import END_TIME, START_TIME, ShutdownRecord
from pykubelet.observe.shutdown.record import NAME as SHUTDOWN
from pykubelet.provide.claims.model import ClaimInfo, ClaimKey
from pykubelet.provide.claims.state import decode_state, encode_state
from pykubelet.provide.claims.store import STATE_FILE
from pykubelet.provide.images.record_store import RecordStore
from pykubelet.provide.images.records import ImageAccess, ImageIdentity
from pykubelet.provide.objects.binding import Bindings
from pykubelet.provide.placement import cpu_state, memory_state
from pykubelet.provide.placement.cpu_manager import CpuState
from pykubelet.provide.placement.devices.device_checkpoint import FILE_NAME as DEVICES
from pykubelet.provide.placement.devices.device_checkpoint import encode as encode_devices
from pykubelet.provide.placement.devices.device_files import DeviceFiles
from pykubelet.provide.placement.devices.device_state import DeviceEntry, state_of
from pykubelet.provide.placement.memory_state import MemoryState, MemoryTable, NodeMemory
from pykubelet.report.status.memory import StatusMemory

FOLDER = Path(__file__).parents[1] / "tests/support/states"
UID = PodUID("0c1d6a52-6f0b-4b3c-9a53-1f6d6f7a2b10")
_IMAGE = "registry.example.com/shop/web:1"
_DIGEST = "sha256:" + "ab" * 32
_AT = 1_750_000_000.0
_RESOURCE = "example.com/device"
_CLAIM = ClaimKey("default", "gpu")


def write(root: Path) -> None:
    """Write every file into the root directory `root`, which is made."""
    root.mkdir(parents=True)
    asyncio.run(_write_kept(root))
    sizes = {UID: KeptSize(size=PodSize(containers={"web": ResourceRequirements(requests={"cpu": "100m"})}), at=_AT)}
    Checkpoint(str(root / "pod_sizes")).save(encode(sizes))
    bindings = Bindings({"default/data": "disk-1"}, {"PersistentVolume//disk-1": "/etc/kubernetes/manifests/disk.yaml"})
    Checkpoint(str(root / "volume_bindings")).save(encode(bindings))
    holders = {"web_default": NameHolder("file", "/etc/kubernetes/manifests/web.yaml")}
    Checkpoint(str(root / "static_pods")).save(encode(holders))
    suspects = {str(UID): Suspect(2, _AT, "its event loop was blocked for 61 s", "ab12", _AT + 600.0)}
    Checkpoint(str(root / "quarantine")).save(encode(suspects))
    cpus = CpuState(frozenset({0, 1}), {str(UID): {"web": frozenset({2, 3})}})
    (root / cpu_state.FILE_NAME).write_text(cpu_state.encode("static", cpus))
    table = MemoryTable(4096, 512, 3584, 1024, 2560)
    memory = MemoryState(
        {0: NodeMemory(1, {"memory": table}, (0,))}, {str(UID): {"web": (MemoryBlock((0,), "memory", 1024),)}}
    )
    (root / memory_state.FILE_NAME).write_text(memory_state.encode("Static", memory))
    device = ClaimDevice("gpu.example.com", "node-1", "gpu-0", ("gpu",), ("example.com/gpu=gpu-0",))
    claim = ClaimInfo(_CLAIM, "7d0c2f64-41a5-4a2b-8f0e-9e1b1f0c3d55", frozenset({UID}), {device.driver: (device,)})
    (root / STATE_FILE).write_bytes(encode_state({_CLAIM: claim}))
    entry = DeviceEntry({0: frozenset({"d1"})}, bytes([10, 0]))
    (root / "device-plugins").mkdir()
    (root / "device-plugins" / DEVICES).write_text(
        encode_devices(state_of({str(UID): {"web": {_RESOURCE: entry}}}), {_RESOURCE: frozenset({"d1", "d2"})})
    )
    (root / "pods" / UID).mkdir(parents=True)
    (root / "pods" / UID / "userns").write_bytes(format_mapping(namespace_at(65536, 65536)))


async def _write_kept(root: Path) -> None:
    shutdown = ShutdownRecord(str(root / SHUTDOWN), SingleFlight("states"))
    await shutdown.began(_AT)
    await shutdown.ended(_AT + 30)
    status = PodStatus(
        phase="Running",
        startTime="2025-06-15T15:06:40Z",
        containerStatuses=(ContainerStatus(name="web", image=_IMAGE, imageID=_DIGEST, ready=True, restartCount=2),),
    )
    await StatusMemory(str(root / "pod_statuses"), SingleFlight("states")).keep({UID: status})
    await HookRecords(str(root), SingleFlight("states")).begin(UID, "web", 2)
    records = RecordStore(str(root / "image_manager"), ManualClock(wall=_AT))
    records.load()
    await records.begin(_IMAGE)
    await records.pulled(_IMAGE, ImageIdentity(_DIGEST), [ImageAccess(node_wide=True)])
    await records.begin("registry.example.com/shop/not-there:1")


def read(root: Path) -> dict[str, Any]:
    """What this version finds in the files of `root`, as JSON; for each file that cannot be used, null."""
    flight = SingleFlight("states")
    found: dict[str, Any] = {
        "pod_statuses": StatusMemory(str(root / "pod_statuses"), flight).load() or None,
        "pod_sizes": SizeMemory(str(root), flight).load(_AT) or None,
        "static_pods": HolderMemory(str(root), flight).load() or None,
    }
    hooks = HookRecords(str(root), flight)
    hooks.load(str(root / "pods"))
    found["post_start_hooks"] = hooks.of(UID) or None
    payload = Checkpoint(str(root / "volume_bindings")).load()
    suspects = Checkpoint(str(root / "quarantine")).load()
    found["quarantine"] = decode(dict[str, Suspect], suspects) if suspects is not None else None
    found["volume_bindings"] = decode(Bindings, payload) if payload is not None else None
    records = RecordStore(str(root / "image_manager"), ManualClock(wall=_AT))
    records.load()
    record = records.record(ImageIdentity(_DIGEST))
    found["image_manager"] = [record, records.is_pulling("registry.example.com/shop/not-there:1")]
    text = (root / cpu_state.FILE_NAME).read_text()
    found["cpu_manager_state"] = cpu_state.decode(text, "static", {})
    found["memory_manager_state"] = memory_state.decode((root / memory_state.FILE_NAME).read_text(), "Static")
    found["dra_manager_state"] = decode_state((root / STATE_FILE).read_bytes())[_CLAIM]
    found["device-plugins"] = DeviceFiles(str(root / "device-plugins"), flight).read()
    asyncio.run(ShutdownRecord(str(root / SHUTDOWN), flight).load())
    found["graceful_node_shutdown_state"] = [START_TIME.value(), END_TIME.value()]
    found["userns"] = parse_mapping((root / "pods" / UID / "userns").read_bytes())
    return {name: _plain(value) for name, value in found.items()}


def _plain(value: Any) -> Any:
    """The value as JSON has it: structs by their fields that differ from the default, sets sorted, keys as text."""
    match value:
        case msgspec.Struct():
            fields = {name: getattr(value, name) for name in value.__struct_fields__}
            return {
                name: _plain(field) for name, field in fields.items() if field not in (None, "", (), {}, frozenset())
            }
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
        case set() | frozenset():
            return sorted(_plain(item) for item in value)
        case list() | tuple():
            return [_plain(item) for item in value]
        case bytes():
            return value.hex()
        case _:
            return value


def main() -> None:
    """Write the folder of this version anew."""
    folder = FOLDER / __version__
    shutil.rmtree(folder, ignore_errors=True)
    write(folder)


if __name__ == "__main__":
    main()
