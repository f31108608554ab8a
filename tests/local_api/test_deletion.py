"""Deletions of objects whose deletion goes on already."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from local_api.reconcile.world import thing
from local_api.server import account_made, serving

from pykubelet.base.api.times import parse_time
from pykubelet.base.kit.clock import ManualClock
from pykubelet_local_api.kinds.table import STORED
from pykubelet_local_api.objects import Json
from pykubelet_local_api.registry import ObjectRegistry
from pykubelet_local_api.view import CONTROL
from pykubelet_local_api.write_options import DeletionOptions, WriteOptions

PODS = STORED["pods"]
SPEC = {"nodeName": "n", "terminationGracePeriodSeconds": 30, "containers": [{"name": "c", "image": "x"}]}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(wall=time.time())


@pytest.fixture
async def registry(tmp_path: Path, clock: ManualClock) -> AsyncIterator[ObjectRegistry]:
    async with serving(tmp_path, clock) as api:
        await account_made(api)
        found = ObjectRegistry(api.store)
        await found.create(PODS, "default", thing("Pod", "p", "default", spec=SPEC), WriteOptions(CONTROL))
        yield found


async def delete(registry: ObjectRegistry, grace_s: int | None) -> Json:
    """The metadata of the pod after its deletion was asked for."""
    deletion = await registry.delete(PODS, "default", "p", DeletionOptions(CONTROL, grace_s))
    found: Json = deletion.object["metadata"]
    return found | {"gone": deletion.is_gone}


async def test_a_second_deletion_shortens_the_grace_period_only_if_it_states_one(
    registry: ObjectRegistry, clock: ManualClock
) -> None:
    first = await delete(registry, 60)
    assert first["deletionGracePeriodSeconds"] == 60
    begun = parse_time(first["deletionTimestamp"]) - 60
    for grace_s in (None, 90, 60):
        again = await delete(registry, grace_s)
        assert again["deletionTimestamp"] == first["deletionTimestamp"]
        assert again["deletionGracePeriodSeconds"] == 60
    again = await delete(registry, 20)
    assert again["deletionGracePeriodSeconds"] == 20
    assert parse_time(again["deletionTimestamp"]) == begun + 20
    clock.advance(10)
    again = await delete(registry, 5)  # its time is over already
    assert again["deletionGracePeriodSeconds"] == 1
    assert parse_time(again["deletionTimestamp"]) == begun + 10
    assert (await delete(registry, 0))["gone"]
