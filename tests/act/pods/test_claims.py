"""Pods with resource claims: they wait for them before their sandbox, and end after they are unprepared."""

from __future__ import annotations

from pathlib import Path

import pytest
from act.pods.node import Node, node
from act.pods.scenes import container, pod

from pykubelet.base.api.codec import from_object
from pykubelet.base.api.core import Pod, PodResourceClaim
from pykubelet.base.kit.values import replace
from pykubelet.base.model.claims import ClaimDevice, Claims, ContainerClaim, PodClaims
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.lifecycle import Stage
from pykubelet.base.model.waits import CLAIMS_PREPARED, CLAIMS_UNPREPARED, Owner, Wait

pytestmark = pytest.mark.virtual_time

CDI = ("gpu.example.com/gpu=one",)


def claiming() -> Pod:
    made = pod(container("a"), terminationGracePeriodSeconds=1)
    claims = (from_object(PodResourceClaim, {"name": "gpu", "resourceClaimName": "one"}),)
    return replace(made, spec=replace(made.spec, resourceClaims=claims))


def failing(what: str, error: str) -> PodClaims:
    return PodClaims(waits=(Wait(what, Owner.CLAIM_MANAGER, 1.0, "", "Failed", error, "try again", 2.0),))


def prepared(running: Node, uid: PodUID, claims: PodClaims | None) -> None:
    running.claims.publish(Claims({uid: claims} if claims is not None else {}))


READY = PodClaims(
    ready=True,
    containers={"a": (ContainerClaim("one", "default", (ClaimDevice("gpu.example.com", "p", "d", ("r",), CDI),)),)},
)


async def test_a_pod_waits_for_its_claims_before_its_sandbox_and_after_its_end(tmp_path: Path) -> None:
    of = claiming()
    uid, name = PodUID(of.metadata.uid), of.metadata.name
    async with node(tmp_path) as running:
        running.want(of)
        await running.wait_known(name, lambda known: any(wait.what == CLAIMS_PREPARED for wait in known.waits))
        prepared(running, uid, failing(CLAIMS_PREPARED, "no driver"))
        await running.wait_known(name, lambda known: any(wait.detail == "no driver" for wait in known.waits))
        await running.wait_life(name, lambda life: life.is_held_up)
        assert not running.sandboxes(name)
        prepared(running, uid, READY)
        await running.wait_running(name, "a")
        (made,) = running.running(name)
        assert tuple(device.name for device in made.config.CDI_devices) == CDI
        running.unwant(name)
        await running.wait_known(name, lambda known: any(wait.what == CLAIMS_UNPREPARED for wait in known.waits))
        life = await running.wait_life(name, lambda life: True)
        assert (life.stage, life.is_stopped) == (Stage.TERMINATING, True)
        prepared(running, uid, failing(CLAIMS_UNPREPARED, "no driver"))
        await running.wait_known(name, lambda known: any(wait.detail == "no driver" for wait in known.waits))
        prepared(running, uid, None)
        await running.wait_gone(name)
