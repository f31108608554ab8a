"""Lists: pages of one version, versions, and selectors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

import pytest

from pykubelet.base.kit.clock import SystemClock
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.net.http.wire import Request
from pykubelet_local_api.errors import StatusError
from pykubelet_local_api.kinds.table import STORED
from pykubelet_local_api.rest.options import read_list_options
from pykubelet_local_api.rest.reads import Page, read_list
from pykubelet_local_api.store.database import StoredKey
from pykubelet_local_api.store.store import NoFile, ObjectStore

CONFIG_MAPS = STORED["configmaps"]


@pytest.fixture
async def store() -> AsyncIterator[ObjectStore]:
    made = ObjectStore(NoFile(), SystemClock())
    async with Supervisor("test") as tasks:
        tasks.start_root("writer", made.keep_writing())
        for namespace in ("a", "b"):
            for number in range(5):
                await put(made, f"n{number}", namespace)
        yield made


async def put(store: ObjectStore, name: str, namespace: str = "a", **labels: str) -> None:
    found: dict[str, Any] = {"kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace, "labels": labels}}
    await store.write(lambda at: at.put(StoredKey("configmaps", namespace, name), found))


async def remove(store: ObjectStore, name: str, namespace: str = "a") -> None:
    await store.write(lambda at: at.remove(StoredKey("configmaps", namespace, name)))


async def listed(store: ObjectStore, namespace: str = "", **parameters: str) -> Page:
    return await read_list(
        store, CONFIG_MAPS, namespace, read_list_options(Request("GET", "/", urlencode(parameters)), is_watch=False)
    )


def names(page: Page) -> list[str]:
    return ["/".join((item["metadata"]["namespace"], item["metadata"]["name"])) for item in page.items]


async def test_a_list_has_the_version_of_the_store(store: ObjectStore) -> None:
    page = await listed(store)
    assert len(page.items) == 10
    assert page.metadata == {"resourceVersion": str(store.version)}


async def test_a_list_of_a_namespace_has_its_objects_only(store: ObjectStore) -> None:
    assert names(await listed(store, "b")) == [f"b/n{number}" for number in range(5)]


async def test_pages_are_all_of_one_version_whatever_changes_meanwhile(store: ObjectStore) -> None:
    before = names(await listed(store))
    page = await listed(store, limit="3")
    found, version = names(page), page.metadata["resourceVersion"]
    assert page.metadata["remainingItemCount"] == 7
    await remove(store, "n4")
    await put(store, "n0", "b", changed="true")
    await put(store, "zz", "b")
    while token := page.metadata.get("continue"):
        page = await listed(store, limit="3", **{"continue": token})
        assert page.metadata["resourceVersion"] == version
        assert all("changed" not in item["metadata"]["labels"] for item in page.items)
        found += names(page)
    assert found == before


async def test_a_list_that_cannot_go_on_states_how_to_get_the_rest(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = await listed(store, limit="3")
    monkeypatch.setattr("pykubelet_local_api.store.history.MAX_CHANGES", 2)
    await put(store, "zz")
    await put(store, "zz", x="1")
    await put(store, "zz", x="2")
    with pytest.raises(StatusError, match="too old to display a consistent list") as caught:
        await listed(store, limit="3", **{"continue": page.metadata["continue"]})
    assert caught.value.code == 410
    token = caught.value.status()["metadata"]["continue"]
    rest = await listed(store, **{"continue": token})
    assert names(page) + names(rest) == names(await listed(store))


async def test_a_list_from_the_cache_has_no_pages(store: ObjectStore) -> None:
    assert len((await listed(store, limit="3", resourceVersion="0")).items) == 10


async def test_an_exact_version_is_that_version(store: ObjectStore) -> None:
    version = str(store.version)
    await remove(store, "n0")
    assert len((await listed(store, resourceVersion=version, resourceVersionMatch="Exact")).items) == 10
    assert len((await listed(store, resourceVersion=version, resourceVersionMatch="NotOlderThan")).items) == 9


async def test_an_exact_version_that_is_forgotten_is_expired(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = str(store.version)
    monkeypatch.setattr("pykubelet_local_api.store.history.MAX_CHANGES", 2)
    await put(store, "more")
    await put(store, "more", x="1")
    await put(store, "more", x="2")
    with pytest.raises(StatusError, match="too old") as caught:
        await listed(store, resourceVersion=version, resourceVersionMatch="Exact")
    assert caught.value.code == 410


async def test_a_version_of_the_future_is_refused_as_too_large(store: ObjectStore) -> None:
    with pytest.raises(StatusError, match="Too large resource version") as caught:
        await listed(store, resourceVersion=str(store.version + 10))
    assert caught.value.code == 504
    assert caught.value.status()["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"


@pytest.mark.parametrize(
    "parameters",
    [
        {"limit": "x"},
        {"resourceVersion": "x"},
        {"continue": "x"},
        {"continue": "e30"},
        {"resourceVersionMatch": "Other", "resourceVersion": "1"},
        {"resourceVersionMatch": "Exact"},
        {"resourceVersionMatch": "Exact", "resourceVersion": "0"},
        {"sendInitialEvents": "true"},
    ],
)
async def test_wrong_parameters_are_refused(store: ObjectStore, parameters: dict[str, str]) -> None:
    with pytest.raises(StatusError) as caught:
        await listed(store, **parameters)
    assert caught.value.code in (400, 422)


async def test_selectors_apply_before_pages(store: ObjectStore) -> None:
    for number in range(4):
        await put(store, f"x{number}", "a", app="x")
    page = await listed(store, labelSelector="app=x", limit="3")
    assert names(page) == ["a/x0", "a/x1", "a/x2"]
    assert "remainingItemCount" not in page.metadata
    assert names(await listed(store, labelSelector="app=x", **{"continue": page.metadata["continue"]})) == ["a/x3"]
