"""Adopts an image of another namespace of the same containerd, such as Docker's: its name and blobs appear in the namespace of the CRI.

Nothing is copied. What an interrupted adoption has left is removed by containerd's garbage collection when its lease has expired, and
the adoption can be repeated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

from pykubelet.base.kit.text import nearest
from pykubelet.base.kit.values import Value
from pykubelet.net.grpc.status import Code, RpcError
from pykubelet.provide.images.names import parse_image
from pykubelet_images import contents
from pykubelet_images.containerd import Containerd
from pykubelet_images.contents import Blob, Descriptor, UnusableImage

_SHOWN_NAMES, _SHOWN_BLOBS = 5, 3


class AdoptionError(Exception):
    """An image cannot be adopted; the message gives the reason."""


class AdoptionLease(Value):
    """A lease that holds the blobs until the image has its name. `until`: in RFC 3339."""

    id: str
    until: str


class Adoption(Value):
    """An image that was adopted. `image_id`: as the CRI knows it. `before`: the digest that the name had; empty if it was new."""

    name: str
    digest: str
    image_id: str
    before: str


class _Needed(Value):
    """The blobs of an image on one machine; what keeps others comes after them."""

    image_id: str
    blobs: tuple[Blob, ...]


async def adopt(
    source: Containerd, target: Containerd, name: str, platforms: Sequence[str], lease: AdoptionLease
) -> Adoption:
    """Adopt the image of a complete name. Idempotent. Raises AdoptionError and RpcError."""
    record = await source.find_image(name)
    if record is None:
        raise AdoptionError(_unknown_name(name, source.namespace, await source.image_names()))
    root = Descriptor(record.target.digest, record.target.size, record.target.media_type)
    try:
        needed = await _needed_blobs(source, root, platforms)
    except UnusableImage as error:
        raise AdoptionError(f"{name} cannot be used: {error}") from error
    await _check_complete(source, name, needed.blobs)
    leased = await target.take_lease(lease.id, lease.until)
    try:
        for blob in needed.blobs:
            await _share(leased, source.namespace, blob)
        before = await leased.name_image(name, record.target)
    finally:
        with contextlib.suppress(RpcError):  # it expires
            await leased.end_lease()
    return Adoption(name, root.digest, needed.image_id, before)


async def _needed_blobs(source: Containerd, root: Descriptor, platforms: Sequence[str]) -> _Needed:
    """Raises UnusableImage, AdoptionError and RpcError."""
    entry, indexes = contents.check_descriptor(root), list[Blob]()
    while entry.is_index:
        if len(indexes) >= contents.MAX_DEPTH:
            raise UnusableImage(f"it has more than {contents.MAX_DEPTH} indexes in each other")
        entries = contents.parse_index(entry.digest, await _read(source, entry, "index"))
        indexes.append(contents.blob_of_index(entry, entries))
        entry = contents.choose(entries, platforms)
    if entry.media_type not in contents.MANIFEST_TYPES:
        raise UnusableImage(f"{entry.digest} is no manifest of an image, but {entry.media_type!r:.100}")
    manifest = contents.parse_manifest(entry.digest, await _read(source, entry, "manifest"))
    if indexes and entry.platform is None:
        config = manifest.config
        platform = contents.parse_platform(config.digest, await _read(source, config, "configuration"))
        if platform not in platforms:
            raise UnusableImage(contents.wrong_platform(platforms, (platform,)))
    return _Needed(manifest.config.digest, (*contents.blobs_of_manifest(entry, manifest), *reversed(indexes)))


async def _read(source: Containerd, descriptor: Descriptor, role: str) -> bytes:
    contents.check_document(descriptor)
    try:
        data = await source.read_blob(descriptor.digest, descriptor.size)
    except RpcError as error:
        if error.code is Code.NOT_FOUND:
            raise UnusableImage(f"its {role} {descriptor.digest} is missing in namespace {source.namespace}") from error
        raise
    if len(data) != descriptor.size:
        raise UnusableImage(f"{descriptor.digest} has {len(data)} bytes, and not {descriptor.size}")
    return data


async def _check_complete(source: Containerd, name: str, blobs: Iterable[Blob]) -> None:
    """Raises AdoptionError if a blob is missing or has another size than the image states."""
    problems = []
    for blob in blobs:
        size = await source.blob_size(blob.digest)
        if size is None:
            problems.append(f"its {blob.role} {blob.digest} is missing in namespace {source.namespace}")
        elif size != blob.size:
            problems.append(f"its {blob.role} {blob.digest} has {size} bytes, and not {blob.size}")
    if problems:
        more = f"; and {len(problems) - _SHOWN_BLOBS} more" if len(problems) > _SHOWN_BLOBS else ""
        raise AdoptionError(f"{name} cannot be used: {'; '.join(problems[:_SHOWN_BLOBS])}{more}")


async def _share(leased: Containerd, source: str, blob: Blob) -> None:
    try:
        await leased.share_blob(blob.digest, blob.size, blob.labels)
    except RpcError as error:
        if error.code is not Code.OUT_OF_RANGE:
            raise
        raise AdoptionError(
            f"containerd does not share the {blob.role} {blob.digest} of namespace {source}: its content_sharing_policy is"
            " isolated, or the image was just removed"
        ) from error


def _unknown_name(name: str, namespace: str, names: Sequence[str]) -> str:
    """The problem of a name that no image has, with names that may be meant."""
    if not names:
        return (
            f"containerd's namespace {namespace} has no images. Docker has them there from version 29 on, and with the feature"
            " containerd-snapshotter"
        )
    repository = parse_image(name).repository
    near = [known for known in names if known.startswith((f"{repository}:", f"{repository}@"))]
    if not near and (similar := nearest(name, names)) is not None:
        near = [similar]
    meant = f"; there is {', '.join(near[:_SHOWN_NAMES])}" if near else ""
    return f"no image {name} in containerd's namespace {namespace}{meant}"
