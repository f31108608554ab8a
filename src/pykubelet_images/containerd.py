"""A client of one namespace of a containerd: names of images, blobs, and leases. Every failure is an `RpcError`.

Source: containerd's `api/services` (content, images, leases), and `metadata/content.go` on blobs that several namespaces share.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

from pykubelet.net.grpc.call import Message, R, decoded
from pykubelet.net.grpc.channel import Channel
from pykubelet.net.grpc.limits import Http2Limits
from pykubelet.net.grpc.status import Code, RpcError
from pykubelet_images.containerd_content_pb2 import (
    COMMIT,
    AbortRequest,
    Done,
    InfoRequest,
    InfoResponse,
    ReadContentRequest,
    ReadContentResponse,
    UpdateRequest,
    WriteContentRequest,
    WriteContentResponse,
)
from pykubelet_images.containerd_images_pb2 import (
    CreateImageRequest,
    Descriptor,
    GetImageRequest,
    GetImageResponse,
    Image,
    ImageChanged,
    ListImagesRequest,
    ListImagesResponse,
    UpdateImageRequest,
)
from pykubelet_images.containerd_leases_pb2 import CreateRequest, DeleteRequest
from pykubelet_images.containerd_leases_pb2 import Done as LeaseChanged

#: containerd is trusted, and sends 16 MiB at most.
LIMITS = Http2Limits(header_list=256 << 10, message=16 << 20, stream_window=17 << 20, connection_window=64 << 20)
#: Seconds for one call.
CALL_S = 30.0
_CONTENT = "/containerd.services.content.v1.Content"
_IMAGES = "/containerd.services.images.v1.Images"
_LEASES = "/containerd.services.leases.v1.Leases"
#: containerd's part for the CRI sets it on names that it has taken in.
_MANAGED = "io.cri-containerd.image"
_EXPIRES = "containerd.io/gc.expire"


class Containerd:
    """One namespace. `lease`: keeps what calls make, or find there, from garbage collection."""

    def __init__(self, channel: Channel, namespace: str, lease: str = "") -> None:
        self.namespace = namespace
        self._channel = channel
        self._lease = lease
        self._metadata: tuple[tuple[str, str], ...] = (("containerd-namespace", namespace),)
        if lease:
            self._metadata += (("containerd-lease", lease),)

    # names of images

    async def find_image(self, name: str) -> Image | None:
        """The image of this name; None if there is none."""
        try:
            return (await self._call(f"{_IMAGES}/Get", GetImageRequest(name=name), GetImageResponse)).image
        except RpcError as error:
            if error.code is Code.NOT_FOUND:
                return None
            raise

    async def image_names(self) -> list[str]:
        """The names of all images, sorted."""
        listed = await self._call(f"{_IMAGES}/List", ListImagesRequest(), ListImagesResponse)
        return sorted(image.name for image in listed.images)

    async def name_image(self, name: str, target: Descriptor) -> str:
        """Give an image this name. Returns the digest of the image that had it before; empty if none had it."""
        image = Image(name=name, target=target)
        try:
            await self._call(f"{_IMAGES}/Create", CreateImageRequest(image=image), ImageChanged)
            return ""
        except RpcError as error:
            if error.code is not Code.ALREADY_EXISTS:
                raise
        found = (await self._call(f"{_IMAGES}/Get", GetImageRequest(name=name), GetImageResponse)).image
        if found.target.digest != target.digest:
            # without its label, the CRI takes the image in as a new one, and keeps the old one under its ID
            image.labels.update({key: value for key, value in found.labels.items() if key != _MANAGED})
            request = UpdateImageRequest(image=image)
            request.update_mask.paths.extend(("target", "labels"))
            await self._call(f"{_IMAGES}/Update", request, ImageChanged)
        return found.target.digest

    # blobs

    async def blob_size(self, digest: str) -> int | None:
        """The bytes of a blob; None if this namespace does not have it."""
        try:
            return (await self._call(f"{_CONTENT}/Info", InfoRequest(digest=digest), InfoResponse)).info.size
        except RpcError as error:
            if error.code is Code.NOT_FOUND:
                return None
            raise

    async def read_blob(self, digest: str, size: int) -> bytes:
        """The first `size` bytes of a blob."""
        data = bytearray()
        request = ReadContentRequest(digest=digest, size=size)
        async for answer in self._stream(f"{_CONTENT}/Read", request, ReadContentResponse):
            data += answer.data
            if len(data) > size:
                raise RpcError(Code.INTERNAL, f"more than {size} bytes of {digest} were sent")
        return bytes(data)

    async def share_blob(self, digest: str, size: int, labels: Mapping[str, str]) -> None:
        """Let this namespace have a blob that another one has. No bytes are copied. Idempotent.

        Raises RpcError(OUT_OF_RANGE) if no namespace has it, or containerd does not share blobs.
        """
        # A writer of a blob that exists stands at its end at once. Without sharing, it stands at the begin, and the offset is refused.
        ref = f"{self._lease}-{digest}"
        request = WriteContentRequest(action=COMMIT, ref=ref, total=size, expected=digest, offset=size, labels=labels)
        try:
            async for _ in self._stream(f"{_CONTENT}/Write", request, WriteContentResponse):
                pass
        except RpcError as error:
            if error.code is not Code.ALREADY_EXISTS:
                with contextlib.suppress(RpcError):
                    await self._call(f"{_CONTENT}/Abort", AbortRequest(ref=ref), Done)
                raise
            await self._label_blob(digest, labels)

    async def _label_blob(self, digest: str, labels: Mapping[str, str]) -> None:
        if not labels:
            return
        request = UpdateRequest()
        request.info.digest = digest
        request.info.labels.update(labels)
        request.update_mask.paths.extend(f"labels.{key}" for key in labels)
        await self._call(f"{_CONTENT}/Update", request, Done)

    # leases

    async def take_lease(self, id: str, until: str) -> Containerd:
        """Make a lease that ends by itself at a time in RFC 3339. Returns a client that makes its calls with the lease."""
        await self._call(f"{_LEASES}/Create", CreateRequest(id=id, labels={_EXPIRES: until}), LeaseChanged)
        return Containerd(self._channel, self.namespace, id)

    async def end_lease(self) -> None:
        """End the lease of this client."""
        await self._call(f"{_LEASES}/Delete", DeleteRequest(id=self._lease), LeaseChanged)

    async def _call(self, method: str, request: Message, answer: type[R]) -> R:
        path = self._channel.method(method, self._metadata)
        return decoded(answer, await self._channel.unary(path, request.SerializeToString(), CALL_S))

    async def _stream(self, method: str, request: Message, answer: type[R]) -> AsyncIterator[R]:
        path = self._channel.method(method, self._metadata)
        try:
            async with asyncio.timeout(CALL_S):
                stream = await self._channel.stream(path, request.SerializeToString())
                try:
                    while (data := await stream.read()) is not None:
                        yield decoded(answer, data)
                finally:
                    stream.close()
        except TimeoutError as error:
            raise RpcError(Code.DEADLINE_EXCEEDED, f"no answer within {CALL_S:g} s") from error
