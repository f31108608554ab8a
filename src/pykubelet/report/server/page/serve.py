"""The node's web page: on the authenticated port below `/page/`, and on loopback for who holds a one-time link.

Owns: the page's data, the links and the sessions they open. Reads: what `pykubelet pods` and `explain` read, the history of usage,
and the runtime's images. The files lie in `page/`; they load nothing from elsewhere.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from typing import Any, Protocol

from pykubelet.base.api.codec import encode
from pykubelet.base.kit.cells import Cell
from pykubelet.base.kit.clock import Clock
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.usage import Usage
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.errors import CriError
from pykubelet.report.server.explain.documents import AskInputs, node_document, pod_document, pods_document
from pykubelet.report.server.http.server import JSON, Answer, Connection, Request, Response, text
from pykubelet.report.server.page.history import History

PREFIX = "/page"
LINK_S = 300.0
SESSION_S = 12 * 3600.0
MAX_SESSIONS = 64
IMAGES_S = 30.0
MAX_EVENTS = 60
COOKIE = "pykubelet-page"
_TYPES = {
    "index.html": "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
Document = dict[str, Any]


class ImageLister(Protocol):
    """The part of the CRI client used here. Raises CriError."""

    async def list_images(self) -> Sequence[pb.Image]: ...


class NodePage:
    """`ask` answers below `/page/`. `version`: as it is shown."""

    def __init__(
        self, inputs: AskInputs, usage: Cell[Usage], history: History, images: ImageLister, clock: Clock, version: str
    ) -> None:
        self._inputs = inputs
        self._usage = usage
        self._history = history
        self._images = images
        self._clock = clock
        self._version = version
        self._listed: tuple[float, list[Document]] | None = None

    async def ask(self, request: Request) -> Answer:
        if request.path == PREFIX:
            return Response(301, b"", headers={"Location": f"{PREFIX}/"})
        name = request.path.removeprefix(f"{PREFIX}/") or "index.html"
        if name == "data":
            return Response(200, encode(await self._data()), JSON, _HEADERS)
        if name == "pod":
            document = pod_document(self._inputs, PodUID(request.first("uid")), self._clock.wall())
            return (
                Response(200, encode(document), JSON, _HEADERS) if document is not None else text(404, "no such pod\n")
            )
        if name not in _TYPES:
            return text(404, "404: Page Not Found")
        from importlib.resources import files  # most nodes never show the page

        return Response(200, files(__package__ or "").joinpath(name).read_bytes(), _TYPES[name], _HEADERS)

    async def _data(self) -> Document:
        now = self._clock.wall()
        pods = pods_document(self._inputs, now, now)
        return {
            "now": now,
            "node": self._node(now, pods["waits"]),
            "pods": pods["pods"],
            "usage": self._node_usage(),
            "pods_usage": {
                uid: {"cpu": list(samples.cpu), "memory": list(samples.memory)}
                for uid, samples in self._history.pods.items()
            },
            "volumes": self._volumes(),
            "events": self._events(),
            "images": await self._image_list(),
        }

    def _node(self, now: float, waits: Sequence[Any]) -> Document:
        document = node_document(self._inputs, now, now)
        runtime, use = document["runtime"], self._usage.get().node
        trouble = [wait["detail"] or wait["what"] for wait in waits]
        return {
            "name": document["name"],
            "ips": document["ips"],
            "runtime": f"{runtime['name']} {runtime['version']}".strip(),
            "version": self._version,
            "trouble": "; ".join(trouble),
            "cpu_cores": document["capacity"].get("cpu", 0) / 1000,
            "memory": document["capacity"].get("memory", 0),
            "disk": use.fs.capacity if use is not None and use.fs is not None else None,
        }

    def _node_usage(self) -> Document:
        samples = self._history.node
        return {name: [getattr(one, name) for one in samples] for name in ("cpu", "memory", "received", "sent", "disk")}

    def _volumes(self) -> Document:
        return {
            uid: [{"name": v.name, "kind": v.kind, "path": v.host_path} for v in mounts.volumes.values()]
            for uid, mounts in self._inputs.mounts.get().pods.items()
        }

    def _events(self) -> list[Document]:
        recent = self._inputs.recent.get()
        found = [(one, str(one.happening.pod) if one.happening.pod is not None else "node") for one in recent.node]
        found += [(one, str(one.happening.pod)) for ring in recent.pods.values() for one in ring]
        found.sort(key=lambda pair: pair[0].last_at, reverse=True)
        return [
            {
                "at": one.last_at,
                "type": one.happening.type,
                "reason": one.happening.reason,
                "object": name.partition("(")[0],
                "message": one.message,
                "count": one.count,
            }
            for one, name in found[:MAX_EVENTS]
        ]

    async def _image_list(self) -> list[Document]:
        """Asked of the runtime now and then."""
        now = self._clock.monotonic()
        if self._listed is None or now - self._listed[0] > IMAGES_S:
            try:
                listed = await self._images.list_images()
            except CriError:
                return self._listed[1] if self._listed is not None else []
            names = [{"name": (*one.repo_tags, *one.repo_digests, one.id)[0], "size": one.size} for one in listed]
            self._listed = (now, sorted(names, key=lambda one: str(one["name"])))
        return self._listed[1]


class PageDoor:
    """The door on loopback: a link is good once and for five minutes, and opens a session in one browser."""

    def __init__(self, page: NodePage, clock: Clock, port: int) -> None:
        self._page = page
        self._clock = clock
        self._port = port
        self._link: tuple[str, float] | None = None
        self._sessions: dict[str, float] = {}

    def link(self) -> str:
        """A new link; the one before is void."""
        token = secrets.token_urlsafe(32)
        self._link = (token, self._clock.monotonic() + LINK_S)
        return f"http://127.0.0.1:{self._port}{PREFIX}/open?token={token}"

    async def handle(self, request: Request, _: Connection) -> Answer:
        if request.headers.get("host", "") not in (f"127.0.0.1:{self._port}", f"localhost:{self._port}"):
            return text(403, "Forbidden\n")  # a name of somebody else's that leads here
        if request.method not in ("GET", "HEAD"):
            return text(405, "405: Method Not Allowed")
        if request.path == f"{PREFIX}/open":
            return self._open(request.first("token"))
        if not self._is_known(request.headers.get("cookie", "")):
            return text(401, "This page opens with a link from: pykubelet page\n")
        if request.path == "/":
            return Response(301, b"", headers={"Location": f"{PREFIX}/"})
        return await self._page.ask(request)

    def _open(self, token: str) -> Answer:
        link, now = self._link, self._clock.monotonic()
        if link is None or now > link[1] or not hmac.compare_digest(link[0].encode(), token.encode()):
            return text(401, "This link has been used or is too old; get another with: pykubelet page\n")
        self._link = None
        self._sessions = {name: end for name, end in self._sessions.items() if end > now}
        while len(self._sessions) >= MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        session = secrets.token_urlsafe(32)
        self._sessions[session] = now + SESSION_S
        cookie = f"{COOKIE}={session}; HttpOnly; SameSite=Strict; Path=/; Max-Age={int(SESSION_S)}"
        return Response(303, b"", headers={"Location": f"{PREFIX}/", "Set-Cookie": cookie})

    def _is_known(self, cookies: str) -> bool:
        for cookie in cookies.split(";"):
            name, _, value = cookie.strip().partition("=")
            if name == COOKIE and self._sessions.get(value, 0.0) > self._clock.monotonic():
                return True
        return False
