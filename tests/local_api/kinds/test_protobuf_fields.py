"""What protobuf bodies become has the names of JSON: a field of another name would be dropped as unknown."""

from __future__ import annotations

from pykubelet_local_api.kinds.protobuf_fields import MESSAGES
from pykubelet_local_api.kinds.schema import load_schemas

#: Messages that JSON does not have as objects.
NOT_IN_JSON = {"Time", "MicroTime", "Quantity", "IntOrString", "FieldsV1", "RawExtension"}
#: Of alpha features of 1.36, which later releases name otherwise.
ALPHA = {"core.v1.NodeAllocatableResourceClaimStatus.resources", "resource.v1.Device.nodeAllocatableResourceMappings"}


def test_every_field_has_its_name_in_json() -> None:
    schemas = load_schemas()
    definitions = {".".join(name.rsplit(".", 3)[1:]): schemas.of(name) for name in schemas.names()}
    unknown = {
        f"{message}.{name}"
        for message, text in MESSAGES.items()
        if message in definitions and message.rpartition(".")[2] not in NOT_IN_JSON
        for name, _, kind in (field.split(" ", 2) for field in text.split(", "))
        if not kind.startswith("+") and definitions[message].field(name) is None
    }
    assert unknown - ALPHA == set()
