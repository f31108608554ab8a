"""How far the logs were copied: one small file for each container. Blocks.

A position pairs an offset of Docker's log with the size that the CRI log had when all before it was written. It is written rarely. What
was copied since then is recognized: the same entries give the same lines (`copier.py`).
"""

from __future__ import annotations

import msgspec

from pykubelet.base.kit.values import Value
from pykubelet.base.model.paths import Beneath
from pykubelet.edges.host.fs import beneath
from pykubelet.edges.host.fs.errors import HostError

_MAX_BYTES = 4096
_SUFFIX = ".json"


class Position(Value):
    """`head`, `offset`: the file of Docker's log, by its first bytes, and the place in it. `inode`, `size`: of the CRI log."""

    head: bytes = b""
    offset: int = 0
    inode: int = 0
    size: int = 0


_DECODER = msgspec.json.Decoder(Position)


class Positions:
    """The positions in the directory `folder`, which is made when it is needed. All methods raise HostError."""

    def __init__(self, folder: str) -> None:
        self._folder = Beneath(folder, "")

    def load(self, container_id: str) -> Position | None:
        """The position of a container; None if there is none that can be read."""
        try:
            position = _DECODER.decode(beneath.read_bytes(self._file(container_id), _MAX_BYTES))
        except HostError as error:
            if error.is_not_found or error.is_too_large:
                return None
            raise
        except ValueError:
            return None
        return position if min(position.offset, position.size) >= 0 else None

    def save(self, container_id: str, position: Position) -> None:
        """Replace the position of a container."""
        data = msgspec.json.encode(position)
        try:
            beneath.write_atomic(self._file(container_id), data, 0o600)
        except HostError as error:
            if not error.is_not_found:
                raise
            beneath.make_dirs(self._folder, 0o700)
            beneath.write_atomic(self._file(container_id), data, 0o600)

    def remove(self, container_id: str) -> None:
        """Forget a container."""
        beneath.remove_file(self._file(container_id))

    def containers(self) -> list[str]:
        """The containers that have a position. What interrupted writes have left is removed."""
        try:
            beneath.remove_temporaries(self._folder)
        except HostError as error:
            if error.is_not_found:
                return []
            raise
        names = [entry.name for entry in beneath.list_entries(self._folder)]
        return [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]

    def _file(self, container_id: str) -> Beneath:
        return self._folder / f"{container_id}{_SUFFIX}"
