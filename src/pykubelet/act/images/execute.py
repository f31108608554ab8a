"""`ImagePuller.ensure`: from "this container needs this image" to a usable image or a reason to wait.

Owns: the sequence (name, presence, access, back-off, credentials, pull), the back-off of each pod and image, and the
Events. The decisions are in `decide.py`, running pulls in `pulls.py`. Reads the runtime's image service; the pods room
calls it, once per container start, and again at the `retry_at` of an error.

On the hot path (image present, default policies) it costs one ImageStatus call and nothing else.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from pykubelet.act.images import decide
from pykubelet.act.images.credentials import PullCredentials
from pykubelet.act.images.decide import Access, Failure
from pykubelet.act.images.keyring import Credential, CredentialError
from pykubelet.act.images.metrics import ACCESS_CHECKS, count_ensured
from pykubelet.act.images.model import (
    ImageError,
    ImageReady,
    ImageRequest,
    ImageSettings,
    PullPolicy,
    Pulls,
    WaitingPod,
)
from pykubelet.act.images.names import InvalidImage, parse_image, with_default_tag
from pykubelet.act.images.pulls import ImageService, PullDone, PullFailed, PullOrder, PullRunner
from pykubelet.act.images.record_store import RecordStore
from pykubelet.base.kit.backoff import Backoff, BackoffPolicy
from pykubelet.base.kit.cells import CellWriter
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.mailbox import Post
from pykubelet.base.kit.values import Value
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.errors import CriError


class _Asked(Value):
    """When a request came: its number, and the wall time."""

    arrival: int
    at: float


class _BackingOff(Value):
    entry: Backoff
    last: Failure


class ImagePuller:
    """Use as `async with`; leaving it cancels all pulls. `records` must be loaded."""

    def __init__(
        self,
        images: ImageService,
        credentials: PullCredentials,
        records: RecordStore,
        clock: Clock,
        settings: ImageSettings,
        pulls: CellWriter[Pulls],
        recorder: Post[KubeEvent],
    ) -> None:
        self._images = images
        self._credentials = credentials
        self._records = records
        self._clock = clock
        self._settings = settings
        self._recorder = recorder
        self._runner = PullRunner(images, records, clock, settings, pulls)
        self._policy = BackoffPolicy(settings.back_off_initial_s, settings.back_off_max_s)
        self._back_offs: dict[str, _BackingOff] = {}
        self._arrivals = itertools.count(1)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Cancel all pulls and running plugins."""
        await self._runner.stop()
        await self._credentials.stop()

    def forget(self, uid: PodUID) -> None:
        """The pod is finished: its back-offs end."""
        for key in [key for key in self._back_offs if key.startswith(f"{uid}_")]:
            del self._back_offs[key]

    async def ensure(self, request: ImageRequest) -> ImageReady | ImageError:
        """Make the image usable for this container. Never raises for what can go wrong with images.

        May take as long as the registry takes; cancelling it gives up this pod's wait, and with the last waiting pod
        the pull.
        """
        outcome = await self._ensure(request, _Asked(next(self._arrivals), self._clock.wall()))
        if isinstance(outcome, ImageError):
            self._recorder.post(decide.tell_error(request, outcome.reason))
        else:
            self._records.hand_out(outcome.image_id)
        return outcome

    async def _ensure(self, request: ImageRequest, asked: _Asked) -> ImageReady | ImageError:
        try:
            spec_image = with_default_tag(request.image)
        except InvalidImage as error:
            return self._told(*decide.tell_invalid(request, str(error)), None)
        policy = decide.pull_policy(request.policy)
        spec = _spec(request, spec_image)
        status: pb.Image | None = None
        if policy is not PullPolicy.ALWAYS:
            try:
                status = await self._images.image_status(spec)
            except CriError as error:
                count_ensured(policy, is_present=None, must_pull=None)
                told = decide.tell_inspect_error(request, spec_image, str(error))
                return self._told(*told, self._in(decide.INSPECT_RETRY_S))
        return await self._use_or_pull(request, asked, policy, spec, status)

    async def _use_or_pull(
        self, request: ImageRequest, asked: _Asked, policy: PullPolicy, spec: pb.ImageSpec, status: pb.Image | None
    ) -> ImageReady | ImageError:
        access = Access.MUST_PULL
        if status is not None:
            access = self._judge(spec.image, status.id)
            if access is Access.GRANTED:
                count_ensured(policy, is_present=True, must_pull=False)
                return self._present(request, spec.image, status)
        elif policy is PullPolicy.NEVER:
            count_ensured(policy, is_present=False, must_pull=None)
            return self._told(*decide.tell_never_pull(request), self._in(decide.NEVER_PULL_RETRY_S))
        elif (held := self._held_back(request, spec.image)) is not None:
            return held
        try:
            credentials = await self._credentials.lookup(request, parse_image(spec.image).repository)
        except CredentialError as error:
            return self._failed(request, spec.image, str(error), self._policy)
        if status is not None:
            if access is Access.ASK_CREDENTIALS and await self._opens(spec.image, status.id, credentials):
                count_ensured(policy, is_present=True, must_pull=False)
                return self._present(request, spec.image, status)
            if policy is PullPolicy.NEVER:
                return self._told(*decide.tell_never_pull(request), self._in(decide.NEVER_PULL_RETRY_S))
            if (held := self._held_back(request, spec.image)) is not None:
                return held
        is_present = None if policy is PullPolicy.ALWAYS else status is not None
        count_ensured(policy, is_present=is_present, must_pull=True)
        return await self._pull(request, asked, spec, credentials)

    def _judge(self, spec_image: str, image_ref: str) -> Access:
        begun = self._records.is_pulling(spec_image) or self._records.is_unreadable(image_ref)
        record = self._records.record(image_ref)
        access = decide.judge_access(self._settings, spec_image, record, begun)
        if self._settings.ensure_secret_pulled and access is not Access.ASK_CREDENTIALS:
            ACCESS_CHECKS.inc(decide.check_result(self._settings, spec_image, access, record is not None or begun))
        return access

    async def _opens(self, spec_image: str, image_ref: str, credentials: tuple[Credential, ...]) -> bool:
        """Whether the pod's credentials are some that the image was pulled with."""
        record = self._records.record(image_ref)
        known = decide.recorded_access(record, spec_image)
        granted = decide.match_credentials(known, credentials) if known is not None else None
        if granted is not None and granted.learn is not None:
            await self._records.learn(spec_image, image_ref, granted.learn)
        ACCESS_CHECKS.inc("credentialRecordFound" if granted is not None else "mustAuthenticate")
        return granted is not None

    async def _pull(
        self, request: ImageRequest, asked: _Asked, spec: pb.ImageSpec, credentials: tuple[Credential, ...]
    ) -> ImageReady | ImageError:
        begun = self._clock.monotonic()
        self._recorder.post(decide.tell_pulling(request))
        auths = tuple(credential.auth for credential in credentials)
        order = PullOrder(spec, auths, asked.arrival, request.sandbox_config)
        waiting = WaitingPod(request.pod, request.container, asked.at)
        result = await self._runner.run(order, waiting, credentials)
        if isinstance(result, PullFailed):
            self._recorder.post(decide.tell_pull_failed(request, result.error))
            policy = decide.RUNTIME_AWAY if result.runtime_away else self._policy
            return self._failed(request, spec.image, result.error, policy)
        return self._pulled(request, spec.image, result, self._clock.monotonic() - begun)

    def _pulled(
        self, request: ImageRequest, spec_image: str, result: PullDone, waited_s: float
    ) -> ImageReady | ImageError:
        size = result.image.size if result.image is not None else 0
        self._recorder.post(decide.tell_pulled(request, min(result.pull_s, waited_s), waited_s, size))
        self._forget_expired()
        if result.image is None:
            error = "the image was pulled, but the runtime cannot find it"
            told = decide.tell_inspect_error(request, spec_image, error)
            return self._told(*told, self._in(decide.INSPECT_RETRY_S))
        return _ready(result.image_ref, spec_image, result.image)

    def _present(self, request: ImageRequest, spec_image: str, status: pb.Image) -> ImageReady:
        self._recorder.post(decide.tell_present(request, self._settings))
        return _ready(status.id, spec_image, status)

    # Back-off

    def _held_back(self, request: ImageRequest, spec_image: str) -> ImageError | None:
        held = self._back_offs.get(decide.back_off_key(request, spec_image))
        if held is None:
            return None
        remaining_s = held.entry.updated_at + held.entry.delay_s - self._clock.monotonic()
        if remaining_s <= 0:
            return None
        self._recorder.post(decide.tell_back_off(request))
        failure = decide.backing_off(request.image, held.last)
        return ImageError(failure.reason, failure.message, self._in(remaining_s))

    def _failed(self, request: ImageRequest, spec_image: str, error: str, policy: BackoffPolicy) -> ImageError:
        failure = decide.pull_failure(spec_image, error)
        key = decide.back_off_key(request, spec_image)
        held = self._back_offs.get(key)
        self._forget_expired()
        now = self._clock.monotonic()
        entry = policy.raised(held.entry if held is not None else None, now, now)
        self._back_offs[key] = _BackingOff(entry, failure)
        return ImageError(failure.reason, failure.message, self._in(min(decide.RECHECK_S, entry.delay_s)))

    def _forget_expired(self) -> None:
        now = self._clock.monotonic()
        self._back_offs = {
            k: held for k, held in self._back_offs.items() if not self._policy.is_expired(held.entry, now)
        }

    def _told(self, failure: Failure, event: KubeEvent, retry_at: float | None) -> ImageError:
        self._recorder.post(event)
        return ImageError(failure.reason, failure.message, retry_at)

    def _in(self, seconds: float) -> float:
        return self._clock.monotonic() + seconds


def _spec(request: ImageRequest, spec_image: str) -> pb.ImageSpec:
    annotations: Mapping[str, str] = request.annotations
    return pb.ImageSpec(image=spec_image, annotations=annotations, runtime_handler=request.runtime_handler)


def _ready(image_ref: str, spec_image: str, status: pb.Image) -> ImageReady:
    uid = status.uid.value if status.HasField("uid") else None
    return ImageReady(image_ref, spec_image, status.id, status.size, uid, "" if uid is not None else status.username)
