"""What clients may store has bounds: of each object, and in all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from local_api.reconcile.world import thing
from local_api.server import account_made, serving

from pykubelet_local_api.errors import StatusError
from pykubelet_local_api.kinds.table import STORED
from pykubelet_local_api.objects import Json
from pykubelet_local_api.registry import ObjectRegistry
from pykubelet_local_api.store.sizes import MAX_OBJECT_BYTES
from pykubelet_local_api.view import CONTROL, RequestUser
from pykubelet_local_api.wiring import LocalApi
from pykubelet_local_api.write_options import DeletionOptions, WriteOptions

JANE = RequestUser("jane", ("system:authenticated",))
MAPS, ROLES = STORED["configmaps"], STORED["roles.rbac.authorization.k8s.io"]


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[LocalApi]:
    async with serving(tmp_path) as found:
        await account_made(found)
        yield found


def rule(number: int) -> Json:
    names = [f"n{number}-{at}-{'x' * 1000}" for at in range(1000)]
    return {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": names}


def config_map(name: str, kib: int) -> Json:
    return thing("ConfigMap", name, "default", data={"key": "x" * (kib << 10)})


async def test_patches_cannot_let_an_object_grow_for_ever(api: LocalApi) -> None:
    registry = ObjectRegistry(api.store)
    options = WriteOptions(CONTROL, is_large=True)
    await registry.create(ROLES, "default", {"metadata": {"name": "r"}, "rules": [rule(0)]}, options)

    async def grow(number: int) -> None:
        def edit(old: Json | None) -> Json:
            assert old is not None
            return {**old, "rules": [*old["rules"], rule(number)]}

        await registry.update(ROLES, "default", "r", edit, options)

    await grow(1)
    await grow(2)
    with pytest.raises(StatusError) as caught:
        await grow(3)
    assert (caught.value.code, caught.value.message) == (
        413,
        f"Request entity too large: limit is {MAX_OBJECT_BYTES}",
    )
    found = api.store.get(ROLES.storage, "default", "r")
    assert found is not None
    assert len(found["rules"]) == 3


async def test_clients_do_not_fill_the_memory_and_the_machine_goes_on(
    api: LocalApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = ObjectRegistry(api.store)
    monkeypatch.setattr("pykubelet_local_api.registry.MAX_STORED_BYTES", api.store.sizes.total + (200 << 10))
    await registry.create(MAPS, "default", config_map("a", 100), WriteOptions(JANE))
    with pytest.raises(StatusError) as caught:
        await registry.create(MAPS, "default", config_map("b", 100), WriteOptions(JANE))
    assert caught.value.code == 403
    assert "would be stored: delete what is not needed" in caught.value.message
    await registry.create(MAPS, "default", config_map("c", 100), WriteOptions(CONTROL))
    # an update that does not grow, and deletions, which make space, go on
    await registry.update(MAPS, "default", "a", lambda _: config_map("a", 90), WriteOptions(JANE))
    await registry.delete(MAPS, "default", "c", DeletionOptions(JANE))
    await registry.create(MAPS, "default", config_map("b", 50), WriteOptions(JANE))


async def test_what_is_stored_is_counted_again_at_the_start(tmp_path: Path) -> None:
    async with serving(tmp_path) as first:
        await account_made(first)
        await ObjectRegistry(first.store).create(MAPS, "default", config_map("a", 100), WriteOptions(JANE))
    total = first.store.sizes.total
    async with serving(tmp_path) as second:
        assert second.store.sizes.total >= total
