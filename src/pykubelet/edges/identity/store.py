"""Certificates in `--cert-dir`, with the kubelet's layout: each pair in a file of its own, and a link to the current one.

Owns: `<prefix>-<date>.pem` (certificate, then key), the link `<prefix>-current.pem`, and the key of the pending request. No
pair is ever overwritten, so that a half-written one is never the current one.
"""

from __future__ import annotations

from datetime import timedelta

from pykubelet.base.api.times import EPOCH
from pykubelet.base.kit.values import Value
from pykubelet.edges.host.fs.errors import suppress_not_found
from pykubelet.edges.host.fs.files import (
    make_dirs,
    read_bytes,
    read_link,
    remove_file,
    rename,
    replace_symlink,
    stat_file,
    write_atomic,
)

_LIMIT = 1 << 20


class CertificateStore(Value):
    """The files of one certificate. `prefix`: `kubelet-client` or `kubelet-server`. All methods block shortly, and may raise
    HostError."""

    folder: str
    prefix: str

    @property
    def current(self) -> str:
        """The path of the link to the current pair, which programs read."""
        return f"{self.folder}/{self.prefix}-current.pem"

    @property
    def _key_file(self) -> str:
        return f"{self.folder}/{self.prefix}.key.tmp"

    def read(self) -> bytes | None:
        """Read the current pair; None if there is none."""
        updated = f"{self.folder}/{self.prefix}-updated.pem"
        if stat_file(self.current) is None and read_link(updated) is not None:
            rename(updated, self.current)  # an update by another kubelet was interrupted
        if stat_file(self.current) is None:
            return None
        return read_bytes(self.current, _LIMIT)

    def write(self, certificate: bytes, key: bytes, wall: float) -> str:
        """Write a pair, make it the current one, and return its path."""
        make_dirs(self.folder)
        name = self._free_name(int(wall))
        path = f"{name}.pem"
        write_atomic(path, certificate.rstrip() + b"\n" + key, 0o600, durable=True)
        if stat_file(self.current) is not None and read_link(self.current) is None:
            rename(self.current, f"{name}-before.pem")
        replace_symlink(path, self.current)
        return path

    def _free_name(self, wall: int) -> str:
        """The path of a new pair, without its suffix. A second pair within one second gets the next one."""
        while True:
            name = f"{self.folder}/{self.prefix}-{EPOCH + timedelta(seconds=wall):%Y-%m-%d-%H-%M-%S}"
            if stat_file(f"{name}.pem") is None:
                return name
            wall += 1

    def read_key(self) -> bytes | None:
        """Read the key of the last request, if its certificate was not issued yet."""
        with suppress_not_found:
            return read_bytes(self._key_file, _LIMIT)
        return None

    def keep_key(self, key: bytes) -> None:
        """Store the key (PEM) of a signing request before it is sent, so that a restart finds the same request."""
        make_dirs(self.folder)
        write_atomic(self._key_file, key, 0o600, durable=True)

    def forget_key(self) -> None:
        """Delete the stored key. Does nothing if there is none."""
        remove_file(self._key_file)
