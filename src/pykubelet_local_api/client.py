"""A client of this API for its own programs: requests over TLS with a client certificate, one connection for each.

Owns: the translation of failures. An answer with an error is raised as its `StatusError`; a server that is not reached is one with
code 0.
"""

from __future__ import annotations

import asyncio
import ssl
from urllib.parse import quote, urlencode

import msgspec

from pykubelet.net.http.dial import destination_of, dial
from pykubelet.net.http.exchange import FAILURES
from pykubelet_local_api.errors import StatusError
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.objects import Json

#: The most seconds of one request.
REQUEST_S = 30.0
APPLY = "application/apply-patch+yaml"


class OwnClient:
    """Requests to the server at `url`. `tls`: trusts the server, and has the client certificate."""

    def __init__(self, url: str, tls: ssl.SSLContext) -> None:
        self._url = url
        self._destination = destination_of(url)
        self._tls = tls

    async def get(self, path: str) -> Json:
        """Read an object or a list. Raises StatusError."""
        return await self._request("GET", path)

    async def apply(self, kind: ResourceKind, namespace: str, body: Json, manager: str) -> Json:
        """Apply an object, with all its fields. Raises StatusError."""
        query = urlencode({"fieldManager": manager, "force": "true", "fieldValidation": "Strict"})
        path = object_path(kind, namespace, str(body["metadata"]["name"]))
        return await self._request("PATCH", f"{path}?{query}", body, APPLY)

    async def delete(self, kind: ResourceKind, namespace: str, name: str, uid: str) -> Json:
        """Delete one object, and what it owns. Raises StatusError."""
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": uid},
        }
        return await self._request("DELETE", object_path(kind, namespace, name), options, "application/json")

    async def _request(self, method: str, path: str, body: Json | None = None, content_type: str = "") -> Json:
        data = b"" if body is None else msgspec.json.encode(body)
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._destination.netloc}", "Accept: application/json"]
        lines += ["Connection: close", f"Content-Length: {len(data)}"]
        lines += [f"Content-Type: {content_type}"] if content_type else []
        try:
            async with asyncio.timeout(REQUEST_S):
                status, answer = await self._exchange("\r\n".join((*lines, "", "")).encode() + data)
        except (*FAILURES, TimeoutError) as error:
            raise StatusError(0, "", f"{self._url}: {str(error) or 'no answer in time'}") from error
        try:
            found: Json = msgspec.json.decode(answer, type=dict)
        except msgspec.DecodeError as error:
            raise StatusError(status, "", f"{self._url}: not the answer of an API: {answer[:200]!r}") from error
        if status >= 300:
            raise StatusError(
                status, found.get("reason") or "", found.get("message") or f"status {status}", found.get("details")
            )
        return found

    async def _exchange(self, request: bytes) -> tuple[int, bytes]:
        connection = await dial(self._destination, self._tls)
        try:
            response = await connection.exchange(request)
            return response.status, await connection.body()
        finally:
            connection.abort()


def collection_path(kind: ResourceKind, namespace: str = "") -> str:
    """The path of a kind's objects, in a namespace or in all."""
    group = f"/apis/{kind.group}" if kind.group else "/api"
    place = f"/namespaces/{namespace}" if namespace and kind.is_namespaced else ""
    return f"{group}/{kind.version}{place}/{kind.plural}"


def object_path(kind: ResourceKind, namespace: str, name: str) -> str:
    """The path of an object. A file may name one as no object can be named, which the server refuses."""
    return f"{collection_path(kind, namespace)}/{quote(name, safe=':')}"
