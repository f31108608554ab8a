"""Prepares and unprepares the claims of one pod: reads them from the API server, calls the drivers, and keeps the cache.

Owns: the cache of claims, its file, and a lock for each claim, so that pods that share a claim work on it one after the
other. Claims are read when they are to be prepared, as in the reference: what counts is the reservation at that moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from pykubelet.base.api.core import Pod
from pykubelet.base.api.resource_claims import ApiClaim, claims_path
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import PodUID
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.edges.plugins.dra_client import DraClaim, PreparedClaim
from pykubelet.provide.claims.decide import (
    batches,
    check_answers,
    check_claim,
    pod_claims,
    skipped_calls,
    take_claim,
)
from pykubelet.provide.claims.drivers import Drivers
from pykubelet.provide.claims.metrics import OPERATIONS
from pykubelet.provide.claims.model import (
    PREPARE,
    UNPREPARE,
    Cache,
    ClaimError,
    ClaimInfo,
    ClaimKey,
    PodClaimRef,
    claims_of,
    with_info,
    without_pod,
)
from pykubelet.provide.claims.store import ClaimStore

if TYPE_CHECKING:  # a node that stands alone does not need it
    from pykubelet.edges.kubeapi.client import ApiClient

#: Notes the call that comes next, and its driver.
Calls = Callable[[str, str], None]
NO_API_SERVER = "this node has no API server"


class ClaimOperations:
    """The claims of all pods. `client`: None without an API server. `extended`, `skips`: the gates DRAExtendedResource and
    DRAOptionalNodeOperations. `reports_extended`: as in `Behavior`."""

    def __init__(
        self,
        cache: Cache,
        drivers: Drivers,
        store: ClaimStore,
        client: ApiClient | None,
        *,
        extended: bool,
        reports_extended: bool = True,
        skips: bool = False,
    ) -> None:
        self.cache = cache
        self.extended = extended
        self.reports_extended = reports_extended
        self._has_skips = skips
        self._drivers = drivers
        self._store = store
        self._client = client
        self._locks = ClaimLocks()

    # Prepare

    async def prepare(self, pod: Pod, calls: Calls) -> tuple[PodClaimRef, ...]:
        """Prepare all claims of the pod, and return them. Raises ClaimError."""
        with Operation("PrepareResources"):
            found = await self._checked(pod)
            async with self._locks.hold(ref.key for ref, _, _ in found):
                await self._prepare(PodUID(pod.metadata.uid), found, calls)
            return tuple(ref for ref, _, _ in found)

    async def _checked(self, pod: Pod) -> list[tuple[PodClaimRef, ApiClaim, tuple[str, ...]]]:
        """Read and check all claims of the pod, before any of them is changed."""
        found = []
        for ref in pod_claims(pod, extended=self.extended):
            claim = await self._read(ref.key)
            drivers, skips = check_claim(pod, ref, claim), self._skips(claim)
            for driver in drivers:
                if PREPARE not in skips.get(driver, ()):
                    self._drivers.connection(driver)
            found.append((ref, claim, drivers))
        return found

    def _skips(self, claim: ApiClaim) -> dict[str, frozenset[str]]:
        return skipped_calls(claim) if self._has_skips else {}

    async def _read(self, key: ClaimKey) -> ApiClaim:
        if self._client is None:
            raise ClaimError(f"fetch ResourceClaim {key.name}: {NO_API_SERVER}")
        try:
            return await self._client.get(f"{claims_path(key.namespace)}/{key.name}", ApiClaim)
        except ApiError as error:
            raise ClaimError(f"fetch ResourceClaim {key.name}: {error.message}") from error

    async def _prepare(
        self, uid: PodUID, found: Iterable[tuple[PodClaimRef, ApiClaim, tuple[str, ...]]], calls: Calls
    ) -> None:
        infos = [take_claim(self.cache, ref, claim, drivers, uid, self._skips(claim)) for ref, claim, drivers in found]
        self.cache = with_info(self.cache, *infos)
        await self._save("checkpoint ResourceClaim cache")
        for driver, claims in batches((info for info in infos if not info.is_prepared), PREPARE).items():
            calls(PREPARE, driver)
            answers = await self._drivers.prepare(driver, _asked(claims))
            check_answers("Prepare", claims, {claim: answer.error for claim, answer in answers.items()})
            for info in claims:
                self._take_devices(info.key, driver, answers[info.uid])
        self.cache = with_info(self.cache, *(replace(self.cache[info.key], is_prepared=True) for info in infos))
        await self._save("checkpoint ResourceClaim state")

    def _take_devices(self, key: ClaimKey, driver: str, answer: PreparedClaim) -> None:
        info = self.cache[key]
        self.cache = with_info(self.cache, replace(info, drivers={**info.drivers, driver: answer.devices}))

    # Unprepare

    async def unprepare(self, uid: PodUID, calls: Calls) -> None:
        """Give up all claims of a pod that has ended; those that no other pod uses are unprepared. Raises ClaimError."""
        with Operation("UnprepareResources"):
            async with self._locks.hold(info.key for info in claims_of(self.cache, uid)):
                await self._unprepare(uid, calls)

    async def _unprepare(self, uid: PodUID, calls: Calls) -> None:
        held = claims_of(self.cache, uid)
        last = [info for info in held if info.pods == {uid}]
        self.cache = without_pod(self.cache, uid, (info.key for info in held if info not in last))
        # After a call that fails, it is not known what is left: a pod that takes over the claim has it prepared again.
        self.cache = with_info(self.cache, *(replace(info, is_prepared=False) for info in last))
        for driver, claims in batches(last, UNPREPARE).items():
            calls(UNPREPARE, driver)
            errors = await self._drivers.unprepare(driver, _asked(claims))
            check_answers("Unprepare", claims, errors)
        self.cache = without_pod(self.cache, uid, (info.key for info in last))
        await self._save("checkpoint ResourceClaim state")

    async def _save(self, purpose: str) -> None:
        await self._store.save(lambda: self.cache, purpose)


class Operation:
    """Measures one operation for the metrics, and adds its name to its ClaimError."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._began = asyncio.get_running_loop().time()

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        took = asyncio.get_running_loop().time() - self._began
        OPERATIONS.observe(took, self._name, str(kind is not None).lower())
        if isinstance(error, ClaimError):
            verb = self._name.removesuffix("Resources").lower()
            raise ClaimError(f"{verb} dynamic resources: {error}", error.driver) from error


def _asked(infos: Sequence[ClaimInfo]) -> list[DraClaim]:
    return [DraClaim(info.key.namespace, info.uid, info.key.name) for info in infos]


class ClaimLocks:
    """One lock for each claim that is being worked on."""

    def __init__(self) -> None:
        self._locks: dict[ClaimKey, tuple[asyncio.Lock, int]] = {}

    def hold(self, keys: Iterable[ClaimKey]) -> _Held:
        """An async context manager that holds the locks of all these claims."""
        return _Held(self, sorted(set(keys)))

    def borrow(self, key: ClaimKey) -> asyncio.Lock:
        """The lock of a claim, which is kept until everyone who borrowed it has returned it."""
        lock, users = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = lock, users + 1
        return lock

    def give_back(self, key: ClaimKey) -> None:
        """Return a lock."""
        lock, users = self._locks.pop(key)
        if users > 1:
            self._locks[key] = lock, users - 1


class _Held:
    """Acquires locks in their order, so that two pods with the same claims never wait for each other."""

    def __init__(self, locks: ClaimLocks, keys: list[ClaimKey]) -> None:
        self._locks = locks
        self._keys = keys
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> None:
        try:
            for key in self._keys:
                self._stack.callback(self._locks.give_back, key)
                await self._stack.enter_async_context(self._locks.borrow(key))
        except BaseException:
            await self._stack.aclose()
            raise

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()
