"""Decoding of bodies: texts and results are those that a kube-apiserver 1.36 gave for the same bodies."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet_local_api.errors import StatusError
from pykubelet_local_api.kinds.decode import (
    MAX_REMARKS,
    FieldValidation,
    check_validation,
    decode,
    decode_body,
    zero_object,
)
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.kinds.schema import schema_of
from pykubelet_local_api.kinds.table import BY_TYPE, KINDS
from pykubelet_local_api.objects import Json

POD = BY_TYPE["v1", "Pod"]
MISMATCH = "json: cannot unmarshal "
SECRET = BY_TYPE["v1", "Secret"]


def pod(container: Json | None = None, **spec: Any) -> Json:
    """The body of a pod."""
    listed = [{"name": "a", "image": "x"} | (container or {})]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "t"}, "spec": {"containers": listed} | spec}


def refused(body: Json, validation: FieldValidation = FieldValidation.STRICT, duplicates: tuple[str, ...] = ()) -> str:
    """Why a pod is refused, without the beginning that all have."""
    with pytest.raises(StatusError) as error:
        decode_body(POD, body, validation, duplicates)
    assert (error.value.code, error.value.reason) == (400, "BadRequest")
    return error.value.message.removeprefix('Pod in version "v1" cannot be handled as a Pod: ')


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (pod(hostNetwork="yes"), MISMATCH + "string into Go struct field PodSpec.spec.hostNetwork of type bool"),
        (pod({"image": 3}), MISMATCH + "number into Go struct field Container.spec.containers.image of type string"),
        (pod(containers={}), MISMATCH + "object into Go struct field PodSpec.spec.containers of type []v1.Container"),
        ({"spec": "x"}, MISMATCH + "string into Go struct field Pod.spec of type v1.PodSpec"),
        (
            pod(priority=1 << 31),
            MISMATCH + "number 2147483648 into Go struct field PodSpec.spec.priority of type int32",
        ),
        (
            pod(activeDeadlineSeconds=5.5),
            MISMATCH + "number 5.5 into Go struct field PodSpec.spec.activeDeadlineSeconds of type int64",
        ),
        (
            pod({"command": [1]}),
            MISMATCH + "number into Go struct field Container.spec.containers.command of type string",
        ),
        (
            {"metadata": {"labels": []}},
            MISMATCH + "array into Go struct field ObjectMeta.metadata.labels of type map[string]string",
        ),
        (
            pod({"resources": {"limits": []}}),
            MISMATCH
            + "array into Go struct field ResourceRequirements.spec.containers.resources.limits of type v1.ResourceList",
        ),
        (
            pod({"resources": {"limits": {"cpu": "1x"}}}),
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        (
            {"metadata": {"creationTimestamp": "now"}},
            'parsing time "now" as "2006-01-02T15:04:05Z07:00": cannot parse "now" as "2006"',
        ),
    ],
)
def test_a_wrong_type_is_refused_in_the_words_of_the_api_server(body: Any, text: str) -> None:
    assert refused(body, FieldValidation.IGNORE) == text


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "0000-01-01T00:00:00Z"])
def test_a_time_outside_of_all_years_is_refused(text: str) -> None:
    assert refused({"metadata": {"creationTimestamp": text}}).startswith(f'parsing time "{text}" as')


def test_an_object_of_another_kind_is_refused() -> None:
    assert refused({"kind": "ConfigMap"}) == (
        'ConfigMap in version "v1" cannot be handled as a Pod: converting (v1.ConfigMap) to (core.Pod): unknown conversion'
    )
    why = 'no kind "Pod" is registered for version "v9" in scheme "pkg/api/legacyscheme/scheme.go:30"'
    assert refused({"apiVersion": "v9"}) == f'Pod in version "v9" cannot be handled as a Pod: {why}'


def test_data_of_a_secret_must_be_base64() -> None:
    with pytest.raises(StatusError, match="illegal base64 data at input byte 0"):
        decode_body(SECRET, {"data": {"a": "%%%"}}, FieldValidation.WARN)
    assert decode_body(SECRET, {"data": {"a": "eA=="}}, FieldValidation.WARN).object["data"] == {"a": "eA=="}


def test_unknown_and_duplicate_fields_by_directive() -> None:
    body = {"metadata": {"name": "t"}, "spec": {"zap": 1, "containers": [{"name": "a", "image": "y"}]}}
    duplicates = ("metadata.name", "spec.containers[0].image")
    listed = (
        'duplicate field "metadata.name"',
        'unknown field "spec.zap"',
        'duplicate field "spec.containers[0].image"',
    )
    assert refused(body, FieldValidation.STRICT, duplicates) == f"strict decoding error: {', '.join(listed)}"
    warned = decode_body(POD, body, FieldValidation.WARN, duplicates)
    assert warned.remarks == listed
    assert "zap" not in warned.object["spec"]
    ignored = decode_body(POD, body, FieldValidation.IGNORE, duplicates)
    assert (ignored.object, ignored.remarks) == (warned.object, ())


def test_names_are_case_sensitive() -> None:
    assert refused(pod(HostNetwork=True)) == 'strict decoding error: unknown field "spec.HostNetwork"'


def test_remarks_are_bounded() -> None:
    assert refused(pod(None, **{f"f{i}": 1 for i in range(1000)})).count("unknown field") == MAX_REMARKS


def test_the_directive_is_checked() -> None:
    assert check_validation("", "CreateOptions") is FieldValidation.WARN
    with pytest.raises(StatusError) as error:
        check_validation("Foo", "CreateOptions")
    assert error.value.code == 422
    assert error.value.message == (
        'CreateOptions.meta.k8s.io "" is invalid: fieldValidation: Unsupported value: "Foo": '
        'supported values: "", "Ignore", "Strict", "Warn"'
    )


def test_values_are_written_as_the_api_server_writes_them() -> None:
    body = pod(
        {"command": [], "resources": {"requests": {"cpu": "1000m", "memory": 1048576}}, "env": [{"name": "A", "value": ""}]},
        hostNetwork=False, nodeName="", volumes=[], hostAliases=None, enableServiceLinks=False,
    )  # fmt: skip
    found = decode_body(POD, body, FieldValidation.STRICT).object
    resources = {"requests": {"cpu": "1", "memory": "1048576"}}
    assert found["spec"] == {
        "containers": [{"name": "a", "image": "x", "resources": resources, "env": [{"name": "A"}]}],
        "enableServiceLinks": False,
    }
    assert found["status"] == {}


def test_what_is_always_written_is_there() -> None:
    assert zero_object(schema_of("io.k8s.api.rbac.v1.ClusterRole")) == {"metadata": {}, "rules": None}
    node = zero_object(schema_of("io.k8s.api.core.v1.Node"))
    assert node["status"]["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 0}}
    event = decode(schema_of("io.k8s.api.core.v1.Event"), {"involvedObject": {"namespace": "default"}}).object
    assert (event["firstTimestamp"], event["source"], event["reportingComponent"]) == (None, {}, "")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["metadata", "spec", "containers", "name", "labels", "resources", "limits", "env", "data", "status", "x"]
    ), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(st.sampled_from(KINDS), json_values)
def test_any_body_is_decoded_or_refused_and_what_was_decoded_stays(kind: ResourceKind, body: Any) -> None:
    try:
        found = decode_body(kind, body, FieldValidation.WARN).object
    except StatusError as error:
        assert error.code == 400
        return
    again = decode_body(kind, found, FieldValidation.STRICT)
    assert again.object == found
