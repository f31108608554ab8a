"""An API server for tests: real HTTP on loopback, objects in memory, and faults on demand.

Owns: routes, watches with selectors and bookmarks, and the faults. What it promises is in the contract tests, which run
against a real API server too. `store` is the cluster's side: whatever a test changes there, watchers see.
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
from pykubelet.base.api.times import format_time
from pykubelet.base.kit.clock import Clock, SystemClock
from pykubelet.base.kit.values import Value
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.edges.kubeapi.kubeconfig import Access, Pem
from pykubelet.testing.kubeapi.fake_patch import Json
from pykubelet.testing.kubeapi.fake_store import Change, Place, Store, covers, parse_place

_DECODE = msgspec.json.decode
_ENCODE = msgspec.json.encode


class Sent(Value):
    """One request as it came."""

    method: str
    path: str
    query: dict[str, str]
    content_type: str
    body: Any
    headers: dict[str, str]


@dataclass(slots=True)
class Fault:
    """What happens instead, to requests whose method and path fit; `times` < 0: for ever.

    `status` 0 and not `hang`: the connection is closed without an answer. `held`: the request is on its way until this
    event, and then answered with `status`, with 0 as without a fault.
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
        if self.watch is not None and self.watch != (sent.query.get("watch") in ("true", "1")):
            return False
        return self.times != 0 and self.path in sent.path and self.method in ("", sent.method)


@dataclass(slots=True, eq=False)
class _Watch:
    """One open watch: what it covers, and the orders of the test."""

    place: Place
    wants: Callable[[Json], bool]
    cut: asyncio.Event = field(default_factory=asyncio.Event)
    mid_line: bool = False
    bookmark: bool = False
    silent: bool = False
    bell: asyncio.Event = field(default_factory=asyncio.Event)


class FakeApiServer:
    """Use it in `async with`, or `start` and `stop`; it comes back at the same port with the same objects.

    `token`: what requests must bear; empty: anything goes. `requests`: all that came, oldest first. `answers`: what is
    said to a POST whose path ends so (reviews); given the body, it returns the answer. `served`: plurals by
    `group/version`, for those who ask what there is.
    """

    def __init__(self, clock: Clock | None = None, tls: ssl.SSLContext | None = None, ca: bytes = b"") -> None:
        self.clock = clock or SystemClock()
        self.store = Store(self.clock)
        self.faults: list[Fault] = []
        self.requests: list[Sent] = []
        self.answers: dict[str, Callable[[Json], Json]] = {}
        self.served: dict[str, tuple[str, ...]] = {}
        self.token = ""
        self.token_seconds: int | None = None
        self.bookmarks = True
        self.port = 0
        self._tls = tls
        self._ca = ca
        self._watches: set[_Watch] = set()
        self._opened = asyncio.Event()
        self._hanging = asyncio.Event()
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> FakeApiServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
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
        """One that nobody else gets while the server is away: a socket that does not listen keeps it."""
        keeper = socket.socket()
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        keeper.bind(("127.0.0.1", 0))
        port = int(keeper.getsockname()[1])
        weakref.finalize(self, os.close, keeper.detach())
        return port

    async def stop(self) -> None:
        """Go away: every connection ends. The objects stay for the next `start`."""
        self._hanging.set()
        for watch in self._watches:
            watch.cut.set()
            watch.bell.set()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def access(self) -> Access:
        return Access(server=self.url, token=self.token, ca=Pem(data=self._ca))

    # -- what a test does from the cluster's side

    def create(self, path: str, body: Json) -> Json:
        """`path` is a collection's. Raises ApiError, like all of these."""
        return self.store.create(_place(path), body)

    def get(self, path: str) -> Json:
        return self.store.get(_place(path))

    def update(self, path: str, change: Callable[[Json], None]) -> Json:
        """Change a copy of the object in place and write it; of pods and nodes without a subresource: all but status."""
        body = _DECODE(_ENCODE(self.store.get(_place(path))))
        change(body)
        return self.store.update(_place(path), body)

    def delete(self, path: str, options: Json | None = None) -> Json:
        return self.store.delete(_place(path), options)

    def cut_watches(self, path: str = "", *, mid_line: bool = False) -> int:
        """End the open watches of collections whose plural is `path` (all): in the middle of a line if so asked."""
        found = [watch for watch in self._watches if path in ("", watch.place.plural)]
        for watch in found:
            watch.mid_line = mid_line
            watch.cut.set()
            watch.bell.set()
        return len(found)

    def silence_watches(self) -> None:
        """The open watches stay open and say nothing more, as half-dead connections do."""
        for watch in self._watches:
            watch.silent = True

    def send_bookmarks(self) -> None:
        for watch in self._watches:
            watch.bookmark = True
            watch.bell.set()

    @property
    def watching(self) -> list[str]:
        """The plurals of the open watches."""
        return sorted(watch.place.plural for watch in self._watches)

    async def wait_watches(self, number: int = 1) -> None:
        """Return as soon as at least `number` watches are open."""
        while len(self._watches) < number:
            self._opened.clear()
            await self._opened.wait()

    def count(self, method: str = "", path: str = "") -> int:
        """How many requests fitted."""
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
            return await self._answer(request, sent)
        except ApiError as error:
            return _failure(error)

    async def _fail(self, fault: Fault, request: web.Request) -> web.StreamResponse:
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
        place = parse_place(sent.path)
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
            case "DELETE":
                return _json(self.store.delete(place, sent.body))
        raise ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")

    def _post(self, place: Place, sent: Sent) -> Json:
        for ending, answer in self.answers.items():
            if sent.path.endswith(ending):
                return answer(sent.body)
        if place.sub == "token":
            return self._token_of(place, sent.body)
        if place.name and place.sub:
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        return self.store.create(place, sent.body)

    def _token_of(self, place: Place, body: Json) -> Json:
        """A token that nobody can check: the request in base64. Its account need not exist."""
        seconds = self.token_seconds or body.get("spec", {}).get("expirationSeconds") or 3600
        expires = format_time(self.clock.wall() + seconds)
        text = base64.urlsafe_b64encode(_ENCODE([place.namespace, place.name, body.get("spec"), len(self.requests)]))
        return {**body, "status": {"token": text.decode(), "expirationTimestamp": expires}}

    def _list(self, place: Place, query: dict[str, str]) -> Json:
        wants = _selector(query)
        items = [item for item in self.store.list(place) if wants(item)]
        meta = {"resourceVersion": str(self.store.version)}
        limit = int(query.get("limit", "0"))
        # like the API server: a list from its cache has no pages
        if limit and query.get("resourceVersion") != "0":
            start = int(query.get("continue", "0"))
            if start + limit < len(items):
                meta["continue"] = str(start + limit)
            items = items[start : start + limit]
        return {"kind": f"{place.kind}List", "apiVersion": place.group, "metadata": meta, "items": items}

    # -- watches

    async def _watch(self, request: web.Request, sent: Sent, place: Place) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        watch = _Watch(place, _selector(sent.query))
        since = int(sent.query.get("resourceVersion") or "0")
        if since and since < self.store.oldest:
            await response.write(_line("ERROR", _status(ApiError(410, "Expired", "too old resource version"))))
            return response
        self._watches.add(watch)
        self._opened.set()
        self.store.bells.add(watch.bell)
        try:
            async with asyncio.timeout(float(sent.query.get("timeoutSeconds", "3600"))):
                await self._send_changes(response, watch, since, sent)
        except TimeoutError:
            pass  # its ordinary end
        except ConnectionError:
            return response
        finally:
            self._watches.discard(watch)
            self.store.bells.discard(watch.bell)
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
                    await response.write(_line("ADDED", item))
        while not watch.cut.is_set():
            watch.bell.clear()
            if since < self.store.oldest:
                await response.write(_line("ERROR", _status(ApiError(410, "Expired", "too old resource version"))))
                return
            lines = [_event(watch, change) for change in self.store.history if change.version > since]
            since = max(since, self.store.version)
            if watch.bookmark and sent.query.get("allowWatchBookmarks") == "true" and self.bookmarks:
                mark = {"kind": watch.place.kind, "apiVersion": watch.place.group}
                lines.append(_line("BOOKMARK", {**mark, "metadata": {"resourceVersion": str(since)}}))
            watch.bookmark = False
            data = b"".join(line for line in lines if line)
            if data and not watch.silent:
                await response.write(data)
            await watch.bell.wait()


def _place(path: str) -> Place:
    place = parse_place(path)
    assert place is not None, path
    return place


def _event(watch: _Watch, change: Change) -> bytes:
    """What a watcher with selectors is told of a change; nothing where it never saw the object."""
    if not covers(watch.place, change.place):
        return b""
    was = change.before is not None and watch.wants(change.before)
    is_now = change.type != "DELETED" and watch.wants(change.object)
    if is_now:
        return _line("MODIFIED" if was else "ADDED", change.object)
    return _line("DELETED", change.object) if was else b""


def _line(event: str, item: Json) -> bytes:
    return _ENCODE({"type": event, "object": item}) + b"\n"


def _selector(query: dict[str, str]) -> Callable[[Json], bool]:
    fields = [part for part in query.get("fieldSelector", "").split(",") if part]
    labels = [part for part in query.get("labelSelector", "").split(",") if part]

    def wants(item: Json) -> bool:
        return all(_field_fits(part, item) for part in fields) and matches_selector(
            LabelSelector(matchExpressions=tuple(_requirement(part) for part in labels)),
            item["metadata"].get("labels") or {},
        )

    return wants


def _field_fits(part: str, item: Json) -> bool:
    negated = "!=" in part
    path, _, wanted = part.partition("!=" if negated else "=")
    found: Any = item
    for name in path.split("."):
        found = (found or {}).get(name)
    return ((found or "") == wanted.removeprefix("=")) != negated


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
