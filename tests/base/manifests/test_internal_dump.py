"""The structs of the UID's dump have all fields of the API: one that is left out would give static pods another UID than the kubelet's."""

from __future__ import annotations

import pytest

from pykubelet.base.api import core
from pykubelet.base.manifests.internal_dump import _IN_POD_SECURITY, internal_structs

STRUCTS = internal_structs()
#: Structs with the fields of another one, which has them in JSON too, have no counterpart of their own; nor has the status of a manifest.
PARTS = frozenset({"core.EphemeralContainerCommon", "core.VolumeSource", "core.ProbeHandler", "core.PodStatus"})
#: Fields of the API that have another place in the internal version, or none.
MOVED = {
    "core.PodSpec": {*_IN_POD_SECURITY, "serviceAccount"},
    "v1.ObjectMeta": set[str](),
}
#: Fields of the internal version that the generated structs leave out, or have elsewhere.
ADDED = {
    "v1.ObjectMeta": {"managedFields"},
    "core.PodSecurityContext": set(_IN_POD_SECURITY),
}


def json_names(struct: str) -> set[str]:
    """Of a struct's fields, with those of the structs that JSON has in it."""
    names: set[str] = set()
    for field in STRUCTS[struct]:
        names |= {field.json} if field.json else json_names(field.type.lstrip("*"))
    return names


@pytest.mark.parametrize("struct", sorted(STRUCTS.keys() - PARTS))
def test_the_dump_has_every_field_of_the_api(struct: str) -> None:
    generated = getattr(core, struct.rpartition(".")[2], None)
    assert generated is not None, "no struct of the API has this name"
    fields = set(generated.__struct_encode_fields__)
    assert json_names(struct) - ADDED.get(struct, set()) == fields - MOVED.get(struct, set())


def test_every_struct_that_a_field_refers_to_is_there() -> None:
    """But for those of the status, which is empty in a manifest."""
    kinds = {field.type.lstrip("*[]") for name in STRUCTS.keys() - PARTS for field in STRUCTS[name]}
    named = {kind for kind in kinds if isinstance(getattr(core, kind.rpartition(".")[2], None), type)}
    assert sorted(named - STRUCTS.keys() - {"resource.Quantity", "v1.Time"}) == []
