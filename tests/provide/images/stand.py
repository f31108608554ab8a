"""A runtime's image service on strings, and the small things that the tests of images share."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence

from pykubelet.base.kit.cells import Sink, make_lazy_cell
from pykubelet.base.kit.clock import Clock
from pykubelet.base.model.diagnostics import Diagnostics
from pykubelet.base.model.ids import PodRef, PodUID
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.errors import CriCode, CriError
from pykubelet.edges.plugins.pull_credentials import DockerConfigFile
from pykubelet.provide.images.credentials import PullCredentials
from pykubelet.provide.images.execute import ImagePuller
from pykubelet.provide.images.keyring import PodPullSecrets, PullSecret
from pykubelet.provide.images.model import ImageRequest, ImageSettings
from pykubelet.provide.images.providers import CredentialProviders
from pykubelet.provide.images.record_store import RecordStore


class LoopClock:
    """The event loop's time, for tests in virtual time."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return 1_700_000_000.0 + asyncio.get_running_loop().time()


def pod(name: str) -> PodRef:
    return PodRef("default", name, PodUID(f"uid-{name}"))


def request(
    image: str, pod_name: str = "web", policy: str = "IfNotPresent", secrets: tuple[PullSecret, ...] = ()
) -> ImageRequest:
    known = PodPullSecrets(secrets)
    return ImageRequest(pod(pod_name), "main", "spec.containers{main}", image, policy, secrets=known)


class FakeRuntime:
    """Images by name, ID or digest. A pull takes `seconds` and then acts as `script` has it for the image.

    `passwords`: the only ones that open an image. `pulls`: (image, user) of each call, in order. `answers_digest`: PullImage
    answers with a digest, as CRI-O does up to 1.35, and not with the ID.
    """

    def __init__(self, present: Sequence[str] = (), answers_digest: bool = False) -> None:
        self.images = {name: image(name) for name in present}
        self.answers_digest = answers_digest
        self.failures: dict[str, CriError] = {}
        self.status_failure: CriError | None = None
        self.passwords: dict[str, str] = {}
        self.seconds = 0.0
        self.pulls: list[tuple[str, str]] = []
        self.status_calls = 0
        self.pull_begun = asyncio.Event()
        self.running = 0
        self.most_running = 0
        self.cancelled: list[str] = []
        self.removed: list[str] = []
        self.containers: list[pb.Container] = []
        self.remove_failures: set[str] = set()
        self.info: dict[str, str] = {}

    async def image_status(self, image: pb.ImageSpec) -> pb.Image | None:
        self.status_calls += 1
        if self.status_failure is not None:
            raise self.status_failure
        found = (
            stored for name, stored in self.images.items() if image.image in (name, stored.id, *stored.repo_digests)
        )
        return next(found, None)

    async def pull_image(
        self, image_spec: pb.ImageSpec, auth: pb.AuthConfig | None, sandbox_config: pb.PodSandboxConfig | None = None
    ) -> str:
        name = image_spec.image
        self.pulls.append((name, auth.username if auth is not None else ""))
        self.pull_begun.set()
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise
        finally:
            self.running -= 1
        if name in self.failures:
            raise self.failures[name]
        wanted = self.passwords.get(name)
        if wanted is not None and (auth is None or auth.password != wanted):
            raise CriError(CriCode.UNKNOWN, f"failed to authorize {name}: 401 Unauthorized", "PullImage")
        self.images[name] = image(name)
        return self.images[name].repo_digests[0] if self.answers_digest else self.images[name].id

    async def list_images(self, image: str = "") -> Sequence[pb.Image]:
        return list(self.images.values())

    async def list_containers(self, uid: str | None = None) -> Sequence[pb.Container]:
        return self.containers

    async def remove_image(self, image: pb.ImageSpec) -> None:
        if image.image in self.remove_failures:
            raise CriError(CriCode.UNKNOWN, f"cannot remove {image.image}", "RemoveImage")
        self.images = {name: stored for name, stored in self.images.items() if stored.id != image.image}
        self.removed.append(image.image)

    async def image_fs_info(self) -> pb.ImageFsInfoResponse:
        usage = pb.FilesystemUsage(fs_id=pb.FilesystemIdentifier(mountpoint="/images"))
        return pb.ImageFsInfoResponse(image_filesystems=[usage])

    async def status(self, verbose: bool = False) -> pb.StatusResponse:
        return pb.StatusResponse(info=self.info if verbose else {})


def digest(name: str) -> str:
    """The digest reference of an image with a tag."""
    return f"{name.rpartition(':')[0]}@sha256:{hashlib.sha256(name.encode()).hexdigest()}"


def image(name: str, size: int = 1000, pinned: bool = False, uid: int | None = None, username: str = "") -> pb.Image:
    found = pb.Image(
        id=f"id-of-{name}", repo_tags=[name], repo_digests=[digest(name)], size=size, pinned=pinned, username=username
    )
    if uid is not None:
        found.uid.value = uid
    return found


class Stand:
    """An `ImagePuller` with everything it needs around it."""

    def __init__(
        self,
        runtime: FakeRuntime,
        clock: Clock,
        settings: ImageSettings,
        node_files: tuple[DockerConfigFile, ...] = (),
        providers: CredentialProviders | None = None,
    ) -> None:
        self.runtime = runtime
        self.records = RecordStore(settings.records_dir, clock)
        if settings.ensure_secret_pulled:
            self.records.load()
        self.sink: Sink[KubeEvent] = Sink()
        writer = make_lazy_cell("diagnostics", Diagnostics())[1]
        credentials = PullCredentials(lambda: node_files, providers)
        self.puller = ImagePuller(runtime, credentials, self.records, clock, settings, writer, self.sink)

    def events(self) -> list[str]:
        """Events since the last call, as `type reason message`."""
        lines = [f"{event.type} {event.reason} {event.message}" for event in self.sink.events]
        self.sink.events.clear()
        return lines
