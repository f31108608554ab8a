"""The node's web page: on the authenticated port below `/page/`, and on loopback for browsers with a session (`login.py`).

Owns: the page's data. Reads: the documents of `pykubelet pods` and `explain`, the history of usage, and the runtime's images.
The files are in `page/` and load nothing from elsewhere. `data` is short, because browsers request it every few seconds;
details of one pod are in `pod`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from msgspec.structs import asdict

from pykubelet.base.api.codec import encode
from pykubelet.base.kit.cells import Cell
from pykubelet.base.kit.clock import Clock
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.usage import GroupUse, PodUse, Usage
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.errors import CriError
from pykubelet.net.http.server import JSON, Answer, Request, Response, text
from pykubelet.serve.explain.documents import AskInputs, node_document, pod_document, pods_document
from pykubelet.serve.page.history import History, UsagePoint
from pykubelet.serve.page.login import PREFIX

IMAGES_S = 30.0
MAX_EVENTS = 60
_TYPES = {
    "index.html": "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "charts.js": "text/javascript; charset=utf-8",
    "pod.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
Document = dict[str, Any]


class ImageLister(Protocol):
    """The part of the CRI client used here. Raises CriError."""

    async def list_images(self) -> Sequence[pb.Image]:
        """All images of the runtime. Raises CriError."""
        ...


class NodePage:
    """The page below `/page/`. `version`: the version that it shows."""

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
        """A file of the page, or its data as JSON; 404 for other names."""
        if request.path == PREFIX:
            return Response(301, b"", headers={"Location": f"{PREFIX}/"})
        name = request.path.removeprefix(f"{PREFIX}/") or "index.html"
        if name == "data":
            return Response(200, encode(await self._data()), JSON, _HEADERS)
        if name == "pod":
            document = self._pod(PodUID(request.first("uid")))
            return Response(200, encode(document), JSON, _HEADERS) if document else text(404, "no such pod\n")
        if name not in _TYPES:
            return text(404, "404: Page Not Found")
        from importlib.resources import files  # imported late, because most nodes never show the page

        return Response(200, files(__package__ or "").joinpath(name).read_bytes(), _TYPES[name], _HEADERS)

    async def _data(self) -> Document:
        now = self._clock.wall()
        pods = pods_document(self._inputs, now, now)
        return {
            "now": now,
            "node": self._node(now, pods["waits"]),
            "pods": [{**pod, "use": self._newest(pod["uid"])} for pod in pods["pods"]],
            "problems": pods["problems"],
            "remarks": pods["remarks"],
            "usage": _series(self._history.node.points),
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

    def _newest(self, uid: PodUID) -> Document | None:
        track = self._history.pods.get(uid)
        return asdict(track.points[-1]) if track is not None else None

    def _pod(self, uid: PodUID) -> Document | None:
        """The document of `explain`, with usage over time, the usage of each running container, and the volumes."""
        document = pod_document(self._inputs, uid, self._clock.wall())
        if document is None:
            return None
        track, use = self._history.pods.get(uid), self._usage.get().pods.get(uid)
        by_id = {container.id: container.group for container in use.containers} if use is not None else {}
        containers = [
            {**container, **_container_use(by_id.get(container["id"].partition("://")[2]))}
            for container in document["containers"]
        ]
        return {
            **document,
            "containers": containers,
            "usage": _series(track.points if track is not None else ()),
            "volumes": self._volumes(uid, use),
        }

    def _volumes(self, uid: PodUID, use: PodUse | None) -> list[Document]:
        mounts = self._inputs.mounts.get().pods.get(uid)
        used = {volume.name: volume.fs.used for volume in use.volumes} if use is not None else {}
        return [
            {"name": volume.name, "kind": volume.kind, "path": volume.host_path, "used": used.get(volume.name)}
            for volume in (mounts.volumes.values() if mounts is not None else ())
        ]

    def _events(self) -> list[Document]:
        recent = self._inputs.recent.get()
        found = [*recent.node, *(event for ring in recent.pods.values() for event in ring)]
        found.sort(key=lambda event: event.last_at, reverse=True)
        return [
            {
                "at": event.last_at,
                "type": event.kube_event.type,
                "reason": event.kube_event.reason,
                "object": f"{pod.namespace}/{pod.name}" if (pod := event.kube_event.pod) is not None else "node",
                "part": event.kube_event.field_path,
                "message": event.message,
                "count": event.count,
            }
            for event in found[:MAX_EVENTS]
        ]

    async def _image_list(self) -> list[Document]:
        """The images of the runtime, which is asked again only after a while."""
        now = self._clock.monotonic()
        if self._listed is None or now - self._listed[0] > IMAGES_S:
            try:
                listed = await self._images.list_images()
            except CriError:
                return self._listed[1] if self._listed is not None else []
            names = [
                {"name": (*image.repo_tags, *image.repo_digests, image.id)[0], "size": image.size} for image in listed
            ]
            self._listed = (now, sorted(names, key=lambda image: str(image["name"])))
        return self._listed[1]


def _series(points: Iterable[UsagePoint]) -> Document:
    """The values of each figure as a list, oldest first."""
    kept = list(points)
    return {name: [getattr(point, name) for point in kept] for name in UsagePoint.__struct_fields__}


def _container_use(group: GroupUse | None) -> Document:
    if group is None:
        return {"cpu": None, "memory": None}
    return {"cpu": group.nano_cores, "memory": group.memory.working_set}
