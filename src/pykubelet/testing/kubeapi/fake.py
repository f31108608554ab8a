"""An API server for tests: real HTTP on loopback, objects in memory, and faults on demand.

Owns: routes, watches with selectors and bookmarks, and the faults. The contract tests define its behavior and run against a
real API server too. `store` is the cluster's side: watchers see all changes that a test makes there.
"""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import ssl
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from pykubelet.base.api.core import LabelSelector, LabelSelectorRequirement
from pykubelet.base.api.labels import matches_selector
from pykubelet.base.api.selectors import read_field_selector
from pykubelet.base.api.times import format_time
from pykubelet.base.kit.clock import Clock, SystemClock
from pykubelet.base.kit.values import Value
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.edges.kubeapi.kubeconfig import ClusterAccess, Pem
from pykubelet.testing.kubeapi.fake_patch import Json
from pykubelet.testing.kubeapi.fake_store import Change, ResourcePath, Store, covers, parse_resource_path
from pykubelet.testing.ordered import OrderedSet

_DECODE = msgspec.json.decode
_ENCODE = msgspec.json.encode


class Sent(Value):
    """One received request."""

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


@dataclass(slots=True, eq=False)
class _Watch:
    """One open watch: the objects that it covers, and the commands of the test."""

    place: ResourcePath
    wants: Callable[[Json], bool]
    cut: asyncio.Event = field(default_factory=asyncio.Event)
    mid_line: bool = False
    bookmark: bool = False
    silent: bool = False
    wakeup: asyncio.Event = field(default_factory=asyncio.Event)


class FakeApiServer:
    """The fake API server. Use it in `async with`, or with `start` and `stop`. A restart keeps the port and the objects.

    `token`: the required bearer token; empty: requests need none. `requests`: all received requests, oldest first. `drops`: whether
    `drop=metadata.managedFields` in the header Accept has an effect (KEP-5958). `answers`:
    functions from body to answer for POST requests, by the end of the path (reviews). `served`: the plurals by
    `group/version`, for discovery.
    """

    def __init__(self, clock: Clock | None = None, tls: ssl.SSLContext | None = None, ca: bytes = b"") -> None:
        self.clock = clock or SystemClock()
        self.store = Store(self.clock)
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
        app = web.Application(client_max_size=8 << 20)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._hanging.clear()
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        self.port = self.port or self._reserved_port()
        site = web.TCPSite(
            self._runner, "127.0.0.1", self.port, ssl_context=self._tls, reuse_address=True, reuse_port=True
        )
        await site.start()

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
        for watch in self._watches:
            watch.cut.set()
            watch.wakeup.set()
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
        return self.store.create(_place(path), body)

    def get(self, path: str) -> Json:
        """The object at an API path. Raises `ApiError` 404 if there is none."""
        return self.store.get(_place(path))

    def update(self, path: str, change: Callable[[Json], None]) -> Json:
        """Apply `change` to a copy of the object and write it. For pods and nodes, a path without subresource excludes status."""
        body = _DECODE(_ENCODE(self.store.get(_place(path))))
        change(body)
        return self.store.update(_place(path), body)

    def delete(self, path: str, options: Json | None = None) -> Json:
        """Delete the object at an API path, with `DeleteOptions`, like a DELETE request of another client."""
        return self.store.delete(_place(path), options)

    def cut_watches(self, path: str = "", *, mid_line: bool = False) -> int:
        """End the open watches of the collections with the plural `path` (empty: all), in the middle of a line if `mid_line`."""
        found = [watch for watch in self._watches if path in ("", watch.place.plural)]
        for watch in found:
            watch.mid_line = mid_line
            watch.cut.set()
            watch.wakeup.set()
        return len(found)

    def silence_watches(self) -> None:
        """Let the open watches stay open but send nothing more, like half-dead connections."""
        for watch in self._watches:
            watch.silent = True

    def send_bookmarks(self) -> None:
        """Send a bookmark to every open watch."""
        for watch in self._watches:
            watch.bookmark = True
            watch.wakeup.set()

    @property
    def watching(self) -> list[str]:
        """The plurals of the open watches."""
        return sorted(watch.place.plural for watch in self._watches)

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
        content_type = request.content_type if raw else ""
        body = _DECODE(raw) if raw else None
        sent = Sent(
            request.method,
            request.path,
            dict(request.query),
            content_type,
            body,
            dict(request.headers),
        )
        self.requests.append(sent)
        fault = next((fault for fault in self.faults if fault.fits(sent)), None)
        if fault is not None:
            fault.times -= 1
            if fault.held is not None:
                await fault.held.wait()
            if fault.status or fault.held is None:
                return await self._fail(fault, request)
        if self.token and sent.headers.get("Authorization") != f"Bearer {self.token}":
            return _failure(ApiError(401, "Unauthorized", "Unauthorized"))
        try:
            answer = await self._answer(request, sent)
            if isinstance(answer, web.Response) and isinstance(answer.body, bytes):
                answer.body = self._form(answer.body, sent)
            return answer
        except ApiError as error:
            return _failure(error)

    def _form(self, lines: bytes, sent: Sent) -> bytes:
        """Answers in the form that the client accepts, each in a line."""
        if not self.drops or "drop=metadata.managedFields" not in sent.headers.get("Accept", ""):
            return lines
        return b"".join(_ENCODE(_without_managed_fields(_DECODE(line))) + b"\n" for line in lines.splitlines())

    async def _fail(self, fault: ApiFault, request: web.Request) -> web.StreamResponse:
        if fault.hang:
            await self._hanging.wait()
        if fault.hang or not fault.status:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return _failure(ApiError(fault.status, fault.reason, fault.message, fault.retry_after_s))

    async def _answer(self, request: web.Request, sent: Sent) -> web.StreamResponse:
        if sent.path in ("/healthz", "/readyz", "/livez"):
            return web.Response(text="ok")
        served = self.served.get(sent.path.removeprefix("/apis/"))
        if served is not None:
            return _json({"kind": "APIResourceList", "resources": [{"name": plural} for plural in served]})
        place = parse_resource_path(sent.path)
        if place is None:
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        match sent.method:
            case "GET" if place.name:
                return _json(self.store.get(place))
            case "GET" if sent.query.get("watch") in ("true", "1"):
                return await self._watch(request, sent, place)
            case "GET":
                return _json(self._list(place, sent.query))
            case "POST":
                return _json(self._post(place, sent), 201)
            case "PUT":
                return _json(self.store.update(place, sent.body))
            case "PATCH":
                return _json(self.store.patch(place, sent.content_type, sent.body))
            case "DELETE" if not place.name:
                return _json(self._delete_all(place, sent.query))
            case "DELETE":
                return _json(self.store.delete(place, sent.body))
        raise ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")

    def _post(self, place: ResourcePath, sent: Sent) -> Json:
        for ending, answer in self.answers.items():
            if sent.path.endswith(ending):
                return answer(sent.body)
        if place.sub == "token":
            return self._token_of(place, sent.body)
        if place.name and place.sub:
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        return self.store.create(place, sent.body)

    def _token_of(self, place: ResourcePath, body: Json) -> Json:
        """Issue a token without a signature: the request in base64. The account need not exist."""
        seconds = self.token_seconds or body.get("spec", {}).get("expirationSeconds") or 3600
        expires = format_time(self.clock.wall() + seconds)
        text = base64.urlsafe_b64encode(_ENCODE([place.namespace, place.name, body.get("spec"), len(self.requests)]))
        return {**body, "status": {"token": text.decode(), "expirationTimestamp": expires}}

    def _list(self, place: ResourcePath, query: dict[str, str]) -> Json:
        wants = _selector(query)
        items = [item for item in self.store.list(place) if wants(item)]
        meta = {"resourceVersion": str(self.store.version)}
        limit = int(query.get("limit", "0"))
        # as in the API server, a list from the cache has no pages
        if limit and query.get("resourceVersion") != "0":
            start = int(query.get("continue", "0"))
            if start + limit < len(items):
                meta["continue"] = str(start + limit)
            items = items[start : start + limit]
        return {"kind": f"{place.kind}List", "apiVersion": place.group, "metadata": meta, "items": items}

    def _delete_all(self, place: ResourcePath, query: dict[str, str]) -> Json:
        wants = _selector(query)
        for item in [item for item in self.store.list(place) if wants(item)]:
            meta = item["metadata"]
            self.store.delete(ResourcePath(place.group, place.plural, meta.get("namespace", ""), meta["name"]))
        return {"kind": "Status", "apiVersion": "v1", "status": "Success"}

    # -- watches

    async def _watch(self, request: web.Request, sent: Sent, place: ResourcePath) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        watch = _Watch(place, _selector(sent.query))
        since = int(sent.query.get("resourceVersion") or "0")
        if since and since < self.store.oldest:
            await response.write(_line("ERROR", _status(ApiError(410, "Expired", "too old resource version"))))
            return response
        self._watches.add(watch)
        self._opened.set()
        self.store.wakeups.add(watch.wakeup)
        try:
            async with asyncio.timeout(float(sent.query.get("timeoutSeconds", "3600"))):
                await self._send_changes(response, watch, since, sent)
        except TimeoutError:
            pass  # the normal end of a watch
        except ConnectionError:
            return response
        finally:
            self._watches.discard(watch)
            self.store.wakeups.discard(watch.wakeup)
        if watch.cut.is_set() and request.transport is not None:
            if watch.mid_line:
                await response.write(b'{"type":"MODIFIED","object":{"metadata":{"na')
            request.transport.close()
        return response

    async def _send_changes(self, response: web.StreamResponse, watch: _Watch, since: int, sent: Sent) -> None:
        if since == 0:
            since = self.store.version
            for item in self.store.list(watch.place):
                if watch.wants(item):
                    await response.write(self._form(_line("ADDED", item), sent))
        while not watch.cut.is_set():
            watch.wakeup.clear()
            if since < self.store.oldest:
                await response.write(_line("ERROR", _status(ApiError(410, "Expired", "too old resource version"))))
                return
            lines = [_event(watch, change) for change in self.store.changes_after(since)]
            since = max(since, self.store.version)
            if watch.bookmark and sent.query.get("allowWatchBookmarks") == "true" and self.bookmarks:
                mark = {"kind": watch.place.kind, "apiVersion": watch.place.group}
                lines.append(_line("BOOKMARK", {**mark, "metadata": {"resourceVersion": str(since)}}))
            watch.bookmark = False
            data = b"".join(line for line in lines if line)
            if data and not watch.silent:
                await response.write(self._form(data, sent))
            await watch.wakeup.wait()


def _place(path: str) -> ResourcePath:
    place = parse_resource_path(path)
    assert place is not None, path
    return place


def _event(watch: _Watch, change: Change) -> bytes:
    """The event for a change that a watch with selectors gets; empty if it never had the object."""
    if not covers(watch.place, change.place):
        return b""
    was = change.before is not None and watch.wants(change.before)
    is_now = change.type != "DELETED" and watch.wants(change.object)
    if is_now:
        return _line("MODIFIED" if was else "ADDED", change.object)
    return _line("DELETED", change.object) if was else b""


def _without_managed_fields(answer: Json) -> Json:
    """An object, an event or a list of objects without `metadata.managedFields`."""
    if "items" in answer:
        return {**answer, "items": [_without_managed_fields(item) for item in answer["items"]]}
    if "object" in answer:
        return {**answer, "object": _without_managed_fields(answer["object"])}
    metadata = {key: value for key, value in answer.get("metadata", {}).items() if key != "managedFields"}
    return {**answer, "metadata": metadata}


def _line(event: str, item: Json) -> bytes:
    return _ENCODE({"type": event, "object": item}) + b"\n"


def _selector(query: dict[str, str]) -> Callable[[Json], bool]:
    fields = tuple(read_field_selector(query.get("fieldSelector", "")))
    labels = [part for part in query.get("labelSelector", "").split(",") if part]

    def wants(item: Json) -> bool:
        return all(_field_fits(item, *wanted) for wanted in fields) and matches_selector(
            LabelSelector(matchExpressions=tuple(_requirement(part) for part in labels)),
            item["metadata"].get("labels") or {},
        )

    return wants


def _field_fits(item: Json, path: str, is_wanted: bool, value: str) -> bool:
    found: Any = item
    for name in path.split("."):
        found = (found or {}).get(name)
    return ((found or "") == value) is is_wanted


def _requirement(part: str) -> LabelSelectorRequirement:
    key, equals, value = part.partition("!=" if "!=" in part else "=")
    if not equals:
        return LabelSelectorRequirement(
            key=key.removeprefix("!"), operator="DoesNotExist" if key[0] == "!" else "Exists"
        )
    operator = "NotIn" if equals == "!=" else "In"
    return LabelSelectorRequirement(key=key, operator=operator, values=(value.removeprefix("="),))


def _status(error: ApiError) -> Json:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": error.reason,
        "message": error.message,
        "code": error.status,
    }


def _failure(error: ApiError) -> web.Response:
    response = _json(_status(error), error.status)
    if error.retry_after_s is not None:
        response.headers["Retry-After"] = str(int(error.retry_after_s))
    return response


def _json(body: Any, status: int = 200) -> web.Response:
    return web.Response(body=_ENCODE(body), status=status, content_type="application/json")
