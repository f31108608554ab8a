"""A few requests to an API server with a client certificate. The tests' own eyes are kubectl and the official client."""

from __future__ import annotations

import http.client
import json
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from testbed.host import TestbedError

_TIMEOUT_S = 30.0
_ABSENT, _EXISTS = 404, 409


class Client:
    """Each request has a connection of its own."""

    def __init__(self, server: str, authority: Path, certificate: Path, key: Path) -> None:
        self._address = urlsplit(server)
        self._context = ssl.create_default_context(cafile=str(authority))
        self._context.load_cert_chain(certificate, key)

    def request(self, method: str, path: str, body: object = None) -> tuple[int, str]:
        """Status and body. Raises OSError and http.client.HTTPException."""
        host, port = self._address.hostname or "", self._address.port
        connection = http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=self._context)
        try:
            encoded = json.dumps(body) if body is not None else None
            kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
            connection.request(method, path, encoded, {"Content-Type": kind, "Accept": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        finally:
            connection.close()

    def is_ready(self) -> bool:
        """Whether the server answers /readyz with ok."""
        try:
            return self.request("GET", "/readyz")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def get(self, path: str) -> Any:
        """The object at `path`; None when there is none. Raises TestbedError."""
        status, text = self._checked("GET", path)
        return None if status == _ABSENT else json.loads(text)

    def make(self, path: str, body: object) -> None:
        """Create an object in the collection at `path` unless it exists. Raises TestbedError."""
        self._checked("POST", path, body)

    def delete(self, path: str) -> None:
        """Delete what is at `path`, if anything. Raises TestbedError."""
        self._checked("DELETE", path)

    def _checked(self, method: str, path: str, body: object = None) -> tuple[int, str]:
        try:
            status, text = self.request(method, path, body)
        except (OSError, http.client.HTTPException) as error:
            raise TestbedError(f"{method} {path}: {error}") from error
        if status >= 300 and status not in (_ABSENT, _EXISTS):
            raise TestbedError(f"{method} {path}: {status} {text}")
        return status, text
