"""The registry records who manages which fields, and what a dry run answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from pykubelet.base.kit.clock import SystemClock
from pykubelet.base.kit.supervise import Supervisor
from pykubelet_local_api.kinds.table import BY_TYPE
from pykubelet_local_api.objects import Json, copied
from pykubelet_local_api.registry import ObjectRegistry
from pykubelet_local_api.store.store import NoFile, ObjectStore
from pykubelet_local_api.view import CONTROL
from pykubelet_local_api.write_options import WriteOptions

NAMESPACE = BY_TYPE["v1", "Namespace"]
CONFIG_MAP = BY_TYPE["v1", "ConfigMap"]
SERVICE = BY_TYPE["v1", "Service"]
KUBECTL = WriteOptions(CONTROL, "kubectl")


@pytest.fixture
async def registry() -> AsyncIterator[ObjectRegistry]:
    store = ObjectStore(NoFile(), SystemClock())
    async with Supervisor("test") as tasks:
        tasks.start_root("writer", store.keep_writing())
        made = ObjectRegistry(store)
        await made.create(NAMESPACE, "", {"metadata": {"name": "a"}}, WriteOptions(CONTROL))
        yield made


def managers(found: Json) -> dict[str, Any]:
    """The fields of each manager."""
    return {entry["manager"]: entry["fieldsV1"] for entry in found["metadata"].get("managedFields", ())}


async def test_a_writer_manages_what_it_wrote_and_the_defaults_of_it(registry: ObjectRegistry) -> None:
    body = {"metadata": {"name": "x"}, "spec": {"ports": [{"port": 80}]}}
    found = await registry.create(SERVICE, "a", body, KUBECTL)
    assert found["spec"]["clusterIP"]
    fields = managers(found)["kubectl"]["f:spec"]
    port: Json = {".": {}, "f:port": {}, "f:protocol": {}, "f:targetPort": {}}
    assert fields["f:ports"] == {".": {}, 'k:{"port":80,"protocol":"TCP"}': port}
    assert not {"f:clusterIP", "f:ipFamilies"} & fields.keys(), "the server chose them"


async def test_a_change_takes_fields_and_a_write_without_one_changes_nothing(registry: ObjectRegistry) -> None:
    created = await registry.create(CONFIG_MAP, "a", {"metadata": {"name": "x"}, "data": {"a": "1", "b": "1"}}, KUBECTL)
    other = WriteOptions(CONTROL, "other")
    changed, _ = await registry.update(
        CONFIG_MAP, "a", "x", lambda old: (old or {}) | {"data": {"a": "2", "b": "1"}}, other
    )
    assert managers(changed) == {
        "kubectl": {"f:data": {".": {}, "f:b": {}}},
        "other": {"f:data": {"f:a": {}}},
    }
    same, _ = await registry.update(CONFIG_MAP, "a", "x", lambda old: old or {}, KUBECTL)
    assert same == changed
    assert changed["metadata"]["resourceVersion"] != created["metadata"]["resourceVersion"]


async def test_a_dry_run_answers_with_the_version_that_there_is(registry: ObjectRegistry) -> None:
    dry = WriteOptions(CONTROL, "kubectl", is_dry_run=True)
    body = {"metadata": {"name": "x"}, "data": {"a": "1"}}
    assert "resourceVersion" not in (await registry.create(CONFIG_MAP, "a", copied(body), dry))["metadata"]
    created = await registry.create(CONFIG_MAP, "a", body, KUBECTL)
    tried, _ = await registry.update(CONFIG_MAP, "a", "x", lambda old: (old or {}) | {"data": {"a": "2"}}, dry)
    assert tried["data"] == {"a": "2"}
    assert tried["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]
