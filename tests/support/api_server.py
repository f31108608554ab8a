"""An API server for tests: the local API on objects in memory, with laxer strategies (`api_strategies.py`), behind real HTTP on loopback.

Owns: faults on demand, watches that are cut or silent, and the record of requests. What an API server does is the local API's. The
contract tests run against a real one too. `store` is the cluster's side: watchers see all changes that a test makes there.
"""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import ssl
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlencode

import msgspec
from aiohttp import web
from support.api_objects import ApiObjects, place_of
from support.api_strategies import CLIENT, SERVED

from pykubelet.base.api.times import format_time
from pykubelet.base.kit.clock import Clock, SystemClock
from pykubelet.base.kit.values import Value
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.edges.kubeapi.kubeconfig import ClusterAccess, Pem
from pykubelet.net.http.server import Answer, Response, ServedConnection, StreamedResponse
from pykubelet.net.http.wire import Body, Request, as_chunk
from pykubelet.testing.ordered import OrderedSet
from pykubelet_local_api.errors import StatusError, unknown_path
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.objects import Json
from pykubelet_local_api.rest.formats import failure
from pykubelet_local_api.rest.handler import AskedRequest, ObjectsHandler
from pykubelet_local_api.rest.paths import Target, parse_target
from pykubelet_local_api.rest.watches import WatchStream
from pykubelet_local_api.view import RequestUser

_ENCODE = msgspec.json.encode
_DROP = ";drop=metadata.managedFields"
_HALF_A_LINE = b'{"type":"MODIFIED","object":{"metadata":{"na'


class Sent(Value):
    """One received request. `headers`: by lower-case name."""

    method: str
    path: str
    query: dict[str, str]
    content_type: str
    body: Any
    headers: dict[str, str]


@dataclass(slots=True)
class ApiFault:
    """A fault of requests with a certain method and path. `times` < 0: without end.

    `status` 0 without `hang`: the connection is closed without an answer. `held`: the request is delayed until this event and
    then answered with `status`; with status 0 it is then processed normally.
    """

    method: str = ""
    path: str = ""
    status: int = 0
    reason: str = ""
    message: str = "a fault"
    retry_after_s: int | None = None
    hang: bool = False
    held: asyncio.Event | None = None
    times: int = 1
    watch: bool | None = None

    def fits(self, sent: Sent) -> bool:
        """Whether the fault applies to this request."""
        if self.watch is not None and self.watch != (sent.query.get("watch") in ("true", "1")):
            return False
        return self.times != 0 and self.path in sent.path and self.method in ("", sent.method)

    def error(self) -> StatusError:
        """What the request is answered with."""
        return StatusError(self.status, self.reason, self.message, retry_after_s=self.retry_after_s or 0)


@dataclass(slots=True, eq=False)
class _Watch:
    """One open watch."""

    plural: str
    stream: WatchStream
    transport: asyncio.Transport
    silent: bool = False


class _ReadBody:
    """A body that was read."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def read(self) -> bytes:
        return self._data


class FakeApiServer:
    """An API server for tests. Use it in `async with`, or with `start` and `stop`. A restart keeps the port and the objects.

    `token`: the required bearer token; empty: requests need none. `requests`: all received requests, oldest first. `bookmarks`: whether
    watches may have them. `drops`: whether `drop=metadata.managedFields` in the header Accept has an effect (KEP-5958). `answers`:
    functions from body to answer for POST requests, by the end of the path (reviews). `served`: the plurals by
    `group/version`, for discovery.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        tls: ssl.SSLContext | None = None,
        ca: bytes = b"",
    ) -> None:
        self.clock = clock or SystemClock()
        self.store = ApiObjects(self.clock)
        self.faults: list[ApiFault] = []
        self.requests: list[Sent] = []
        self.answers: dict[str, Callable[[Json], Json]] = {}
        self.served: dict[str, tuple[str, ...]] = {}
        self.token = ""
        self.token_seconds: int | None = None
        self.bookmarks = True
        self.drops = False
        self.port = 0
        self._tls = tls
        self._ca = ca
        access = _OpenAccess(self.token_of)
        self._api = ObjectsHandler(
            self.store.stored, self.store.registry, access, _refuse_streams, {}, lambda: "", self.clock
        )
        self._watches: OrderedSet[_Watch] = OrderedSet()
        self._opened = asyncio.Event()
        self._hanging = asyncio.Event()
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> FakeApiServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen on loopback. A server that was stopped uses the same port again."""
        runner = await self._started_runner()
        self.port = self.port or self._reserved_port()
        site = web.TCPSite(runner, "127.0.0.1", self.port, ssl_context=self._tls, reuse_address=True, reuse_port=True)
        await site.start()

    async def _started_runner(self) -> web.AppRunner:
        app = web.Application(client_max_size=8 << 20)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._hanging.clear()
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        return self._runner

    def _reserved_port(self) -> int:
        """Reserve a port with a socket that does not listen, so that no other process gets it while the server is stopped."""
        keeper = socket.socket()
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        keeper.bind(("127.0.0.1", 0))
        port = int(keeper.getsockname()[1])
        weakref.finalize(self, os.close, keeper.detach())
        return port

    async def stop(self) -> None:
        """Stop, and close every connection. The objects are kept for the next `start`."""
        self._hanging.set()
        self.cut_watches()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @property
    def url(self) -> str:
        """The URL: scheme, address and port, without a path."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def access(self) -> ClusterAccess:
        """The access for a client: server, token and certificate authority."""
        return ClusterAccess(server=self.url, token=self.token, ca=Pem(data=self._ca))

    # -- handles for tests, on the cluster's side

    def create(self, path: str, body: Json) -> Json:
        """Create an object. `path`: that of its collection. Raises ApiError, like the methods below."""
        return self.store.create(place_of(path), body)

    def get(self, path: str) -> Json:
        """The object at an API path. Raises `ApiError` 404 if there is none."""
        return self.store.get(place_of(path))

    def update(self, path: str, change: Callable[[Json], None]) -> Json:
        """Apply `change` to a copy of the object and write it. For pods and nodes, a path without subresource excludes status."""

        def changed(item: Json) -> Json:
            change(item)
            return item

        return self.store.edit(place_of(path), changed)

    def delete(self, path: str, options: Json | None = None) -> Json:
        """Delete the object at an API path, with `DeleteOptions`, like a DELETE request of another client."""
        return self.store.delete(place_of(path), options)

    def cut_watches(self, path: str = "", *, mid_line: bool = False) -> int:
        """End the open watches of the collections with the plural `path` (empty: all), in the middle of a line if `mid_line`."""
        found = [watch for watch in self._watches if path in ("", watch.plural)]
        for watch in found:
            if mid_line:
                watch.transport.write(as_chunk(_HALF_A_LINE))
            watch.transport.close()
            self._watches.discard(watch)
        return len(found)

    def silence_watches(self) -> None:
        """Let the open watches stay open but send nothing more, like half-dead connections."""
        for watch in self._watches:
            watch.silent = True

    def send_bookmarks(self) -> None:
        """Send a bookmark to every open watch."""
        for watch in self._watches:
            watch.stream.mark()

    @property
    def watching(self) -> list[str]:
        """The plurals of the open watches."""
        return sorted(watch.plural for watch in self._watches)

    async def wait_watches(self, number: int = 1) -> None:
        """Wait until at least `number` watches are open."""
        while len(self._watches) < number:
            self._opened.clear()
            await self._opened.wait()

    def count(self, method: str = "", path: str = "") -> int:
        """The number of received requests that match."""
        return sum(method in ("", sent.method) and path in sent.path for sent in self.requests)

    # -- serving

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        sent = Sent(
            request.method,
            request.path,
            dict(request.query),
            request.content_type if raw else "",
            msgspec.json.decode(raw) if raw else None,
            {name.lower(): value for name, value in request.headers.items()},
        )
        self.requests.append(sent)
        fault = next((fault for fault in self.faults if fault.fits(sent)), None)
        if fault is not None:
            fault.times -= 1
            if fault.held is not None:
                await fault.held.wait()
            if fault.status or fault.held is None:
                return await self._fail(fault, request)
        try:
            answer = await self.answer(sent, raw)
        except ApiError as error:
            answer = failure(StatusError(error.status, error.reason, error.message))
        if isinstance(answer, StreamedResponse):
            return await self._stream(request, answer)
        assert isinstance(answer, Response)
        return web.Response(
            body=answer.body,
            status=answer.status,
            headers={"Content-Type": answer.content_type, **answer.headers},
        )

    async def _fail(self, fault: ApiFault, request: web.Request) -> web.StreamResponse:
        if fault.hang:
            await self._hanging.wait()
        if fault.hang or not fault.status:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        found = failure(fault.error())
        return web.Response(
            body=found.body, status=found.status, headers={"Content-Type": found.content_type, **found.headers}
        )

    async def answer(self, sent: Sent, raw: bytes) -> Answer:
        """What a request is answered with, unless a fault answers it. Raises ApiError."""
        if self.token and sent.headers.get("authorization") != f"Bearer {self.token}":
            raise ApiError(401, "Unauthorized", "Unauthorized")
        served = self.served.get(sent.path.removeprefix("/apis/"))
        if served is not None:
            return _json({"kind": "APIResourceList", "resources": [{"name": plural} for plural in served]}, 200)
        if sent.method == "POST":
            for ending, answer in self.answers.items():
                if sent.path.endswith(ending):
                    return _json(answer(sent.body), 201)
        nowhere: Any = None
        writer: Any = SimpleNamespace(transport=SimpleNamespace(abort=_nothing))
        connection = ServedConnection(nowhere, writer, body=cast(Body, _ReadBody(raw)))
        return await self._api(self._asked(sent), connection)

    def _asked(self, sent: Sent) -> Request:
        """The request for the API, without what this server does not know."""
        query, headers = sent.query, sent.headers
        if not self.bookmarks:
            query = {name: value for name, value in query.items() if name != "allowWatchBookmarks"}
        if not self.drops and _DROP in headers.get("accept", ""):
            headers = {**headers, "accept": headers["accept"].replace(_DROP, "")}
        return Request(sent.method, sent.path, urlencode(query), headers)

    def token_of(self, namespace: str, name: str, body: Json) -> Json:
        """Issue a token without a signature: the request in base64. The account need not exist."""
        seconds = self.token_seconds or body.get("spec", {}).get("expirationSeconds") or 3600
        expires = format_time(self.clock.wall() + seconds)
        text = base64.urlsafe_b64encode(_ENCODE([namespace, name, body.get("spec"), len(self.requests)]))
        return {**body, "status": {"token": text.decode(), "expirationTimestamp": expires}}

    async def _stream(self, request: web.Request, answer: StreamedResponse) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": answer.content_type})
        if not isinstance(answer.chunks, WatchStream):
            await response.prepare(request)
            async for lines in answer.chunks:
                await response.write(lines)
            return response
        target = parse_target(request.path, SERVED)
        assert target is not None and request.transport is not None
        watch = _Watch(target.kind.plural, answer.chunks, request.transport)
        try:
            await response.prepare(request)
            self._watches.add(watch)
            self._opened.set()
            async for lines in answer.chunks:
                if lines and not watch.silent:
                    await response.write(lines)
        except ConnectionError:
            pass  # the client is gone
        finally:
            self._watches.discard(watch)
            await answer.chunks.aclose()
        return response


class _OpenAccess:
    """Lets every client do everything. Implements `ClientAccess`."""

    def __init__(self, token_of: Callable[[str, str, Json], Json]) -> None:
        self._token_of = token_of

    def authenticate(
        self,
        request: Request,
        certificate: Mapping[str, Any] | None,
        fingerprint: str = "",
        verb: str = "",
        target: Target | None = None,
    ) -> RequestUser:
        return CLIENT

    def check_resource(self, user: RequestUser, verb: str, target: Target, field_selector: str = "") -> None:
        return

    def check_path(self, user: RequestUser, verb: str, path: str) -> None:
        return

    def review(self, kind: ResourceKind, body: Json, user: RequestUser, namespace: str) -> Json:
        raise unknown_path()

    def token(self, namespace: str, name: str, body: Json, user: RequestUser) -> Json:
        return self._token_of(namespace, name, body)

    def document(self, path: str) -> Json | None:
        return None


async def _refuse_streams(asked: AskedRequest) -> Answer:
    raise unknown_path()


def _json(body: Json, status: int) -> Response:
    return Response(status, _ENCODE(body), "application/json")


def _nothing() -> None:
    """What the end of a connection does that there is not."""
