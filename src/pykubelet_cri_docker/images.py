"""Images: Docker's, under the names of the CRI.

Owns: ListImages, ImageStatus, PullImage, RemoveImage and ImageFsInfo. Raises RpcError and EngineError.
"""

from __future__ import annotations

import base64
import builtins
import time

import msgspec

from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet_cri_docker import views
from pykubelet_cri_docker.engine import messages as docker
from pykubelet_cri_docker.engine.client import Engine
from pykubelet_cri_docker.engine.transport import EngineError
from pykubelet_cri_docker.errors import invalid


class Images:
    """The images of Docker Engine. `pause_image`: the one that must not be removed."""

    def __init__(self, engine: Engine, pause_image: str) -> None:
        self._engine = engine
        self._pause_image = pause_image

    async def list(self, wanted: str) -> list[pb.Image]:
        """All images, or the one of a name."""
        if wanted:
            found = await self._find(wanted)
            return [] if found is None else [views.show_image_status(found, pinned=self._is_pinned(found.repo_tags))]
        return [
            views.show_image(image, pinned=self._is_pinned(image.repo_tags))
            for image in await self._engine.list_images()
        ]

    async def status(self, name: str) -> pb.Image | None:
        """An image by its name or ID; None if it is not there."""
        found = await self._find(_required(name))
        return None if found is None else views.show_image_status(found, pinned=self._is_pinned(found.repo_tags))

    async def pull(self, name: str, auth: pb.AuthConfig) -> str:
        """Pull an image; returns its ID."""
        try:
            await self._engine.pull(with_tag(_required(name)), registry_auth(auth))
        except EngineError as error:
            raise EngineError(error.status, f'failed to pull image "{name}": {error.message}') from error
        return (await self._engine.inspect_image(name)).id

    async def remove(self, name: str) -> None:
        """Remove an image with all its names. Idempotent, also for calls at the same time."""
        found = await self._find(_required(name))
        if found is None:
            return
        for tag in (*(found.repo_tags or ()), *(found.repo_digests or ()), found.id):
            try:
                await self._engine.remove_image(tag)
            except EngineError as error:
                # Docker has no error of its own for an image that another call removes at the same time
                if not error.is_not_found and await self._find(found.id) is not None:
                    raise

    async def file_system(self) -> pb.FilesystemUsage:
        """The file system of images and containers, and how much of it images use."""
        info = await self._engine.info()
        usage = pb.FilesystemUsage(timestamp=time.time_ns())
        usage.fs_id.mountpoint = info.docker_root_dir
        usage.used_bytes.value = await self._engine.images_size()
        return usage

    def _is_pinned(self, tags: builtins.list[str] | None) -> bool:
        return self._pause_image in (tags or ())

    async def _find(self, name: str) -> docker.DockerImage | None:
        try:
            return await self._engine.inspect_image(name)
        except EngineError as error:
            if error.is_not_found:
                return None
            raise


def registry_auth(auth: pb.AuthConfig) -> str:
    """Credentials as Docker takes them in a header; empty without any. Pure."""
    fields = {
        "username": auth.username,
        "password": auth.password,
        "auth": auth.auth,
        "serveraddress": auth.server_address,
        "identitytoken": auth.identity_token,
        "registrytoken": auth.registry_token,
    }
    given = {name: value for name, value in fields.items() if value}
    return base64.urlsafe_b64encode(msgspec.json.encode(given)).decode() if given else ""


def with_tag(name: str) -> str:
    """The name of an image with its tag or digest: `latest` if it has none, for which Docker would pull all tags. Pure."""
    last = name.rpartition("/")[2]
    return name if ":" in last or "@" in last else f"{name}:latest"


def _required(name: str) -> str:
    if not name:
        raise invalid("image.image", "is empty")
    return name
