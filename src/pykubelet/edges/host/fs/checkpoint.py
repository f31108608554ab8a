"""State files that survive crashes, power cuts and corruption.

Owns: the envelope (format, version, checksum), and atomic replacement, which keeps the last good copy as `<name>.bak`. A file
that cannot be used is renamed to `<name>.corrupt-<n>` with a warning, and the copy is used instead; one that another release
wrote in a format of its own, to `<name>.version-<v>-<n>`. Loading never raises. The payload is opaque bytes.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress

from pykubelet.base.kit.log import Log
from pykubelet.base.kit.text import parse_decimal
from pykubelet.base.kit.values import Value
from pykubelet.edges.host.fs import files
from pykubelet.edges.host.fs.errors import HostError, Translating

log = Log("checkpoint")

_MAGIC = b"pykubelet-checkpoint"
_LIMIT = 64 << 20
_MAX_SET_ASIDE = 20


class CheckpointError(Exception):
    """The bytes of a checkpoint cannot be used. The message has the reason."""


class OtherVersion(CheckpointError):
    """The file is whole, and of a version that is not known here."""

    def __init__(self, written: int, expected: int) -> None:
        super().__init__(f"written as version {written}, expected {expected}")
        self.label = f"version-{written}"


class Checkpoint(Value):
    """One state file. `version`: the version of the payload; a file with another version is set aside.

    `durable` False: the content need not survive a power cut. `keeps_copy` False: the file can be done without, so there is no `.bak`.
    """

    path: str
    version: int = 1
    mode: int = 0o600
    durable: bool = True
    keeps_copy: bool = True

    def save(self, payload: bytes, *, syncs_directory: bool = True) -> None:
        """Replace the content atomically. If the old content is valid, it becomes the `.bak`. Raises HostError.

        `syncs_directory` False: a power cut may undo it until the caller has synced the directory.
        """
        data = encode(payload, self.version)
        present = self._valid_content() if self.keeps_copy else None
        if present == data:
            return
        files.make_dirs(os.path.dirname(self.path) or ".", 0o750)
        if present is not None:
            self._keep_copy()
        files.write_atomic(self.path, data, self.mode, whole=self.durable, durable=self.durable and syncs_directory)

    def load(self) -> bytes | None:
        """Read the payload from the file, or else from its last good copy. None if neither can be used. Never raises.

        What a killed agent has left of a copy is removed.
        """
        with suppress(HostError):
            files.remove_file(self._unfinished)
        for path in (self.path, self._backup):
            payload = self._load_one(path)
            if payload is not None:
                if path != self.path:
                    log.warning("using the last good copy of a state file", path=path)
                return payload
        return None

    def remove(self) -> None:
        """Remove the file, its copy, and what a killed agent has left of a copy. Files that were set aside stay."""
        for path in (self.path, self._backup, self._unfinished):
            files.remove_file(path)

    @property
    def _backup(self) -> str:
        return f"{self.path}.bak"

    @property
    def _unfinished(self) -> str:
        """The copy before it has its name."""
        return f"{self._backup}.tmp"

    def _valid_content(self) -> bytes | None:
        """The bytes of the file; None if they cannot be used."""
        try:
            present = files.read_bytes(self.path, _LIMIT)
            decode(present, self.version)
        except (HostError, CheckpointError):
            return None
        return present

    def _keep_copy(self) -> None:
        """Link the current file to the name of the copy, so that a good file exists at every moment."""
        temporary = self._unfinished
        files.remove_file(temporary)
        with Translating("link", self.path):
            os.link(self.path, temporary)
            os.rename(temporary, self._backup)
        # if the copy already was this very file, since an agent was killed after it had made the copy, rename(2) has done nothing
        files.remove_file(temporary)

    def _load_one(self, path: str) -> bytes | None:
        try:
            data = files.read_bytes(path, _LIMIT)
        except HostError as error:
            if not error.is_not_found:
                set_aside(path, str(error), name=self.path)
            return None
        try:
            return decode(data, self.version)
        except CheckpointError as error:
            set_aside(path, str(error), error.label if isinstance(error, OtherVersion) else "corrupt", self.path)
            return None


def set_aside(path: str, why: str, label: str = "corrupt", name: str = "") -> None:
    """Rename a state file that cannot be used to `<name>.<label>-<n>`, with a warning. `name`: of another file. Never raises.

    The oldest ones are kept; the last number is used again.
    """
    aside: str | None = None
    base = f"{name or path}.{label}"
    try:
        taken = [n for n in range(_MAX_SET_ASIDE) if files.stat_file(f"{base}-{n}", follow=False)]
        number = next((n for n in range(_MAX_SET_ASIDE) if n not in taken), _MAX_SET_ASIDE - 1)
        aside = f"{base}-{number}"
        files.rename(path, aside)
    except HostError as error:
        why = f"{why}; it could not be set aside: {error}"
    log.warning("a state file cannot be used", path=path, set_aside=aside, reason=why)


def encode(payload: bytes, version: int) -> bytes:
    """Encode as one header line (`pykubelet-checkpoint <version> <length> <sha256>`), followed by the payload."""
    digest = hashlib.sha256(payload).hexdigest().encode()
    return b"%s %d %d %s\n%s" % (_MAGIC, version, len(payload), digest, payload)


def decode(data: bytes, version: int) -> bytes:
    """Decode the payload. Raises CheckpointError if the header, the version, the length or the checksum is wrong."""
    header, newline, payload = data.partition(b"\n")
    fields = header.split(b" ")
    if not newline or len(fields) != 4 or fields[0] != _MAGIC:
        raise CheckpointError("not a checkpoint, or cut short in its header")
    written, length = parse_decimal(fields[1]), parse_decimal(fields[2])
    if written is None or length is None:
        raise CheckpointError("a header without a version or a length")
    if written != version:
        raise OtherVersion(written, version)
    if length != len(payload):
        raise CheckpointError(f"{len(payload)} bytes of payload, expected {length}")
    if hashlib.sha256(payload).hexdigest().encode() != fields[3]:
        raise CheckpointError("the checksum does not match")
    return payload
