"""What an image consists of: indexes, the manifest of a platform, configuration and layers. Pure.

Everyone can make an image, so its documents are bounded in size, length and depth. Sources: OCI image specification (index,
manifest, descriptor); containerd's `images.Manifest`, as containerd later chooses the manifest of the machine by the same rules, and
`images.ChildGCLabels`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from pykubelet.base.kit.text import shorten
from pykubelet.base.kit.values import Value

T = TypeVar("T")
#: Bytes of an index, a manifest or a configuration that is read.
MAX_DOCUMENT_BYTES = 4 << 20
#: Entries of an index, and layers of a manifest.
MAX_ENTRIES = 1000
#: Indexes in indexes.
MAX_DEPTH = 4
#: Bytes of a blob; containerd counts with 63 bits.
MAX_BLOB_BYTES = (1 << 63) - 1

INDEX_TYPES = frozenset(
    ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
)
MANIFEST_TYPES = frozenset(
    ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
)
#: The prefix of labels with which a blob keeps others from garbage collection.
GC_LABEL = "containerd.io/gc.ref.content."
_DIGEST = re.compile(r"sha256:[a-f0-9]{64}|sha384:[a-f0-9]{96}|sha512:[a-f0-9]{128}")
_SHOWN = 100
_ARCHITECTURES = {"x86_64": "amd64", "x86-64": "amd64", "aarch64": "arm64", "armhf": "arm", "armel": "arm"}
#: Variants that add nothing to the architecture's name, or that are meant without one.
_VARIANTS = {("amd64", "v1"): "", ("arm64", "v8"): "", ("arm64", "8"): "", ("arm", ""): "v7"}
_ARM = ("v8", "v7", "v6", "v5")


class UnusableImage(ValueError):
    """The image cannot be used; the message gives the reason."""


class PlatformSpec(Value):
    """The platform in a descriptor or a configuration."""

    os: str = ""
    architecture: str = ""
    variant: str = ""

    @property
    def name(self) -> str:
        """Such as `linux/amd64` or `linux/arm/v7`."""
        lower = self.architecture.lower()
        architecture, variant = _ARCHITECTURES.get(lower, lower), self.variant.lower()
        if architecture == "arm" and variant.isdecimal():
            variant = f"v{variant}"
        parts = self.os.lower(), architecture, _VARIANTS.get((architecture, variant), variant)
        return "/".join(part for part in parts if part)


class Descriptor(Value, rename="camel"):
    """What refers to a blob. `size`: bytes."""

    digest: str
    size: int
    media_type: str = ""
    platform: PlatformSpec | None = None

    @property
    def is_index(self) -> bool:
        """Whether the blob is a list of manifests."""
        return self.media_type in INDEX_TYPES


class Manifest(Value):
    """A manifest of one platform. `layers`: from the lowest to the highest."""

    config: Descriptor
    layers: tuple[Descriptor, ...] = ()


class Blob(Value):
    """A blob that an image needs. `role`: what it is in the image. `labels`: what it keeps from garbage collection."""

    role: str
    digest: str
    size: int
    labels: Mapping[str, str] = {}


class _Index(Value):
    manifests: tuple[Descriptor, ...] = ()


def machine_platforms(architecture: str, machine: str) -> tuple[str, ...]:
    """The platforms that a machine runs, the best first. `architecture`: as Go spells it. `machine`: as `uname -m` prints it."""
    if architecture == "amd64":
        return "linux/amd64", "linux/386"
    if architecture == "arm64":
        return "linux/arm64", *(f"linux/arm/{variant}" for variant in _ARM)
    if architecture == "arm":
        own = "v6" if machine.startswith("armv6") else "v7"
        return tuple(f"linux/arm/{variant}" for variant in _ARM[_ARM.index(own) :])
    return (f"linux/{architecture}",)


def check_descriptor(descriptor: Descriptor) -> Descriptor:
    """The descriptor, if containerd can have its blob. Raises UnusableImage."""
    if not _DIGEST.fullmatch(descriptor.digest):
        raise UnusableImage(f"it refers to {shorten(descriptor.digest, _SHOWN)!r}, which is no digest")
    if not 0 <= descriptor.size <= MAX_BLOB_BYTES:
        raise UnusableImage(f"the size of {descriptor.digest} is given as {descriptor.size}")
    return descriptor


def check_document(descriptor: Descriptor) -> None:
    """Raises UnusableImage for a document that is empty, or too large to be read."""
    if not descriptor.size:
        raise UnusableImage(f"{descriptor.digest} is empty")
    if descriptor.size > MAX_DOCUMENT_BYTES:
        raise UnusableImage(f"{descriptor.digest} has {descriptor.size} bytes; {MAX_DOCUMENT_BYTES} are the most")


def parse_index(digest: str, data: bytes) -> tuple[Descriptor, ...]:
    """The entries of an index. Raises UnusableImage."""
    return _bounded(digest, _decoded(digest, data, _Index).manifests)


def parse_manifest(digest: str, data: bytes) -> Manifest:
    """A manifest. Raises UnusableImage."""
    manifest = _decoded(digest, data, Manifest)
    check_descriptor(manifest.config)
    _bounded(digest, manifest.layers)
    return manifest


def parse_platform(digest: str, data: bytes) -> str:
    """The platform that a configuration is for. Raises UnusableImage."""
    return _decoded(digest, data, PlatformSpec).name


def choose(entries: Sequence[Descriptor], platforms: Sequence[str]) -> Descriptor:
    """The entry of an index that containerd uses on a machine: the best platform, else the first that has none. Raises UnusableImage."""
    ranks = {name: rank for rank, name in enumerate(platforms)}
    fitting = [entry for entry in entries if entry.platform is None or entry.platform.name in ranks]
    if not fitting:
        raise UnusableImage(wrong_platform(platforms, (entry.platform.name for entry in entries if entry.platform)))
    return min(fitting, key=lambda entry: ranks[entry.platform.name] if entry.platform else len(ranks))


def wrong_platform(platforms: Sequence[str], found: Iterable[str]) -> str:
    """The problem of an image that is for other platforms."""
    names = ", ".join(sorted({name for name in found if "unknown" not in name})) or "no platform"
    return f"it is for {shorten(names, _SHOWN)}, and this machine is {platforms[0]}"


def blob_of_index(descriptor: Descriptor, entries: Sequence[Descriptor]) -> Blob:
    """An index. It keeps all its manifests, also those that are not there, as containerd's own clients do."""
    return Blob("index", descriptor.digest, descriptor.size, _numbered("m", entries))


def blobs_of_manifest(descriptor: Descriptor, manifest: Manifest) -> tuple[Blob, ...]:
    """The manifest, its configuration and its layers, each once; what keeps others comes after them."""
    count = len(manifest.layers)
    parts = {
        layer.digest: Blob(f"layer {number} of {count}", layer.digest, layer.size)
        for number, layer in enumerate(manifest.layers, 1)
    }
    config = manifest.config
    parts[config.digest] = Blob("configuration", config.digest, config.size)
    labels = _numbered("l", manifest.layers) | {f"{GC_LABEL}config": config.digest}
    return *parts.values(), Blob("manifest", descriptor.digest, descriptor.size, labels)


def _numbered(kind: str, descriptors: Sequence[Descriptor]) -> dict[str, str]:
    return {f"{GC_LABEL}{kind}.{number}": descriptor.digest for number, descriptor in enumerate(descriptors)}


def _bounded(digest: str, descriptors: tuple[Descriptor, ...]) -> tuple[Descriptor, ...]:
    if len(descriptors) > MAX_ENTRIES:
        raise UnusableImage(f"{digest} lists {len(descriptors)} blobs; {MAX_ENTRIES} are the most")
    for descriptor in descriptors:
        check_descriptor(descriptor)
    return descriptors


def _decoded(digest: str, data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise UnusableImage(f"{digest} cannot be read: {shorten(str(error), _SHOWN)}") from error
