"""Runs image pulls: one for each image and set of credentials, however many pods wait for it.

Owns: the running and queued pulls, and their tasks. All requests for the same image with the same credentials share a pull.
It is cancelled when no request waits for it any more. `PullQueue` decides which pulls may run now. Policies, back-off and Events are in
`execute.py`.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
from typing import Protocol

from msgspec import Struct

from pykubelet.base.kit.bucket import TokenBucket
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value, field
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.errors import CriCode, CriError
from pykubelet.provide.images.decide import access_of, joined_errors
from pykubelet.provide.images.keyring import Auth, Credential
from pykubelet.provide.images.metrics import PULL_DURATIONS, size_words
from pykubelet.provide.images.model import ActivePull, ImageSettings, PullStage, WaitingPod
from pykubelet.provide.images.record_store import RecordStore
from pykubelet.provide.images.records import content_of, identity_of

log = Log("images")


class ImageService(Protocol):
    """The part of the CRI client that pulls need."""

    async def image_status(self, image: pb.ImageSpec) -> pb.Image | None:
        """CRI ImageStatus; None when the image is absent. CriError."""

    async def pull_image(
        self, image: pb.ImageSpec, auth: pb.AuthConfig | None, sandbox_config: pb.PodSandboxConfig | None = None
    ) -> str:
        """CRI PullImage; the reference of the pulled image. CriError."""


class PullOrder(Value):
    """An image to pull and the credentials for it. `auths` are tried one after another; none: the pull is anonymous.

    `arrival`: the sequence number of the request. In the queue, a higher `priority` comes first, then an earlier request.
    """

    spec: pb.ImageSpec
    auths: tuple[Auth, ...]
    arrival: int
    sandbox_config: pb.PodSandboxConfig | None = None
    priority: int = 0

    @property
    def key(self) -> tuple[str, str, tuple[Auth, ...]]:
        """The key of the order; orders with the same key share one pull."""
        return self.spec.image, self.spec.runtime_handler, self.auths


class PullDone(Value):
    """A finished pull. `image_ref`: the runtime's answer, an image ID or a digest. `pull_s`: seconds of the PullImage call.

    `image`: the status of the pulled image; None if it is absent or cannot be read.
    """

    image_ref: str
    pull_s: float
    image: pb.Image | None


class PullFailed(Value):
    """A failed pull. `runtime_away`: the runtime did not answer, so the result is unknown."""

    error: str
    runtime_away: bool


class _Waiter(Value):
    pod: WaitingPod
    credentials: tuple[Credential, ...]


class _Pull(Struct, eq=False):
    ticket: int
    order: PullOrder
    since: float
    priority: int
    started_at: float | None = None
    waiters: dict[int, _Waiter] = field(default_factory=dict)
    admitted: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[PullDone | PullFailed] | None = None


def error_text(error: CriError) -> str:
    """An error of the runtime as text for users; the code `Unknown` is left out."""
    return error.message if error.code is CriCode.UNKNOWN else str(error)


class PullRunner:
    """Runs and shares pulls until `stop` is called."""

    def __init__(self, images: ImageService, records: RecordStore, clock: Clock, settings: ImageSettings) -> None:
        self._images = images
        self._records = records if settings.ensure_secret_pulled else None
        self._clock = clock
        self._bucket = TokenBucket(settings.qps, settings.burst)
        self._queue = PullQueue(1 if settings.serialize else settings.max_parallel, self._bucket)
        self._tasks = Supervisor("image-pulls")
        self._numbers = itertools.count(1)
        self._joinable: dict[tuple[str, str, tuple[Auth, ...]], _Pull] = {}
        self._all: dict[int, _Pull] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def stop(self) -> None:
        """Cancel all pulls, which also makes the runtime stop pulling."""
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.stop()

    async def run(
        self, order: PullOrder, pod: WaitingPod, credentials: tuple[Credential, ...]
    ) -> PullDone | PullFailed:
        """Join the pull with the same key, or begin one, and wait for it. Cancelling the last waiting call cancels the pull."""
        pull = self._joinable.get(order.key) or self._begin(order)
        if order.priority > pull.priority:
            pull.priority = order.priority
            self._queue.raise_priority(pull.ticket, order.priority)
        number = next(self._numbers)
        pull.waiters[number] = _Waiter(pod, credentials)
        assert pull.task is not None
        try:
            return await asyncio.shield(pull.task)
        finally:
            del pull.waiters[number]
            if not pull.waiters and pull.ticket in self._all:  # a retired pull only writes its record
                self._retire(pull)
                pull.task.cancel()
                log.info("image pull cancelled: no pod waits for it any more", image=order.spec.image)

    def _begin(self, order: PullOrder) -> _Pull:
        pull = _Pull(next(self._numbers), order, self._clock.wall(), order.priority)
        self._joinable[order.key] = pull
        self._all[pull.ticket] = pull
        self._queue.join(pull.ticket, order.arrival, order.priority)
        pull.task = self._tasks.start_child(f"pull {order.spec.image}", self._pull(pull))
        self._admit()
        return pull

    async def _pull(self, pull: _Pull) -> PullDone | PullFailed:
        image = pull.order.spec.image
        ends_known = False
        recorded = False
        try:
            await pull.admitted.wait()
            pull.started_at = self._clock.wall()
            if self._records is not None:
                refusal = await self._records.begin(image)
                if refusal is not None:
                    return PullFailed(refusal, False)
                recorded = True
            result, used = await self._attempt_all(pull)
            waiters = tuple(pull.waiters.values())
            self._retire(pull)
            if recorded and self._records is not None and not (isinstance(result, PullFailed) and result.runtime_away):
                ends_known = True
                await self._record(self._records, image, result, used, waiters)
            return result
        finally:
            self._retire(pull)
            if recorded and not ends_known and self._records is not None:
                self._records.unsure(image)

    async def _record(
        self,
        records: RecordStore,
        image: str,
        result: PullDone | PullFailed,
        used: int | None,
        waiters: tuple[_Waiter, ...],
    ) -> None:
        if isinstance(result, PullFailed):
            await records.failed(image)
            return
        if result.image is None:  # nothing is proven for an image that is not known
            records.unsure(image)
            return
        proofs = [access_of(None if used is None else waiter.credentials[used]) for waiter in waiters]
        await records.pulled(image, identity_of(result.image), dict.fromkeys(proofs))

    async def _attempt_all(self, pull: _Pull) -> tuple[PullDone | PullFailed, int | None]:
        """Try the credentials one after another; return the result and the index of the credential used."""
        order = pull.order
        errors: list[str] = []
        away = True
        attempts: list[tuple[int | None, Auth | None]] = [*enumerate(order.auths)] or [(None, None)]
        for number, auth in attempts:
            if errors:
                await self._take_token()
            begun = self._clock.monotonic()
            try:
                wire_auth = _auth_config(auth) if auth is not None else None
                image_ref = await self._images.pull_image(order.spec, wire_auth, order.sandbox_config)
            except CriError as error:
                errors.append(error_text(error))
                away = away and error.is_unavailable
                continue
            pull_s = self._clock.monotonic() - begun
            status = await self._pulled_image(order.spec, image_ref)
            PULL_DURATIONS.observe(pull_s, size_words(status.size if status is not None else 0))
            return PullDone(image_ref, pull_s, status), number
        return PullFailed(joined_errors(errors), away), None

    async def _pulled_image(self, spec: pb.ImageSpec, image_ref: str) -> pb.Image | None:
        """The image that a pull has brought; another pull may have given its name to another image since."""
        try:
            image = await self._images.image_status(spec)
            if image is not None and content_of(image_ref) in identity_of(image).contents:
                return image
            by_ref = pb.ImageSpec(image=image_ref, annotations=spec.annotations, runtime_handler=spec.runtime_handler)
            return await self._images.image_status(by_ref)
        except CriError as error:
            log.warning("an image was pulled but cannot be inspected", image=spec.image, error=error)
            return None

    async def _take_token(self) -> None:
        """Wait for a token of the QPS limit: for the registry, each further attempt is a pull of its own."""
        while True:
            now = self._clock.monotonic()
            if self._bucket.take(now):
                return
            await asyncio.sleep(self._bucket.wait_s(now))

    def _retire(self, pull: _Pull) -> None:
        """Remove the pull, so that no further request joins it, and free its slot."""
        if self._all.pop(pull.ticket, None) is None:
            return
        if self._joinable.get(pull.order.key) is pull:
            del self._joinable[pull.order.key]
        self._queue.leave(pull.ticket)
        self._admit()

    def _admit(self) -> None:
        admitted, wait_s = self._queue.admit(self._clock.monotonic())
        for ticket in admitted:
            self._all[ticket].admitted.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wait_s is not None:
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._admit)

    def active(self) -> tuple[ActivePull, ...]:
        """All pulls, in the order they were begun."""
        return tuple(
            ActivePull(
                image=pull.order.spec.image,
                stage=PullStage.QUEUED if pull.started_at is None else PullStage.PULLING,
                position=self._queue.position(pull.ticket),
                since=pull.since,
                started_at=pull.started_at,
                pods=tuple(waiter.pod for waiter in pull.waiters.values()),
            )
            for pull in self._all.values()
        )


def _auth_config(auth: Auth) -> pb.AuthConfig:
    return pb.AuthConfig(
        username=auth.username,
        password=auth.password,
        identity_token=auth.identity_token,
        registry_token=auth.registry_token,
    )


class PullQueue:
    """Queues pulls, identified by tickets, by priority and then in order of arrival. `limit`: parallel pulls; None: no limit."""

    def __init__(self, limit: int | None, bucket: TokenBucket) -> None:
        self._limit = limit
        self._bucket = bucket
        self._waiting: list[tuple[int, int, int]] = []  # the negative of the priority, arrival, ticket
        self._running: set[int] = set()

    def join(self, ticket: int, arrival: int, priority: int = 0) -> None:
        """Put a pull into the queue, before all of its priority that arrived later."""
        bisect.insort(self._waiting, (-priority, arrival, ticket))

    def raise_priority(self, ticket: int, priority: int) -> None:
        """Give a pull this priority, if it still waits."""
        for place, (_, arrival, waiting) in enumerate(self._waiting):
            if waiting == ticket:
                del self._waiting[place]
                self.join(ticket, arrival, priority)
                return

    def leave(self, ticket: int) -> None:
        """Remove a pull that has ended or was cancelled."""
        self._waiting = [place for place in self._waiting if place[-1] != ticket]
        self._running.discard(ticket)

    def position(self, ticket: int) -> int:
        """The place of a pull in the queue, from 1; 0 if it is running."""
        return next((n for n, (_, _, waiting) in enumerate(self._waiting, 1) if waiting == ticket), 0)

    def admit(self, now: float) -> tuple[list[int], float | None]:
        """The tickets that start now, and the seconds after which to call this again (None: when a pull leaves)."""
        admitted: list[int] = []
        while self._waiting:
            if self._limit is not None and len(self._running) >= self._limit:
                return admitted, None
            if not self._bucket.take(now):
                return admitted, self._bucket.wait_s(now)
            *_, ticket = self._waiting.pop(0)
            self._running.add(ticket)
            admitted.append(ticket)
        return admitted, None
