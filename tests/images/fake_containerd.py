"""A double of containerd's services for content, images and leases, and of its CRI, with namespaces and garbage collection.

It follows containerd's `metadata` package: a namespace sees a blob only after a writer there has committed it; one that another namespace
has is complete for a writer that states its digest and size; what no image and no lease leads to is collected.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from support.grpc_services import Context, Rpc, grpcio_handlers
from support.oci import Json, Layout

from pykubelet.edges.cri import cri_pb2 as cri
from pykubelet.net.grpc.channel import Channel, unix_dial
from pykubelet_images import containerd_content_pb2 as content
from pykubelet_images import containerd_images_pb2 as images
from pykubelet_images import containerd_leases_pb2 as leases
from pykubelet_images.containerd import LIMITS

CODE = grpc.StatusCode
#: Bytes of one piece of an answer to Read.
PIECE = 1000


@dataclass
class Space:
    """One namespace. `blobs`: labels by digest. `leased`: digests by lease. `expiry`: by lease. `ingests`: writers that did not end."""

    images: dict[str, images.Image] = field(default_factory=dict)
    blobs: dict[str, dict[str, str]] = field(default_factory=dict)
    leased: dict[str, set[str]] = field(default_factory=dict)
    expiry: dict[str, str] = field(default_factory=dict)
    ingests: set[str] = field(default_factory=set)

    def collect(self) -> None:
        """Remove what no image leads to, once all leases have expired."""
        self.leased.clear()
        self.ingests.clear()
        kept, waiting = set[str](), [image.target.digest for image in self.images.values()]
        while waiting:
            digest = waiting.pop()
            if digest not in kept:
                kept.add(digest)
                waiting += [
                    value
                    for key, value in self.blobs.get(digest, {}).items()
                    if key.startswith("containerd.io/gc.ref.content.")
                ]
        self.blobs = {digest: labels for digest, labels in self.blobs.items() if digest in kept}


@dataclass
class FakeContainerd:
    """`stored`: all blobs. `shares`: its content sharing policy. `has_cri`, `offers_images`: which services it has.
    `calls`: the names of all calls.
    `calls_left`: after so many calls it answers no more, as if the client had been killed.
    """

    spaces: defaultdict[str, Space] = field(default_factory=lambda: defaultdict(Space))
    stored: dict[str, bytes] = field(default_factory=dict)
    shares: bool = True
    has_cri: bool = True
    offers_images: bool = True
    calls: list[str] = field(default_factory=list)
    calls_left: int = 1000
    ids: dict[str, str] = field(default_factory=dict)

    def load(self, name: str, layout: Layout, root: Json, namespace: str = "moby") -> None:
        """Put an image into a namespace."""
        self.stored |= layout.blobs
        space = self.spaces[namespace]
        space.blobs |= {digest: {} for digest in layout.blobs}
        target = images.Descriptor(media_type=root["mediaType"], digest=root["digest"], size=root["size"])
        space.images[name] = images.Image(name=name, target=target)
        self.ids[root["digest"]] = layout.config

    def services(self) -> dict[str, Rpc]:
        """The methods by path."""
        content_methods: Mapping[str, tuple[Callable[..., Any], type[Any], bool]] = {
            "content.v1.Content/Info": (self._info, content.InfoRequest, False),
            "content.v1.Content/Update": (self._label, content.UpdateRequest, False),
            "content.v1.Content/Read": (self._read, content.ReadContentRequest, True),
            "content.v1.Content/Write": (self._write, content.WriteContentRequest, True),
            "content.v1.Content/Abort": (self._abort, content.AbortRequest, False),
            "images.v1.Images/Get": (self._get, images.GetImageRequest, False),
            "images.v1.Images/List": (self._list, images.ListImagesRequest, False),
            "images.v1.Images/Create": (self._create, images.CreateImageRequest, False),
            "images.v1.Images/Update": (self._update, images.UpdateImageRequest, False),
            "leases.v1.Leases/Create": (self._lease, leases.CreateRequest, False),
            "leases.v1.Leases/Delete": (self._release, leases.DeleteRequest, False),
        }
        found = {
            f"/containerd.services.{path}": Rpc(
                self._counted(path, handler) if not streams else self._counted_stream(path, handler), request, streams
            )
            for path, (handler, request, streams) in content_methods.items()
        }
        if not self.offers_images:
            found = {path: rpc for path, rpc in found.items() if "Images" not in path}
        if self.has_cri:
            found["/runtime.v1.RuntimeService/Version"] = Rpc(self._version, cri.VersionRequest)
            found["/runtime.v1.ImageService/ImageStatus"] = Rpc(self._status, cri.ImageStatusRequest)
        return found

    def _counted(self, path: str, handler: Callable[..., Any]) -> Callable[..., Any]:
        async def handle(request: Any, context: Any) -> Any:
            await self._admit(path, context)
            return await handler(request, context)

        return handle

    def _counted_stream(self, path: str, handler: Callable[..., Any]) -> Callable[..., Any]:
        async def handle(request: Any, context: Any) -> AsyncIterator[Any]:
            await self._admit(path, context)
            async for answer in handler(request, context):
                yield answer

        return handle

    async def _admit(self, path: str, context: Context) -> None:
        if self.calls_left <= 0:
            await context.abort(CODE.UNAVAILABLE, "error reading from server: EOF")
        self.calls_left -= 1
        self.calls.append(path.rpartition(".")[2])

    # content

    async def _info(self, request: content.InfoRequest, context: Any) -> content.InfoResponse:
        space = self._space(context)
        if request.digest not in space.blobs:
            await context.abort(CODE.NOT_FOUND, f"content {request.digest}: not found")
        return content.InfoResponse(info=content.Info(digest=request.digest, size=len(self.stored[request.digest])))

    async def _label(self, request: content.UpdateRequest, context: Any) -> content.Done:
        labels = self._space(context).blobs[request.info.digest]
        for path in request.update_mask.paths:
            key = path.removeprefix("labels.")
            labels[key] = request.info.labels[key]
        return content.Done()

    async def _read(self, request: content.ReadContentRequest, context: Any) -> AsyncIterator[Any]:
        if request.digest not in self._space(context).blobs:
            await context.abort(CODE.NOT_FOUND, f"content {request.digest}: not found")
        data = self.stored[request.digest][: request.size or None]
        for start in range(0, len(data), PIECE):
            yield content.ReadContentResponse(offset=start, data=data[start : start + PIECE])

    async def _write(self, request: content.WriteContentRequest, context: Any) -> AsyncIterator[Any]:
        assert request.action == content.COMMIT and request.ref
        space, lease = self._space(context), dict(context.invocation_metadata()).get("containerd-lease", "")
        if request.expected in space.blobs:
            space.leased[lease].add(request.expected)
            await context.abort(CODE.ALREADY_EXISTS, f"content {request.expected}: already exists")
        data = self.stored.get(request.expected) if self.shares else None
        space.ingests.add(request.ref)
        if data is None or len(data) != request.total or request.offset != len(data):
            await context.abort(CODE.OUT_OF_RANGE, f"write @{request.offset} must occur at current offset 0")
        space.ingests.discard(request.ref)
        space.blobs[request.expected] = dict(request.labels)
        space.leased[lease].add(request.expected)
        for _ in range(2):  # containerd sends its last answer twice
            yield content.WriteContentResponse(action=content.COMMIT, offset=request.total, digest=request.expected)

    async def _abort(self, request: content.AbortRequest, context: Any) -> content.Done:
        self._space(context).ingests.remove(request.ref)
        return content.Done()

    # images

    async def _get(self, request: images.GetImageRequest, context: Any) -> images.GetImageResponse:
        image = self._space(context).images.get(request.name)
        if image is None:
            await context.abort(CODE.NOT_FOUND, f'image "{request.name}": not found')
        return images.GetImageResponse(image=image)

    async def _list(self, _: images.ListImagesRequest, context: Any) -> images.ListImagesResponse:
        return images.ListImagesResponse(images=self._space(context).images.values())

    async def _create(self, request: images.CreateImageRequest, context: Any) -> images.ImageChanged:
        space = self._space(context)
        if request.image.name in space.images:
            await context.abort(CODE.ALREADY_EXISTS, f'image "{request.image.name}": already exists')
        space.images[request.image.name] = request.image
        return images.ImageChanged()

    async def _update(self, request: images.UpdateImageRequest, context: Any) -> images.ImageChanged:
        assert list(request.update_mask.paths) == ["target", "labels"]
        self._space(context).images[request.image.name] = request.image
        return images.ImageChanged()

    # leases and the CRI

    async def _lease(self, request: leases.CreateRequest, context: Any) -> leases.Done:
        space = self._space(context)
        space.leased[request.id] = set()
        space.expiry[request.id] = request.labels["containerd.io/gc.expire"]
        return leases.Done()

    async def _release(self, request: leases.DeleteRequest, context: Any) -> leases.Done:
        del self._space(context).leased[request.id]
        return leases.Done()

    async def _version(self, _: cri.VersionRequest, context: Any) -> cri.VersionResponse:
        return cri.VersionResponse(runtime_name="containerd")

    async def _status(self, request: cri.ImageStatusRequest, context: Any) -> cri.ImageStatusResponse:
        image = self.spaces["k8s.io"].images.get(request.image.image)
        return cri.ImageStatusResponse(image=cri.Image(id=self.ids[image.target.digest]) if image else None)

    def _space(self, context: Any) -> Space:
        return self.spaces[dict(context.invocation_metadata())["containerd-namespace"]]


@asynccontextmanager
async def serving(fake: FakeContainerd, folder: Path) -> AsyncIterator[str]:
    """Serve it; the path of its socket."""
    path = str(folder / "containerd.sock")
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    server.add_generic_rpc_handlers(grpcio_handlers(fake.services()))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    try:
        yield path
    finally:
        await server.stop(None)


@asynccontextmanager
async def connected(path: str) -> AsyncIterator[Channel]:
    """A channel to a socket."""
    channel = Channel(unix_dial(path), LIMITS)
    try:
        yield channel
    finally:
        channel.close()
