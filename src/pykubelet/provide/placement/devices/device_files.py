"""The directory of device plugins: their sockets, and the file of allocations.

A power cut must not damage the file. It may undo the newest changes: no container has survived it, and pods get their devices anew.
"""

from __future__ import annotations

from pykubelet.base.kit.flight import Done, SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.base.model.paths import Beneath
from pykubelet.edges.host.fs import beneath, files
from pykubelet.edges.host.fs.checkpoint import set_aside
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import FileKind
from pykubelet.provide.placement.checkpoint import StateFileError
from pykubelet.provide.placement.devices.device_checkpoint import FILE_NAME, DeviceFile, decode, encode
from pykubelet.provide.placement.devices.device_manager import DeviceManager

log = Log("device-plugins")
_LIMIT = 256 << 20
#: As long as this, a disk that hangs delays the placement of pods once. What could not be written is written later.
_DEADLINE_S = 5.0


class DeviceFiles:
    """The directory. `save` writes only what has changed since the last time."""

    def __init__(self, directory: str, flight: SingleFlight) -> None:
        self.directory = directory
        self.path = f"{directory}/{FILE_NAME}"
        self._flight = flight
        self._written: tuple[object, ...] | None = ()  # None: a write has failed, and what is in the file is not known

    def prepare(self) -> None:
        """Make the directory, and remove the sockets of earlier plugins and agents. Blocks. Raises HostError."""
        files.make_dirs(self.directory, 0o750)
        directory = Beneath(self.directory, "")
        for entry in beneath.list_dir(directory):
            if entry.kind is FileKind.SOCKET:
                beneath.remove_file(directory / entry.name)

    def read(self) -> DeviceFile | None:
        """The content of the file; None if there is none, or one that cannot be used, which is set aside. Blocks."""
        try:
            return decode(files.read_text(self.path, _LIMIT))
        except HostError as error:
            if error.is_not_found:
                return None
            why = str(error)
        except StateFileError as error:
            why = str(error)
        then = "pods that have devices may lose them or share them with others: drain this node, or restart these pods"
        log.error("the file of device allocations cannot be used", path=self.path, error=why, consequence=then)
        set_aside(self.path, why)
        return None

    def is_saved(self, devices: DeviceManager) -> bool:
        """Whether the file has the allocations and the healthy devices."""
        if self._written == () and not devices.state.entries and not devices.resources:
            return True  # without a file, resources of an earlier node are set to 0 when the node registers
        _, content = _content(devices)
        written = self._written
        return written is not None and len(content) == len(written) and all(map(_is_same, content, written))

    async def save(self, devices: DeviceManager) -> bool:
        """Write the allocations and the healthy devices, if they have changed. Returns whether the file has them.

        An error is logged, and the caller tries again.
        """
        if self.is_saved(devices):
            return True
        healthy, content = _content(devices)

        def write() -> None:
            files.write_atomic(self.path, encode(devices.state, healthy).encode(), 0o600, whole=True)

        outcome = await self._flight.run_next("devices", write, _DEADLINE_S)
        if isinstance(outcome, Done):
            self._written = content
            return True
        self._written = None
        log.warning("the file of device allocations cannot be written", path=self.path, error=outcome)
        return False


def _content(devices: DeviceManager) -> tuple[dict[str, frozenset[str]], tuple[object, ...]]:
    """The healthy devices by resource, and all that the file is made from."""
    healthy = {name: resource.healthy for name, resource in devices.resources.items()}
    return healthy, (devices.state.entries, *(part for item in healthy.items() for part in item))


def _is_same(part: object, other: object) -> bool:
    """By identity: unchanged parts of a snapshot stay the same objects."""
    return part is other
