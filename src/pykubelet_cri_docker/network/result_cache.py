"""The attachments of containers to networks on disk, in the files of libcni, which other runtimes and tools read. Blocks.

Owns: the files `results/<network>-<container>-<interface>` below the directory of CNI. A file of another kind, or a damaged one, counts
as missing: DEL is then done with the present configuration. Source: libcni's `cachedInfo`.
"""

from __future__ import annotations

import base64
import binascii

import msgspec

from pykubelet.base.kit.values import Value
from pykubelet.base.model.paths import Beneath
from pykubelet.edges.host.fs import beneath, files
from pykubelet.edges.host.fs.errors import HostError
from pykubelet_cri_docker.network.model import Attachment, JsonObject

KIND = "cniCacheV1"
#: Of one file: bytes. It has a configuration and a result.
MAX_FILE_BYTES = 4 << 20
#: The files that are looked at. Other runtimes may leave theirs behind.
MAX_FILES = 20_000


class _CachedInfo(Value):
    """A file, as libcni writes it. `config` is in base64."""

    kind: str
    containerId: str
    ifName: str
    networkName: str
    config: str = ""
    netns: str = ""
    cniArgs: list[tuple[str, str]] | None = None
    capabilityArgs: JsonObject | None = None
    result: JsonObject | None = None


class ResultCache:
    """The attachments below `directory`, by default `/var/lib/cni`."""

    def __init__(self, directory: str) -> None:
        self._directory = f"{directory.rstrip('/')}/results"

    def save(self, attachment: Attachment) -> None:
        """Write the attachment, atomically. HostError."""
        beneath.make_dirs(Beneath(self._directory, ""), 0o700)
        beneath.write_atomic(self._file(attachment), encode(attachment), 0o600)

    def remove(self, attachment: Attachment) -> None:
        """Remove the attachment. A missing one is no error."""
        beneath.remove_file(self._file(attachment))

    def find(self, container_id: str) -> list[Attachment]:
        """All attachments of a container, in the order of their files."""
        return self._read(f"-{container_id}-", container_id)

    def find_all(self) -> list[Attachment]:
        """All attachments of this machine, also those of other runtimes."""
        return self._read("", "")

    def sweep(self) -> None:
        """Remove what an interrupted `save` has left."""
        if files.stat_file(self._directory) is not None:
            beneath.remove_temporaries(Beneath(self._directory, ""))

    def _read(self, part: str, container_id: str) -> list[Attachment]:
        found = []
        names = sorted(name for name in files.names_in(self._directory) if part in name and not name.startswith("."))
        for name in names[:MAX_FILES]:
            try:
                attachment = decode(beneath.read_bytes(Beneath(self._directory, name), MAX_FILE_BYTES))
            except HostError:
                continue
            if (
                attachment is not None
                and self._file(attachment).inside == name
                and container_id in ("", attachment.container_id)
            ):
                found.append(attachment)
        return found

    def _file(self, attachment: Attachment) -> Beneath:
        name = f"{attachment.network}-{attachment.container_id}-{attachment.interface}"
        return Beneath(self._directory, name)


def encode(attachment: Attachment) -> bytes:
    """The content of the attachment's file."""
    info = {
        "kind": KIND,
        "containerId": attachment.container_id,
        "config": base64.b64encode(attachment.config).decode(),
        "ifName": attachment.interface,
        "networkName": attachment.network,
        "netns": attachment.netns,
        "cniArgs": attachment.arguments,
        "capabilityArgs": attachment.capabilities,
        "result": attachment.result,
    }
    return msgspec.json.encode({name: value for name, value in info.items() if value not in (None, "", (), {})})


def decode(data: bytes) -> Attachment | None:
    """The attachment of a file; None if it is damaged, or not of the kind that has the configuration."""
    try:
        info = msgspec.json.decode(data, type=_CachedInfo)
        config = base64.b64decode(info.config, validate=True)
    except (msgspec.DecodeError, UnicodeError, RecursionError, binascii.Error):
        return None
    if info.kind != KIND:
        return None
    return Attachment(
        network=info.networkName,
        container_id=info.containerId,
        interface=info.ifName,
        netns=info.netns,
        config=config,
        arguments=tuple(info.cniArgs or ()),
        capabilities=info.capabilityArgs or {},
        result=info.result,
    )
