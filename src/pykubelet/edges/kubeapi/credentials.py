"""Who we are towards the API server, now: the headers and the TLS context for the next request.

Owns: the newest reading of every file the access names (client certificate, key, CA, token), and of the exec plugin.
Files are looked at again when their inode, size or time changed, at most once a second; what cannot be read leaves the
last good reading in use. A refusal by the server (401) makes everything be read again at once.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from typing import ClassVar

from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import Discreet
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import read_bytes, stat_file
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.edges.kubeapi.exec_plugin import Handed, run_plugin
from pykubelet.edges.kubeapi.kubeconfig import Access, Pem
from pykubelet.edges.kubeapi.tls import client_context

log = Log("kubeapi")
LOOK_AGAIN_S = 1.0
_LIMIT = 1 << 20


class Identity(Discreet):
    """For one request. `tls` is the same object until something in it changes. None: plain HTTP."""

    hidden: ClassVar = ("headers",)
    tls: ssl.SSLContext | None
    headers: tuple[tuple[str, str], ...]


class _Watched:
    """One file, read again when it changed."""

    def __init__(self, pem: Pem) -> None:
        self._inline = bool(pem.data)
        self._seen: tuple[int, int, int] | None = None
        self.path = pem.file
        self.data = pem.data

    def look(self) -> bool:
        """Whether `data` is another one now. HostError where it cannot be read and never could."""
        if self._inline or not self.path:
            return False
        try:
            found = stat_file(self.path)
            seen = (found.inode, found.size, found.mtime_ns) if found is not None else None
            if seen is not None and seen == self._seen:
                return False
            data = read_bytes(self.path, _LIMIT)
        except HostError:
            if self._seen is None:
                raise
            return False  # it is being replaced, or gone: the last reading is the best there is
        self._seen = seen
        changed, self.data = data != self.data, data
        return changed


class CredentialSource:
    """`current` before each request; `refused` after a 401."""

    def __init__(self, access: Access, clock: Clock, rotated: Pem | None = None) -> None:
        """`rotated`: certificate and key in one file, used instead of the access's own as soon as it exists."""
        self._access = access
        self._clock = clock
        self._is_tls = access.server.startswith("https:")
        self._ca, self._cert, self._key = _Watched(access.ca), _Watched(access.client_cert), _Watched(access.client_key)
        self._rotated = _Watched(rotated) if rotated is not None else None
        self._token = _Watched(Pem(access.token_file))
        self._handed: Handed | None = None
        self._identity: Identity | None = None
        self._tls: ssl.SSLContext | None = None
        self._looked_at = float("-inf")
        self._asking = asyncio.Lock()
        self._problem = ""

    async def current(self) -> Identity:
        """Raises ApiError (status 0, reason Credentials) when there is nothing to show."""
        now = self._clock.monotonic()
        if self._identity is not None and now - self._looked_at < LOOK_AGAIN_S and not self._expired():
            return self._identity
        async with self._asking:
            await self._look()
            self._looked_at = now
        assert self._identity is not None
        return self._identity

    def refused(self, shown: Identity) -> None:
        """The server did not take `shown`: ask everybody anew before the next request."""
        if shown is self._identity:
            self._looked_at = float("-inf")
            self._handed = None

    def _expired(self) -> bool:
        handed = self._handed
        return handed is not None and handed.expires_at is not None and self._clock.wall() >= handed.expires_at

    async def _look(self) -> None:
        asked = False
        if self._access.plugin is not None and (self._handed is None or self._expired()):
            self._handed = await run_plugin(self._access.plugin)
            asked = True
        try:
            changed = self._look_at_files()
        except HostError as error:
            text = f"there is no {error.path} yet" if error.is_not_found else str(error)
            raise ApiError(0, "Credentials", text) from error
        if self._identity is not None and not (changed or asked):
            return
        self._identity = Identity(self._context(), self._headers())

    def _look_at_files(self) -> bool:
        changed = [self._ca.look(), self._token.look()]
        rotated = self._rotated
        if rotated is not None and (rotated.data or stat_file(rotated.path) is not None):
            changed.append(rotated.look())
        else:
            changed += [self._cert.look(), self._key.look()]
        return any(changed)

    def _context(self) -> ssl.SSLContext | None:
        """Of the newest files. A pair that does not fit is half written: the old context goes on."""
        if not self._is_tls:
            return None
        cert, key = self._cert.data, self._key.data
        if self._rotated is not None and self._rotated.data:
            cert = key = self._rotated.data
        if self._handed is not None and self._handed.cert:
            cert, key = self._handed.cert, self._handed.key
        try:
            self._tls = client_context(self._ca.data, self._access.insecure, cert, key)
            self._problem = ""
        except (ssl.SSLError, ValueError) as error:
            problem = f"the certificates of {self._access.origin or 'the API client'} cannot be used: {error}"
            if self._tls is None:
                raise ApiError(0, "Credentials", problem) from error
            if problem != self._problem:
                self._problem = problem
                log.warning("a changed certificate cannot be used; the one before goes on", error=problem)
        return self._tls

    def _headers(self) -> tuple[tuple[str, str], ...]:
        headers = list(self._access.headers)
        token = self._access.token
        if self._handed is not None and self._handed.token:
            token = self._handed.token
        if self._token.data:
            token = self._token.data.decode("utf-8", "replace").strip()
        if token:
            headers.append(("Authorization", f"Bearer {token}"))
        elif self._access.basic is not None:
            pair = ":".join(self._access.basic)
            headers.append(("Authorization", "Basic " + base64.b64encode(pair.encode()).decode()))
        return tuple(headers)
