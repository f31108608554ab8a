"""Provides images to containers: `ImagePuller.ensure` returns a usable image or a waiting reason.

Owns: the sequence (name, presence, access, back-off, credentials, pull), the back-off of each pod and image, the Events of
pulls and failures, and the `Diagnostics` of running pulls. `decide.py` makes the decisions, `pulls.py` runs the pulls. `act/pods`
calls `ensure` once for each container start, and again at the `retry_at` of an error.

On the hot path (image present, default policies) it costs one ImageStatus call.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Self

from pykubelet.base.kit.backoff import Backoff, BackoffPolicy
from pykubelet.base.kit.cells import LazyCellWriter, Post
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.diagnostics import Diagnostics, of_waits
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.errors import CriError
from pykubelet.provide.images import decide
from pykubelet.provide.images.credentials import PullCredentials
from pykubelet.provide.images.decide import AccessDecision, Failure
from pykubelet.provide.images.keyring import Credential, CredentialError
from pykubelet.provide.images.metrics import ACCESS_CHECKS, ENSURED
from pykubelet.provide.images.model import (
    ImageError,
    ImageReady,
    ImageRequest,
    ImageSettings,
    PullDelay,
    PullFacts,
    PullPermit,
    PullPolicy,
    PullRefusal,
    WaitingPod,
    pull_waits,
)
from pykubelet.provide.images.names import InvalidImage, parse_image, with_default_tag
from pykubelet.provide.images.pulls import ImageService, PullDone, PullFailed, PullOrder, PullRunner
from pykubelet.provide.images.record_store import RecordStore
from pykubelet.provide.images.records import ImageIdentity, identity_of

#: The pulls that extensions were asked about. Beyond that, those first asked about begin anew.
MAX_PULLS = 4096


class _Asked(Value):
    """When a request came: its sequence number and the wall time in seconds."""

    arrival: int
    at: float


class _BackingOff(Value):
    entry: Backoff
    last: Failure


class _Pulls(Value):
    """What an extension learns of the pulls of one image for one container. `delayed`: the answer until its `retry_at`."""

    since: float
    begun: int = 0
    delayed: ImageError | None = None


class ImagePuller:
    """Provides images. Use as `async with`; leaving it cancels all pulls. `records` must be loaded."""

    def __init__(
        self,
        images: ImageService,
        credentials: PullCredentials,
        records: RecordStore,
        clock: Clock,
        settings: ImageSettings,
        diagnostics: LazyCellWriter[Diagnostics],
        recorder: Post[KubeEvent],
    ) -> None:
        self._images = images
        self._credentials = credentials
        self._records = records
        self._clock = clock
        self._settings = settings
        self._recorder = recorder
        self._runner = PullRunner(images, records, clock, settings)
        diagnostics.answer_with(lambda: of_waits(pull_waits(self._runner.active())))
        self._policy = BackoffPolicy(settings.back_off_initial_s, settings.back_off_max_s)
        self._back_offs: dict[str, _BackingOff] = {}
        self._arrivals = itertools.count(1)
        #: By pod, container and image; only with an extension.
        self._pulls: dict[tuple[PodUID, str, str], _Pulls] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Cancel all pulls and running plugins."""
        await self._runner.stop()
        await self._credentials.stop()

    def forget(self, uid: PodUID) -> None:
        """Forget the back-offs and pulls of a finished pod."""
        for pulls in [pulls for pulls in self._pulls if pulls[0] == uid]:
            del self._pulls[pulls]
        for key in [key for key in self._back_offs if key.startswith(f"{uid}_")]:
            del self._back_offs[key]

    async def ensure(self, request: ImageRequest) -> ImageReady | ImageError:
        """Make the image usable for this container. Problems with the image are returned, not raised.

        May take as long as the registry takes. Cancelling the call ends this container's wait; the pull is cancelled when no
        request waits for it.
        """
        outcome = await self._ensure(request, _Asked(next(self._arrivals), self._clock.wall()))
        if isinstance(outcome, ImageError):
            if not outcome.extension:
                self._recorder.post(decide.error_event(request, outcome.reason))
        else:
            self._records.hand_out(outcome.image_id)
        return outcome

    async def _ensure(self, request: ImageRequest, asked: _Asked) -> ImageReady | ImageError:
        try:
            spec_image = with_default_tag(request.image)
        except InvalidImage as error:
            return self._image_error(*decide.invalid_name_failure(request, str(error)), None)
        policy = decide.pull_policy(request.policy)
        spec = _spec(request, spec_image)
        status: pb.Image | None = None
        if policy is not PullPolicy.ALWAYS:
            try:
                status = await self._images.image_status(spec)
            except CriError as error:
                _count(policy, is_present=None, must_pull=None)
                failure = decide.inspect_failure(request, spec_image, str(error))
                return self._image_error(*failure, self._in(decide.INSPECT_RETRY_S))
        return await self._use_or_pull(request, asked, policy, spec, status)

    async def _use_or_pull(
        self, request: ImageRequest, asked: _Asked, policy: PullPolicy, spec: pb.ImageSpec, status: pb.Image | None
    ) -> ImageReady | ImageError:
        access = AccessDecision.MUST_PULL
        if status is not None:
            access = self._judge(spec.image, identity_of(status))
            if access is AccessDecision.GRANTED:
                _count(policy, is_present=True, must_pull=False)
                return self._present(request, status)
        elif policy is PullPolicy.NEVER:
            _count(policy, is_present=False, must_pull=None)
            return self._image_error(*decide.never_pull_failure(request), self._in(decide.NEVER_PULL_RETRY_S))
        elif (backing_off := self._backing_off(request, spec.image)) is not None:
            return backing_off
        try:
            credentials = await self._credentials.lookup(request, parse_image(spec.image).repository)
        except CredentialError as error:
            return self._failed(request, spec.image, str(error), self._policy)
        if status is not None:
            if access is AccessDecision.ASK_CREDENTIALS and await self._opens(
                spec.image, identity_of(status), credentials
            ):
                _count(policy, is_present=True, must_pull=False)
                return self._present(request, status)
            if policy is PullPolicy.NEVER:
                return self._image_error(*decide.never_pull_failure(request), self._in(decide.NEVER_PULL_RETRY_S))
            if (backing_off := self._backing_off(request, spec.image)) is not None:
                return backing_off
        permit = await self._permit(request, spec, status)
        if isinstance(permit, ImageError):
            return permit
        is_present = None if policy is PullPolicy.ALWAYS else status is not None
        _count(policy, is_present=is_present, must_pull=True)
        return await self._pull(request, asked, spec, credentials, permit.priority)

    def _judge(self, spec_image: str, image: ImageIdentity) -> AccessDecision:
        begun = self._records.is_pulling(spec_image) or self._records.is_unknown(image)
        record = self._records.record(image)
        access = decide.judge_access(self._settings, spec_image, record, begun)
        if self._settings.ensure_secret_pulled and access is not AccessDecision.ASK_CREDENTIALS:
            ACCESS_CHECKS.inc(decide.check_result(self._settings, spec_image, access, record is not None or begun))
        return access

    async def _opens(self, spec_image: str, image: ImageIdentity, credentials: tuple[Credential, ...]) -> bool:
        """Whether the image was pulled with one of the pod's credentials; records newly proven access."""
        record = self._records.record(image)
        known = decide.recorded_access(record, spec_image)
        granted = decide.match_credentials(known, credentials) if known is not None else None
        if granted is not None and granted.learn is not None:
            await self._records.learn(spec_image, image, granted.learn)
        ACCESS_CHECKS.inc("credentialRecordFound" if granted is not None else "mustAuthenticate")
        return granted is not None

    async def _pull(
        self,
        request: ImageRequest,
        asked: _Asked,
        spec: pb.ImageSpec,
        credentials: tuple[Credential, ...],
        priority: int,
    ) -> ImageReady | ImageError:
        begun = self._clock.monotonic()
        self._recorder.post(decide.pulling_event(request))
        auths = tuple(credential.auth for credential in credentials)
        order = PullOrder(spec, auths, asked.arrival, request.sandbox_config, priority)
        waiting = WaitingPod(request.pod, request.container, asked.at)
        result = await self._runner.run(order, waiting, credentials)
        if isinstance(result, PullFailed):
            self._recorder.post(decide.pull_failed_event(request, result.error))
            policy = decide.RUNTIME_AWAY if result.runtime_away else self._policy
            return self._failed(request, spec.image, result.error, policy)
        return self._pulled(request, spec.image, result, self._clock.monotonic() - begun)

    def _pulled(
        self, request: ImageRequest, spec_image: str, result: PullDone, waited_s: float
    ) -> ImageReady | ImageError:
        size = result.image.size if result.image is not None else 0
        self._recorder.post(decide.pulled_event(request, min(result.pull_s, waited_s), waited_s, size))
        self._forget_expired()
        self._pulls.pop(_pulls_key(request), None)
        if result.image is None:
            error = "the image was pulled, but the runtime cannot find it"
            failure = decide.inspect_failure(request, spec_image, error)
            return self._image_error(*failure, self._in(decide.INSPECT_RETRY_S))
        return _ready(result.image_ref, result.image)

    def _present(self, request: ImageRequest, status: pb.Image) -> ImageReady:
        event = decide.present_event(request, self._settings)
        return replace(_ready(status.id, status), present=event)

    # Extensions

    async def _permit(
        self, request: ImageRequest, spec: pb.ImageSpec, status: pb.Image | None
    ) -> PullPermit | ImageError:
        """Whether an extension lets the image be pulled now, and its priority; the error if it does not."""
        ask = self._settings.ask_for_pull
        if ask is None or request.full_pod is None:
            return _PERMIT
        key = _pulls_key(request)
        pulls = self._pulls.get(key) or _Pulls(self._clock.wall())
        delayed, now = pulls.delayed, self._clock.monotonic()
        if delayed is not None and delayed.retry_at is not None and now < delayed.retry_at:
            return delayed
        try:
            is_present = status is not None or await self._images.image_status(spec) is not None
        except CriError:
            is_present = False
        verdict = ask(PullFacts(request, request.full_pod, pulls.begun + 1, is_present, pulls.since))
        if isinstance(verdict, PullRefusal):
            self._keep(key, replace(pulls, delayed=None))
            return self._image_error(
                *decide.refused_pull_failure(request, verdict), self._in(decide.NEVER_PULL_RETRY_S)
            )
        if isinstance(verdict, PullDelay):
            known = self._back_offs.get(decide.back_off_key(request, spec.image))
            failure = decide.pull_delayed(request, verdict, known.last if known is not None else None)
            error = ImageError(failure.reason, failure.message, self._in(verdict.again_s), verdict.extension)
            self._keep(key, replace(pulls, delayed=error))
            return error
        self._keep(key, replace(pulls, begun=pulls.begun + 1, delayed=None))
        return verdict if verdict is not None else _PERMIT

    def _keep(self, key: tuple[PodUID, str, str], pulls: _Pulls) -> None:
        self._pulls[key] = pulls
        if len(self._pulls) > MAX_PULLS:
            del self._pulls[next(iter(self._pulls))]

    # Back-off

    def _backing_off(self, request: ImageRequest, spec_image: str) -> ImageError | None:
        known = self._back_offs.get(decide.back_off_key(request, spec_image))
        if known is None:
            return None
        remaining_s = known.entry.updated_at + known.entry.delay_s - self._clock.monotonic()
        if remaining_s <= 0:
            return None
        self._recorder.post(decide.back_off_event(request))
        failure = decide.backing_off(request.image, known.last)
        return ImageError(failure.reason, failure.message, self._in(remaining_s))

    def _failed(self, request: ImageRequest, spec_image: str, error: str, policy: BackoffPolicy) -> ImageError:
        failure = decide.pull_failure(spec_image, error)
        key = decide.back_off_key(request, spec_image)
        known = self._back_offs.get(key)
        self._forget_expired()
        now = self._clock.monotonic()
        entry = policy.raised(known.entry if known is not None else None, now, now)
        self._back_offs[key] = _BackingOff(entry, failure)
        return ImageError(failure.reason, failure.message, self._in(min(decide.RECHECK_S, entry.delay_s)))

    def _forget_expired(self) -> None:
        now = self._clock.monotonic()
        self._back_offs = {
            k: known for k, known in self._back_offs.items() if not self._policy.is_expired(known.entry, now)
        }

    def _image_error(self, failure: Failure, event: KubeEvent, retry_at: float | None) -> ImageError:
        self._recorder.post(event)
        return ImageError(failure.reason, failure.message, retry_at)

    def _in(self, seconds: float) -> float:
        return self._clock.monotonic() + seconds


_PERMIT = PullPermit()


def _pulls_key(request: ImageRequest) -> tuple[PodUID, str, str]:
    return request.pod.uid, request.container, request.image


def _spec(request: ImageRequest, spec_image: str) -> pb.ImageSpec:
    annotations: Mapping[str, str] = request.annotations
    return pb.ImageSpec(image=spec_image, annotations=annotations, runtime_handler=request.runtime_handler)


def _ready(image_ref: str, status: pb.Image) -> ImageReady:
    uid = status.uid.value if status.HasField("uid") else None
    return ImageReady(image_ref, status.id, uid, "" if uid is not None else status.username)


def _count(policy: str, *, is_present: bool | None, must_pull: bool | None) -> None:
    """Count one request for an image; None: the value was not needed and is not known."""
    ENSURED.inc(_word(is_present), policy.lower(), _word(must_pull))


def _word(is_so: bool | None) -> str:
    return "unknown" if is_so is None else str(is_so).lower()
