"""Schemas: what patches and server-side apply need to know of each type."""

from __future__ import annotations

import pytest

from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.kinds.schema import Shape, load_schemas, schema_of
from pykubelet_local_api.kinds.table import KINDS


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.resource)
def test_each_kind_has_a_schema_of_its_own_type(kind: ResourceKind) -> None:
    schema = schema_of(kind.definition)
    types = [
        (found["group"], found["version"], found["kind"]) for found in schema.raw["x-kubernetes-group-version-kind"]
    ]
    assert (kind.group, kind.version, kind.name) in types


def test_lists_have_their_keys_and_defaults() -> None:
    container = schema_of("io.k8s.api.core.v1.Container")
    ports = container.field("ports")
    assert ports is not None
    assert ports.map_keys == ("containerPort", "protocol")
    assert [ports.key_default(key) for key in ports.map_keys] == [0, "TCP"]
    assert ports.merge_key == "containerPort"
    command = container.field("command")
    assert command is not None
    assert command.is_atomic
    assert command.items.shape is Shape.STRING


def test_a_field_states_more_than_the_definition_that_it_refers_to() -> None:
    metadata = schema_of("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta")
    finalizers, owners = metadata.field("finalizers"), metadata.field("ownerReferences")
    assert finalizers is not None
    assert owners is not None
    assert finalizers.is_set
    assert owners.map_keys == ("uid",)
    assert owners.items.is_atomic


def test_every_definition_can_be_walked() -> None:
    schemas = load_schemas()
    for name in schemas.names():
        schema = schemas.of(name)
        for field in schema.properties:
            assert schema.field(field) is not None
        assert set(schema.always) <= set(schema.properties), name
        assert schema.dropped <= set(schema.properties), name
