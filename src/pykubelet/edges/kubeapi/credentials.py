"""The credentials for the next request to the API server: its headers and TLS context.

Owns: the current content of every file that the access names (client certificate, key, CA, token), and the credential of the
exec plugin. Files are checked at most once a second, and read again when their inode, size or time has changed. If a file
cannot be read, or its file system does not answer, its last content stays in use. After status 401 everything is read again at once.

OpenSSL can load a certificate and key only from files. Text in memory is passed through an anonymous file of the kernel, so that no key
is written to a disk.
"""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import Done, Failed, SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import RedactedValue, Value
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import OpenDescriptor, read_bytes, stat_file
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.edges.kubeapi.exec_plugin import PluginCredential, run_plugin
from pykubelet.edges.kubeapi.kubeconfig import ClusterAccess, Pem
from pykubelet.net.http.client_tls import ClientTls

log = Log("kubeapi")
LOOK_AGAIN_S = 1.0
#: The time for a look at all files: seconds.
READ_DEADLINE_S = 5.0
_LIMIT = 1 << 20


class RequestCredentials(RedactedValue):
    """The credentials for one request. `tls`: the same object until its content changes; None: plain HTTP."""

    hidden: ClassVar = ("headers",)
    tls: ssl.SSLContext | None
    headers: tuple[tuple[str, str], ...]


class _Read(Value):
    """A file's content, and what shows that it has not changed since."""

    seen: tuple[int, int, int] | None
    data: bytes


class _Watched:
    """One file that is read again when it has changed."""

    def __init__(self, pem: Pem) -> None:
        self._seen: tuple[int, int, int] | None = None
        self.path = "" if pem.data else pem.file
        self.data = pem.data

    def read(self) -> _Read | None:
        """Read the file, in a thread. None: it is as before, is being replaced or is gone. HostError if it was never readable."""
        try:
            found = stat_file(self.path)
            seen = (found.inode, found.size, found.mtime_ns) if found is not None else None
            if seen is not None and seen == self._seen:
                return None
            return _Read(seen, read_bytes(self.path, _LIMIT))
        except HostError:
            if self._seen is None:
                raise
            return None

    def take(self, found: _Read) -> bool:
        """Take what was read. Returns whether `data` changed."""
        changed = found.data != self.data
        self._seen, self.data = found.seen, found.data
        return changed


class CredentialSource:
    """Provides credentials. Call `current` before each request, and `refused` after status 401."""

    def __init__(self, access: ClusterAccess, clock: Clock, rotated: Pem | None = None) -> None:
        """`rotated`: a file with certificate and key. Once it exists, it replaces those of the access."""
        self._access = access
        self._clock = clock
        self._is_tls = access.server.startswith("https:")
        self._ca, self._cert, self._key = _Watched(access.ca), _Watched(access.client_cert), _Watched(access.client_key)
        self._rotated = _Watched(rotated) if rotated is not None else None
        self._token = _Watched(Pem(access.token_file))
        self._plugin_credential: PluginCredential | None = None
        self._last_credentials: RequestCredentials | None = None
        self._tls: ssl.SSLContext | None = None
        self._looked_at = float("-inf")
        self._asking = asyncio.Lock()
        self._flight = SingleFlight("credentials", 1)
        self._problem = ""

    async def current(self) -> RequestCredentials:
        """The current credentials. Raises ApiError (status 0, reason Credentials) if there are none."""
        now = self._clock.monotonic()
        if self._last_credentials is not None and now - self._looked_at < LOOK_AGAIN_S and not self._expired():
            return self._last_credentials
        async with self._asking:
            await self._read_again()
            self._looked_at = now
        assert self._last_credentials is not None
        return self._last_credentials

    def refused(self, shown: RequestCredentials) -> None:
        """Record that the server refused `shown`: before the next request, files are read and the plugin is run again."""
        if shown is self._last_credentials:
            self._looked_at = float("-inf")
            self._plugin_credential = None

    def _expired(self) -> bool:
        credential = self._plugin_credential
        return (
            credential is not None and credential.expires_at is not None and self._clock.wall() >= credential.expires_at
        )

    async def _read_again(self) -> None:
        asked = False
        if self._access.plugin is not None and (self._plugin_credential is None or self._expired()):
            self._plugin_credential = await run_plugin(self._access.plugin)
            asked = True
        try:
            changed = await self._reread_files()
        except HostError as error:
            text = f"there is no {error.path} yet" if error.is_not_found else str(error)
            raise ApiError(0, "Credentials", text) from error
        if self._last_credentials is not None and not (changed or asked):
            return
        self._last_credentials = RequestCredentials(self._context(), self._headers())

    async def _reread_files(self) -> bool:
        """Read the files that have changed. Returns whether there are any. HostError if one was never readable."""
        if self._rotated is None and not any(file.path for file in (self._ca, self._token, self._cert, self._key)):
            return False
        outcome = await self._flight.run("read", self._read_files, READ_DEADLINE_S)
        match outcome:
            case Done(value=found):
                changed = [file.take(read) for file, read in found]
                return any(changed)
            case Failed(error=error):
                raise error
        if self._last_credentials is None:
            raise HostError("read", "", "ETIMEDOUT", "the file system of the credentials does not answer")
        return False

    def _read_files(self) -> list[tuple[_Watched, _Read]]:
        """The files with new content, read in a thread."""
        files, rotated = [self._ca, self._token], self._rotated
        if rotated is not None and (rotated.data or stat_file(rotated.path) is not None):
            files.append(rotated)
        else:
            files += [self._cert, self._key]
        return [(file, read) for file in files if file.path and (read := file.read()) is not None]

    def _context(self) -> ssl.SSLContext | None:
        """The TLS context for the newest files. If certificate and key do not match, they are probably being replaced, and the
        old context stays in use."""
        if not self._is_tls:
            return None
        cert, key = self._cert.data, self._key.data
        if self._rotated is not None and self._rotated.data:
            cert = key = self._rotated.data
        if self._plugin_credential is not None and self._plugin_credential.cert:
            cert, key = self._plugin_credential.cert, self._plugin_credential.key
        try:
            self._tls = _client_context(self._ca.data, self._access.insecure, cert, key)
            self._problem = ""
        except (ssl.SSLError, ValueError) as error:
            problem = f"the certificates of {self._access.origin or 'the API client'} cannot be used: {error}"
            if self._tls is None:
                raise ApiError(0, "Credentials", problem) from error
            if problem != self._problem:
                self._problem = problem
                log.warning("a changed certificate cannot be used; the one before stays in use", error=problem)
        return self._tls

    def _headers(self) -> tuple[tuple[str, str], ...]:
        headers = list(self._access.headers)
        token = self._access.token
        if self._plugin_credential is not None and self._plugin_credential.token:
            token = self._plugin_credential.token
        if self._token.data:
            token = self._token.data.decode("utf-8", "replace").strip()
        if token:
            headers.append(("Authorization", f"Bearer {token}"))
        elif self._access.basic is not None:
            pair = ":".join(self._access.basic)
            headers.append(("Authorization", "Basic " + base64.b64encode(pair.encode()).decode()))
        return tuple(headers)


def _client_context(ca: bytes, insecure: bool, cert: bytes, key: bytes) -> ssl.SSLContext:
    """A context that trusts `ca` (empty: the machine's own authorities) and presents `cert`, if there is one.

    Raises ssl.SSLError if the text is not usable PEM or if certificate and key do not match.
    """
    context = ClientTls()
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif ca:
        context.load_verify_locations(cadata=ca.decode("latin-1"))
    else:
        context.load_default_certs()
    if cert:
        with _in_memory(cert) as cert_path, _in_memory(key) as key_path:
            context.load_cert_chain(cert_path, key_path)
    return context


@contextmanager
def _in_memory(data: bytes) -> Iterator[str]:
    """A path at which `data` can be read within the block."""
    with OpenDescriptor(os.memfd_create("pem", os.MFD_CLOEXEC)) as descriptor:
        os.write(descriptor, data)
        yield f"/proc/self/fd/{descriptor}"
