"""Decides which claims a pod needs, whether it may use them, and which of their devices each container gets. Pure.

Source: the Kubernetes documentation "Dynamic Resource Allocation"; KEP-4381, KEP-5004 (extended resources).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from pykubelet.base.api.core import Container, EphemeralContainer, Pod
from pykubelet.base.api.resource_claims import ApiClaim
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.claims import ClaimDevice, ClaimResource, ContainerClaim
from pykubelet.base.model.containers import every_container
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.lifecycle import ENDED_STAGES, PodLifecycle, Stage
from pykubelet.base.model.needs import extended_claim
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.roster import RosterPod, has_ended_in_api
from pykubelet.provide.claims.model import (
    PREPARE,
    UNPREPARE,
    Cache,
    ClaimError,
    ClaimInfo,
    ClaimKey,
    PodClaimRef,
)

BOTH = frozenset({PREPARE, UNPREPARE})


def pod_claims(pod: Pod, *, extended: bool) -> tuple[PodClaimRef, ...]:
    """The claims that the pod needs. Raises ClaimError if one has no name yet."""
    namespace, subject = pod.metadata.namespace, f'pod "{pod.metadata.namespace}/{pod.metadata.name}"'
    generated = {status.name: status.resourceClaimName for status in pod.status.resourceClaimStatuses}
    refs: list[PodClaimRef] = []
    for claim in pod.spec.resourceClaims:
        if claim.resourceClaimName:
            refs.append(PodClaimRef(claim.name, ClaimKey(namespace, claim.resourceClaimName)))
        elif not claim.resourceClaimTemplateName:
            raise ClaimError(f'{subject}, spec.resourceClaim "{claim.name}": none of the supported fields are set')
        elif claim.name not in generated:
            raise ClaimError(f"{subject}: ResourceClaim not created yet")
        elif generated[claim.name]:
            refs.append(PodClaimRef(claim.name, ClaimKey(namespace, generated[claim.name]), must_own=True))
    behind = extended_claim(pod) if extended else None
    if behind is not None:
        refs.append(PodClaimRef("", ClaimKey(namespace, behind.resourceClaimName)))
    return tuple(refs)


def check_claim(pod: Pod, ref: PodClaimRef, claim: ApiClaim) -> tuple[str, ...]:
    """The drivers that have allocated devices of the claim, each once. Raises ClaimError if the pod cannot use it."""
    meta, name = pod.metadata, ref.key.name
    if ref.must_own and not any(owner.uid == meta.uid and owner.controller for owner in claim.metadata.ownerReferences):
        pod_name = f"Pod {meta.namespace}/{meta.name}"
        raise ClaimError(f"ResourceClaim {meta.namespace}/{name} was not created for {pod_name} (Pod is not owner)")
    if not any(consumer.uid == meta.uid for consumer in claim.status.reservedFor):
        what = f"ResourceClaim {name} ({claim.metadata.uid})"
        raise ClaimError(f"pod {meta.name} ({meta.uid}) is not allowed to use {what}")
    if claim.status.allocation is None:
        raise ClaimError(f"ResourceClaim {name}: not allocated")
    return tuple(dict.fromkeys(result.driver for result in claim.status.allocation.devices.results))


def skipped_calls(claim: ApiClaim) -> dict[str, frozenset[str]]:
    """The calls that each driver does not get: those that all its devices in the claim skip (KEP-5945).

    A claim that was not prepared need not be unprepared, so only a driver that is not asked to unprepare may be left out before.
    """
    found: dict[str, frozenset[str]] = {}
    for result in claim.status.allocation.devices.results if claim.status.allocation is not None else ():
        named = frozenset(result.skipNodeOperations)
        calls = BOTH if "*" in named else named & BOTH
        found[result.driver] = found.get(result.driver, BOTH) & (calls if UNPREPARE in calls else frozenset())
    return {driver: calls for driver, calls in found.items() if calls}


def take_claim(
    cache: Cache,
    ref: PodClaimRef,
    claim: ApiClaim,
    drivers: Iterable[str],
    pod: PodUID,
    skips: Mapping[str, frozenset[str]] | None = None,
) -> ClaimInfo:
    """The claim with the pod as one of its users. Raises ClaimError if an older claim of its name is still in use.

    `skips`: the calls that drivers do not get.
    """
    known = cache.get(ref.key)
    if known is None:
        made = dict.fromkeys(drivers, ())
        return ClaimInfo(ref.key, claim.metadata.uid, frozenset({pod}), made, skips=skips or {})
    if known.uid != claim.metadata.uid:
        raise ClaimError(
            f"old ResourceClaim with same name {ref.key.name} and different UID {known.uid} still exists "
            "(previous pod force-deleted?!)"
        )
    missing = {driver: () for driver in drivers if driver not in known.drivers}
    return replace(known, pods=known.pods | {pod}, drivers={**known.drivers, **missing} if missing else known.drivers)


def batches(infos: Iterable[ClaimInfo], call: str) -> dict[str, tuple[ClaimInfo, ...]]:
    """The claims by driver: each driver gets the call once for all of them that do not skip it."""
    found: dict[str, list[ClaimInfo]] = {}
    for info in infos:
        for driver in (name for name in info.drivers if call not in info.skips.get(name, ())):
            found.setdefault(driver, []).append(info)
    return {driver: tuple(claims) for driver, claims in found.items()}


def check_answers(call: str, asked: Sequence[ClaimInfo], errors: Mapping[str, str]) -> None:
    """Compare a driver's answer with the request. `call`: `Prepare` or `Unprepare`. `errors`: by the claims' UIDs.

    Raises ClaimError for the first problem.
    """
    names = {info.uid: info.key.name for info in asked}
    for uid, error in errors.items():
        if uid not in names:
            raise ClaimError(f"Node{call}Resources returned result for unknown claim UID {uid}")
        if error:
            raise ClaimError(f"Node{call}Resources failed for ResourceClaim {names[uid]}: {error}")
    skipped = len(names.keys() - errors.keys())
    if skipped:
        raise ClaimError(f"Node{call}Resources skipped {skipped} ResourceClaims")


# Pods


class ClaimStep(StrEnum):
    """The step that is due for the claims of a pod."""

    PREPARE = "prepare"  # the pod is to run
    KEEP = "keep"  # neither of both: it may still run, or it is not known yet whether it may
    RELEASE = "release"  # none of its containers runs or will


def due_step(uid: PodUID, entry: RosterPod | None, life: PodLifecycle | None, now: ClaimFacts) -> ClaimStep:
    """The step that is due for a pod. `entry`, `life`: None if the roster has no such pod, or it has no pod worker."""
    if life is not None and life.stage is not Stage.SYNCING:
        has_ended = life.is_stopped or life.stage in ENDED_STAGES
        return ClaimStep.RELEASE if has_ended else ClaimStep.KEEP
    if entry is None:
        is_orphaned = life is None and now.sources_ready and not now.may_run(uid)
        return ClaimStep.RELEASE if is_orphaned else ClaimStep.KEEP
    pod = entry.pod
    if (
        entry.rejection is not None
        or entry.admission_wait is not None
        or pod.metadata.deletionTimestamp
        or has_ended_in_api(pod)
    ):
        return ClaimStep.KEEP
    return ClaimStep.PREPARE


class ClaimFacts(Value):
    """The facts about all pods. `sources_ready`: a pod that the roster lacks is not desired."""

    sources_ready: bool
    observed: Observed

    def may_run(self, uid: PodUID) -> bool:
        """Whether a container of the pod runs, or this is not known yet."""
        view = self.observed.pods.get(uid)
        return self.observed.listed_at is None or self.observed.is_unread(uid) or (view is not None and view.is_alive)

    def has_sandbox(self, uid: PodUID) -> bool:
        """Whether a sandbox of the pod is ready."""
        view = self.observed.pods.get(uid)
        return view is not None and bool(view.ready_sandboxes)


# Containers


def container_claims(pod: Pod, refs: Iterable[PodClaimRef], cache: Cache) -> dict[str, tuple[ContainerClaim, ...]]:
    """The claims of each container of the pod that has any, with the devices of the requests that it refers to."""
    infos = {ref.name: cache[ref.key] for ref in refs if ref.key in cache}
    found = {container.name: _claims_of(pod, container, infos) for container in every_container(pod)}
    return {name: claims for name, claims in found.items() if claims}


def _claims_of(
    pod: Pod, container: Container | EphemeralContainer, infos: Mapping[str, ClaimInfo]
) -> tuple[ContainerClaim, ...]:
    wanted: dict[str, list[str]] = {}
    resources = container.resources
    for claim in resources.claims if resources is not None else ():
        wanted.setdefault(claim.name, []).append(claim.request)
    if "" in infos:
        wanted[""] = _extended_requests(pod, container)
    return tuple(
        ContainerClaim(info.key.name, info.key.namespace, _devices(info.devices, requests))
        for name, requests in wanted.items()
        if requests and (info := infos.get(name)) is not None
    )


def _extended_requests(pod: Pod, container: Container | EphemeralContainer) -> list[str]:
    """The requests of the claim behind the pod's extended resources that stand for what the container requests."""
    behind, resources = pod.status.extendedResourceClaimStatus, container.resources
    if behind is None or resources is None:
        return []
    asked = {*resources.limits, *resources.requests}
    rows = (row for row in behind.requestMappings if row.containerName == container.name)
    return [row.requestName for row in rows if row.resourceName in asked]


def container_resources(
    pod: Pod, refs: Iterable[PodClaimRef], cache: Cache, *, extended: bool
) -> dict[str, tuple[ClaimResource, ...]]:
    """The references of the regular containers to claims, with the devices of each. `extended`: also to that behind extended resources,
    with the name of the claim and of the request."""
    infos = {ref.name: cache[ref.key] for ref in refs if ref.key in cache and (ref.name or extended)}
    behind = infos.pop("", None)
    name, devices = (behind.key.name, behind.devices) if behind is not None else ("", ())
    found: dict[str, tuple[ClaimResource, ...]] = {}
    for container in pod.spec.containers:
        claims = container.resources.claims if container.resources is not None else ()
        named = (
            ClaimResource(
                f"claim:{claim.name}/{claim.request}" if claim.request else f"claim:{claim.name}",
                _devices(infos[claim.name].devices, (claim.request,)),
            )
            for claim in claims
            if claim.name in infos
        )
        requests = dict.fromkeys(_extended_requests(pod, container)) if behind is not None else ()
        stood_for = (ClaimResource(f"claim:{name}/{request}", _devices(devices, (request,))) for request in requests)
        resources = tuple(resource for resource in (*named, *stood_for) if resource.devices)
        if resources:
            found[container.name] = resources
    return found


def _devices(devices: Iterable[ClaimDevice], requests: Sequence[str]) -> tuple[ClaimDevice, ...]:
    """The devices that serve one of the requests. An empty request means all, and so does a device without requests."""
    if "" in requests:
        return tuple(devices)
    names = {_base(request) for request in requests}
    return tuple(
        device for device in devices if not device.requests or any(_base(name) in names for name in device.requests)
    )


def _base(request: str) -> str:
    """The request without the alternative that was chosen: `gpu` of `gpu/large`."""
    return request.partition("/")[0]
