"""Images as Docker Engine 29 lays them out in containerd: an index with a manifest for each platform, and attestations."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
ATTESTATION = "application/vnd.in-toto+json"

Json = dict[str, Any]


class Layout:
    """Blobs by digest. `layers`, `config`: digests of the layers and the first configuration."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.layers: list[str] = []
        self.config = ""

    def add(self, media_type: str, content: bytes | Json, **more: Any) -> Json:
        """Add a blob; its descriptor."""
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self.blobs[digest] = data
        if media_type == LAYER:
            self.layers.append(digest)
        if media_type == CONFIG:
            self.config = self.config or digest
        return {"mediaType": media_type, "digest": digest, "size": len(data), **more}

    def add_manifest(self, config: Json, layers: list[Json], **more: Any) -> Json:
        """Add a manifest; its descriptor."""
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers}
        return self.add(MANIFEST, manifest, **more)

    def add_index(self, manifests: list[Json], **more: Any) -> Json:
        """Add an index; its descriptor."""
        return self.add(INDEX, {"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}, **more)


def built_by_docker(archive: Path) -> tuple[Layout, Json]:
    """The image of a docker-archive with one layer, as `docker build` keeps it: with an attestation, and a platform that is not here."""
    with tarfile.open(archive) as tar:
        (image,) = json.loads(_member(tar, "manifest.json"))
        return built_of(_member(tar, image["Config"]), [_member(tar, name) for name in image["Layers"]])


def built_of(configuration: bytes, tars: list[bytes]) -> tuple[Layout, Json]:
    """The same of a configuration and layers."""
    layout = Layout()
    config = layout.add(CONFIG, configuration)
    layers = [layout.add(LAYER, gzip.compress(tar, 1, mtime=0)) for tar in tars]
    architecture = json.loads(configuration)["architecture"]
    ours = layout.add_manifest(config, layers, platform={"os": "linux", "architecture": architecture})
    statement = layout.add(
        ATTESTATION, {"predicateType": "https://slsa.dev/provenance/v0.2", "subject": ours["digest"]}
    )
    attestation = layout.add_manifest(
        layout.add(CONFIG, {"architecture": "unknown", "os": "unknown"}),
        [statement],
        platform={"os": "unknown", "architecture": "unknown"},
        annotations={
            "vnd.docker.reference.type": "attestation-manifest",
            "vnd.docker.reference.digest": ours["digest"],
        },
    )
    elsewhere = layout.add_manifest(config, [], platform={"os": "linux", "architecture": "mips64le"})
    del layout.blobs[elsewhere["digest"]]
    return layout, layout.add_index([elsewhere, ours, attestation])


def write_archive(layout: Layout, images: Mapping[str, Json], out: Path) -> None:
    """Write an OCI archive with images by their complete names."""
    manifests = [{**root, "annotations": {"io.containerd.image.name": name}} for name, root in images.items()]
    with tarfile.open(out, "w") as tar:
        _put(tar, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        _put(tar, "index.json", json.dumps({"schemaVersion": 2, "manifests": manifests}).encode())
        for digest, data in layout.blobs.items():
            _put(tar, f"blobs/{digest.replace(':', '/')}", data)


def _member(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(name)
    assert file is not None
    return file.read()


def _put(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))
