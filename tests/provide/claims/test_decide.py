"""Which claims a pod needs, whether it may use them, and what its containers get."""

from __future__ import annotations

from typing import Any

import pytest
from provide.claims.samples import GPU, api_claim, claiming_pod

from pykubelet.base.api.codec import from_object
from pykubelet.base.api.core import Pod
from pykubelet.base.api.resource_claims import ApiClaim
from pykubelet.base.kit.values import replace
from pykubelet.base.model.claims import ClaimDevice
from pykubelet.base.model.ids import PodRef, PodUID, SandboxID
from pykubelet.base.model.lifecycle import PodLifecycle, Stage
from pykubelet.base.model.observed import Observed, PodView, SandboxView
from pykubelet.base.model.roster import Rejection, RosterPod
from pykubelet.provide.claims.decide import (
    ClaimFacts,
    ClaimStep,
    batches,
    check_answers,
    check_claim,
    container_claims,
    container_resources,
    due_step,
    pod_claims,
    skipped_calls,
    take_claim,
)
from pykubelet.provide.claims.model import PREPARE, UNPREPARE, ClaimError, ClaimInfo, ClaimKey, PodClaimRef, without_pod

ONE = ClaimKey("default", "one")
TEMPLATE = {"name": "gpu", "resourceClaimTemplateName": "t"}
WEB = PodUID("uid-web")


def keys(pod: Pod, *, extended: bool = True) -> list[tuple[str, str, bool]]:
    return [(ref.name, ref.key.name, ref.must_own) for ref in pod_claims(pod, extended=extended)]


def test_a_claim_is_named_by_the_spec_or_by_the_status() -> None:
    made = [{"name": "gpu", "resourceClaimName": "web-gpu-x"}]
    pod = claiming_pod("web", TEMPLATE, {"name": "net", "resourceClaimName": "n"}, resourceClaimStatuses=made)
    assert keys(pod) == [("gpu", "web-gpu-x", True), ("net", "n", False)]


def test_a_template_that_needs_no_claim_is_left_out() -> None:
    assert keys(claiming_pod("web", TEMPLATE, resourceClaimStatuses=[{"name": "gpu"}])) == []


@pytest.mark.parametrize(
    ("claim", "error"),
    [
        (TEMPLATE, 'pod "default/web": ResourceClaim not created yet'),
        ({"name": "gpu"}, 'pod "default/web", spec.resourceClaim "gpu": none of the supported fields are set'),
    ],
)
def test_a_claim_without_a_name_is_an_error(claim: dict[str, Any], error: str) -> None:
    with pytest.raises(ClaimError, match=f"^{error}$".replace("/", ".").replace('"', ".")):
        keys(claiming_pod("web", claim))


def test_the_claim_behind_extended_resources_counts_with_its_gate() -> None:
    behind = {"resourceClaimName": "web-extended", "requestMappings": []}
    pod = claiming_pod(extendedResourceClaimStatus=behind)
    assert keys(pod) == [("gpu", "one", False), ("", "web-extended", False)]
    assert keys(pod, extended=False) == [("gpu", "one", False)]


REF = PodClaimRef("gpu", ONE)


@pytest.mark.parametrize(
    ("ref", "claim", "error"),
    [
        (
            replace(REF, must_own=True),
            api_claim(owner="other"),
            "ResourceClaim default/one was not created for Pod default/web (Pod is not owner)",
        ),
        (REF, api_claim("one", "other"), "pod web (uid-web) is not allowed to use ResourceClaim one (claim-1)"),
        (REF, api_claim(allocated=False), "ResourceClaim one: not allocated"),
    ],
)
def test_a_claim_that_the_pod_cannot_use(ref: PodClaimRef, claim: Any, error: str) -> None:
    with pytest.raises(ClaimError) as raised:
        check_claim(claiming_pod(), ref, claim)
    assert str(raised.value) == error


def test_a_claim_that_the_pod_can_use() -> None:
    claim = api_claim(owner="web", drivers=(GPU, "net.example.com", GPU))
    assert check_claim(claiming_pod(), replace(REF, must_own=True), claim) == (GPU, "net.example.com")


def test_a_shared_claim_gets_another_user_and_keeps_its_devices() -> None:
    device = ClaimDevice(GPU, "pool", "dev-0")
    known = ClaimInfo(ONE, "claim-1", frozenset({PodUID("uid-a")}), {GPU: (device,)}, is_prepared=True)
    shared = take_claim({ONE: known}, REF, api_claim(), (GPU,), WEB)
    assert shared == replace(known, pods=known.pods | {WEB})
    assert without_pod({ONE: shared}, WEB, [ONE]) == {ONE: known}
    assert without_pod({ONE: known}, PodUID("uid-a"), [ONE]) == {}


def test_a_claim_of_the_same_name_that_is_still_in_use() -> None:
    known = ClaimInfo(ONE, "claim-0", frozenset({PodUID("uid-a")}))
    with pytest.raises(ClaimError) as raised:
        take_claim({ONE: known}, REF, api_claim(), (GPU,), WEB)
    assert str(raised.value) == (
        "old ResourceClaim with same name one and different UID claim-0 still exists (previous pod force-deleted?!)"
    )


def test_each_driver_is_called_once_for_all_its_claims() -> None:
    first = ClaimInfo(ONE, "1", drivers={GPU: (), "net": ()})
    second = ClaimInfo(ClaimKey("default", "two"), "2", drivers={GPU: ()})
    assert batches([first, second], PREPARE) == {GPU: (first, second), "net": (first,)}
    skipping = replace(first, skips={GPU: frozenset({PREPARE})})
    assert batches([skipping, second], PREPARE) == {GPU: (second,), "net": (skipping,)}
    assert batches([skipping], UNPREPARE) == {GPU: (skipping,), "net": (skipping,)}


@pytest.mark.parametrize(
    ("skips", "skipped"),
    [
        ((["*"],), {PREPARE, UNPREPARE}),
        (([PREPARE, UNPREPARE], ["*"]), {PREPARE, UNPREPARE}),
        (([UNPREPARE, "Later"],), {UNPREPARE}),
        ((["*"], [UNPREPARE]), {UNPREPARE}),
        ((["*"], []), set()),
        (([PREPARE],), set()),
        ((["Later"],), set()),
    ],
)
def test_a_driver_is_left_out_if_all_its_devices_in_the_claim_skip_the_call(
    skips: tuple[list[str], ...], skipped: set[str]
) -> None:
    results = [{"driver": GPU, "device": f"d{n}", "skipNodeOperations": names} for n, names in enumerate(skips)]
    other = {"driver": "net.example.com", "device": "n"}
    status = {"allocation": {"devices": {"results": [*results, other]}}}
    found = skipped_calls(from_object(ApiClaim, {"status": status}))
    assert found == ({GPU: skipped} if skipped else {})


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ({"1": "", "9": ""}, "NodePrepareResources returned result for unknown claim UID 9"),
        ({"1": "no such device"}, "NodePrepareResources failed for ResourceClaim one: no such device"),
        ({}, "NodePrepareResources skipped 1 ResourceClaims"),
    ],
)
def test_wrong_answers_of_a_driver(answers: dict[str, str], error: str) -> None:
    with pytest.raises(ClaimError) as raised:
        check_answers("Prepare", [ClaimInfo(ONE, "1")], answers)
    assert str(raised.value) == error


# Containers


def devices(*named: tuple[str, tuple[str, ...]]) -> ClaimInfo:
    """A claim with devices by name, each with the requests that it serves."""
    made = tuple(ClaimDevice(GPU, "pool", name, requests, (f"{GPU}/gpu={name}",)) for name, requests in named)
    return ClaimInfo(ONE, "1", drivers={GPU: made})


def given(info: ClaimInfo, *requests: str) -> list[str]:
    """The CDI devices of a container that refers to these requests of the claim."""
    pod = claiming_pod(uses=[{"name": "gpu", "request": request} for request in requests])
    found = container_claims(pod, pod_claims(pod, extended=True), {ONE: info})
    return [name.partition("=")[2] for claim in found.get("main", ()) for name in claim.cdi]


def test_a_container_gets_the_devices_of_its_requests() -> None:
    info = devices(("a", ("large",)), ("b", ("small",)), ("c", ()), ("d", ("large", "small")))
    assert given(info, "") == ["a", "b", "c", "d"]
    assert given(info, "large") == ["a", "c", "d"]
    assert given(info, "small", "large") == ["a", "b", "c", "d"]
    assert given(info, "none") == ["c"]
    assert given(info) == []


def test_an_alternative_of_a_request_serves_the_request() -> None:
    info = devices(("a", ("gpu/large",)), ("b", ("net",)))
    assert given(info, "gpu") == ["a"]
    assert given(info, "gpu/small") == ["a"]


def test_extended_resources_reach_the_containers_that_request_them() -> None:
    rows = [
        {"containerName": "main", "resourceName": "example.com/gpu", "requestName": "container-0-request-0"},
        {"containerName": "side", "resourceName": "example.com/gpu", "requestName": "container-1-request-0"},
        {"containerName": "main", "resourceName": "example.com/other", "requestName": "container-1-request-0"},
    ]
    behind = {"resourceClaimName": "one", "requestMappings": rows}
    pod = claiming_pod("web", {"name": "gpu", "resourceClaimName": "zero"}, uses=[], extendedResourceClaimStatus=behind)
    main = pod.spec.containers[0]
    assert main.resources is not None
    asking = replace(main, resources=replace(main.resources, limits={"example.com/gpu": 1}))
    pod = replace(pod, spec=replace(pod.spec, containers=(asking, *pod.spec.containers[1:])))
    info = devices(("a", ("container-0-request-0",)), ("b", ("container-1-request-0",)))
    found = container_claims(pod, pod_claims(pod, extended=True), {ONE: info})
    assert {name: [claim.cdi for claim in claims] for name, claims in found.items()} == {"main": [(f"{GPU}/gpu=a",)]}
    reported = container_resources(pod, pod_claims(pod, extended=True), {ONE: info}, extended=True)
    assert {name: [(r.name, [device.device for device in r.devices]) for r in rs] for name, rs in reported.items()} == {
        "main": [("claim:one/container-0-request-0", ["a"])]
    }
    assert container_resources(pod, pod_claims(pod, extended=True), {ONE: info}, extended=False) == {}


# What is due

LISTED = ClaimFacts(True, Observed(listed_at=1.0))
RUNS = Observed(
    {WEB: PodView(PodRef("default", "web", WEB), (SandboxView(SandboxID("s"), 0, True, 1),))}, listed_at=1.0
)
ENTRY = RosterPod(claiming_pod(), "api", 1.0)
LIFE = PodLifecycle(PodRef("default", "web", WEB), claiming_pod(), Stage.SYNCING, 1.0, 1.0)


@pytest.mark.parametrize(
    ("entry", "life", "known", "due"),
    [
        (ENTRY, None, LISTED, ClaimStep.PREPARE),
        (ENTRY, LIFE, LISTED, ClaimStep.PREPARE),
        (replace(ENTRY, rejection=Rejection("no", "no")), None, LISTED, ClaimStep.KEEP),
        (replace(ENTRY, pod=claiming_pod(phase="Succeeded")), LIFE, LISTED, ClaimStep.KEEP),
        (ENTRY, replace(LIFE, stage=Stage.TERMINATING), LISTED, ClaimStep.KEEP),
        (ENTRY, replace(LIFE, stage=Stage.TERMINATING, is_stopped=True), LISTED, ClaimStep.RELEASE),
        (ENTRY, replace(LIFE, is_stopped=True), LISTED, ClaimStep.PREPARE),  # it starts again
        (ENTRY, replace(LIFE, stage=Stage.FINISHED), LISTED, ClaimStep.RELEASE),
        (None, LIFE, LISTED, ClaimStep.KEEP),
        (None, None, LISTED, ClaimStep.RELEASE),
        (None, None, replace(LISTED, sources_ready=False), ClaimStep.KEEP),
        (None, None, ClaimFacts(True, Observed()), ClaimStep.KEEP),
        (None, None, ClaimFacts(True, RUNS), ClaimStep.KEEP),
    ],
)
def test_the_step_that_is_due(
    entry: RosterPod | None, life: PodLifecycle | None, known: ClaimFacts, due: ClaimStep
) -> None:
    assert due_step(WEB, entry, life, known) is due
