"""Server-side apply and managed fields. Results and messages are those that a kube-apiserver 1.36 gave for the same writes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet_local_api.errors import StatusError
from pykubelet_local_api.kinds.decode import decode
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.kinds.schema import schema_of
from pykubelet_local_api.kinds.table import BY_TYPE
from pykubelet_local_api.objects import Json, copied
from pykubelet_local_api.patch.json_patch import merge_patch
from pykubelet_local_api.patch.managed import MAX_UPDATE_MANAGERS, MAX_VALUES, apply, record_update, with_kept_times

CONFIG_MAP = BY_TYPE["v1", "ConfigMap"]
NODE = BY_TYPE["v1", "Node"]
POD = BY_TYPE["v1", "Pod"]


def body(kind: ResourceKind = CONFIG_MAP, **more: Any) -> Json:
    """An object of a kind."""
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": {"name": "x"}} | more


class Server:
    """One object, written by several managers as the registry does it. The time is a second later with each write."""

    def __init__(self, kind: ResourceKind = CONFIG_MAP) -> None:
        self.kind = kind
        self.now = 0
        self.object: Json | None = None

    def _store(self, found: Json) -> None:
        found = decode(schema_of(self.kind.definition), found).object
        self.object = found if self.object is None else with_kept_times(self.object, found)

    def apply(self, manager: str, applied: Json, force: bool = False, subresource: str = "") -> Json:
        """A server-side apply."""
        self.now += 1
        self._store(apply(self.kind, self.object, applied, manager, self.now, force, subresource))
        assert self.object is not None
        return self.object

    def update(self, manager: str, new: Json, subresource: str = "") -> Json:
        """A write of the whole object."""
        self.now += 1
        new = decode(schema_of(self.kind.definition), new).object
        listed = record_update(self.kind, self.object, new, manager, self.now, subresource)
        metadata = {key: value for key, value in new["metadata"].items() if key != "managedFields"}
        self._store(new | {"metadata": metadata | ({"managedFields": listed} if listed is not None else {})})
        assert self.object is not None
        return self.object

    def patch(self, manager: str, patch: Json, subresource: str = "") -> Json:
        """A merge patch."""
        assert self.object is not None
        return self.update(manager, merge_patch(self.object, patch), subresource)

    def managers(self) -> dict[str, Any]:
        """The fields of each manager, by its name and operation."""
        assert self.object is not None
        listed = self.object["metadata"].get("managedFields") or []
        return {f"{entry['manager']} {entry['operation']}": entry["fieldsV1"] for entry in listed}

    def times(self) -> dict[str, str]:
        """The second of the last change of each manager; "" if it has none."""
        assert self.object is not None
        return {entry["manager"]: entry.get("time", "")[17:19] for entry in self.object["metadata"]["managedFields"]}


def conflict(server: Server, manager: str, applied: Json, subresource: str = "") -> Json:
    """The Status of an apply that conflicts."""
    with pytest.raises(StatusError) as error:
        server.apply(manager, applied, subresource=subresource)
    assert (error.value.code, error.value.reason) == (409, "Conflict")
    return error.value.status()


def test_a_new_object_has_the_fields_of_its_manager() -> None:
    server = Server(POD)
    containers = [
        {
            "name": "a",
            "image": "x",
            "env": [{"name": "E", "value": "1"}],
            "command": ["ls"],
            "ports": [{"containerPort": 80}],
        }
    ]
    server.apply("m", body(POD, spec={"containers": containers}))
    port: Json = {".": {}, "f:containerPort": {}}
    assert server.managers() == {
        "m Apply": {
            "f:spec": {
                "f:containers": {
                    'k:{"name":"a"}': {
                        ".": {},
                        "f:command": {},
                        "f:env": {'k:{"name":"E"}': {".": {}, "f:name": {}, "f:value": {}}},
                        "f:image": {},
                        "f:name": {},
                        "f:ports": {'k:{"containerPort":80,"protocol":"TCP"}': port},
                    }
                }
            }
        }
    }


def test_several_managers_own_a_value_until_one_changes_it() -> None:
    server = Server()
    server.apply("m1", body(data={"a": "1"}))
    server.apply("m2", body(data={"a": "1"}))
    assert server.managers() == {"m2 Apply": {"f:data": {"f:a": {}}}, "m1 Apply": {"f:data": {"f:a": {}}}}
    assert server.times() == {"m1": "01", "m2": ""}, "the second one changed nothing"
    assert conflict(server, "m2", body(data={"a": "2", "b": "1"})) == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": 'Apply failed with 1 conflict: conflict with "m1": .data.a',
        "reason": "Conflict",
        "details": {
            "causes": [{"reason": "FieldManagerConflict", "message": 'conflict with "m1"', "field": ".data.a"}]
        },
        "code": 409,
    }
    server.apply("m2", body(data={"a": "2", "b": "1"}), force=True)
    assert server.managers() == {"m2 Apply": {"f:data": {"f:a": {}, "f:b": {}}}}
    assert server.times() == {"m2": "04"}


def test_a_field_goes_when_its_only_manager_no_longer_applies_it() -> None:
    server = Server()
    server.apply("m1", body(data={"a": "1", "b": "1", "shared": "1"}))
    server.apply("m2", body(data={"shared": "1"}))
    server.patch("u", {"data": {"own": "1"}})
    assert server.apply("m1", body(data={"b": "1"}))["data"] == {"b": "1", "shared": "1", "own": "1"}
    assert server.apply("m1", body())["data"] == {"shared": "1", "own": "1"}
    assert server.managers() == {"m2 Apply": {"f:data": {"f:shared": {}}}, "u Update": {"f:data": {"f:own": {}}}}


def test_conflicts_with_updates_name_the_version_and_are_sorted_by_manager() -> None:
    server = Server()
    server.update("u2", body(data={"a": "1", "b": "1"}))
    server.patch("u1", {"data": {"c": "1"}})
    text = conflict(server, "m", body(data={"a": "2", "b": "2", "c": "2"}))["message"]
    assert text == (
        'Apply failed with 3 conflicts: conflicts with "u1" using v1:\n- .data.c\n'
        'conflicts with "u2" using v1:\n- .data.a\n- .data.b'
    )


def test_an_update_takes_what_it_changes_and_only_then_has_a_new_time() -> None:
    server = Server()
    server.apply("m", body(data={"a": "1", "b": "1"}))
    server.patch("u", {"data": {"a": "2"}})
    server.patch("v", {"data": {"a": "2"}})
    assert server.managers() == {"m Apply": {"f:data": {"f:b": {}}}, "u Update": {"f:data": {"f:a": {}}}}
    server.patch("u", {"data": {"c": "1"}})
    assert server.managers()["u Update"] == {"f:data": {"f:a": {}, "f:c": {}}}
    assert server.times() == {"m": "01", "u": "04"}
    server.patch("v", {"data": {"c": None, "b": None}})
    assert server.managers() == {"u Update": {"f:data": {"f:a": {}}}}


def test_an_object_without_entries_gets_one_for_all_that_was_there() -> None:
    server = Server()
    server.update("u", body(data={"a": "1", "b": "2"}))
    server.patch("u", {"metadata": {"managedFields": [{}]}})
    server.patch("u", {"data": {"c": "3"}})
    assert server.managers() == {}, "an object without entries is not followed"
    text = conflict(server, "m", body(data={"a": "9"}))["message"]
    assert text == 'Apply failed with 1 conflict: conflict with "before-first-apply" using v1: .data.a'
    server.apply("m", body(data={"a": "9"}), force=True)
    assert server.managers() == {
        "m Apply": {"f:data": {"f:a": {}}},
        "before-first-apply Update": {"f:data": {".": {}, "f:b": {}, "f:c": {}}},
    }


def test_the_number_of_updating_managers_is_bounded() -> None:
    server = Server()
    server.update("u00", body(data={"k00": "1"}))
    for i in range(1, 14):
        server.patch(f"u{i:02}", {"data": {f"k{i:02}": "1"}})
    assert len(server.managers()) == MAX_UPDATE_MANAGERS
    ancient = server.managers()["ancient-changes Update"]
    assert ancient == {"f:data": {".": {}, "f:k00": {}, "f:k01": {}, "f:k02": {}, "f:k03": {}, "f:k04": {}}}


def test_clients_may_edit_entries_but_wrong_ones_do_not_count() -> None:
    server = Server()
    server.update("u", body(data={"a": "1"}))
    entry = {
        "manager": "e",
        "operation": "Update",
        "apiVersion": "v1",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:data": {"f:a": {}}},
    }
    server.patch("u", {"metadata": {"managedFields": [entry]}})
    assert server.managers() == {"e Update": {"f:data": {"f:a": {}}}}
    wrongs: tuple[Json, ...] = ({"operation": "Zap"}, {"fieldsV1": {"zap": {}}}, {"fieldsType": ""}, {"apiVersion": ""})
    for wrong in wrongs:
        server.patch("u", {"metadata": {"managedFields": [entry | wrong]}})
        assert server.managers() == {"e Update": {"f:data": {"f:a": {}}}}


def test_a_subresource_has_its_own_entries_and_only_its_fields() -> None:
    server = Server(NODE)
    server.update("kubelet", body(NODE, spec={"unschedulable": True}))
    server.patch("kubelet", {"status": {"capacity": {"cpu": "4"}}, "spec": {"podCIDR": "x"}}, subresource="status")
    assert server.object is not None
    status = server.object["metadata"]["managedFields"][1]
    assert (status["subresource"], status["fieldsV1"]) == (
        "status",
        {"f:status": {"f:capacity": {".": {}, "f:cpu": {}}}},
    )
    text = conflict(server, "m", body(NODE, status={"capacity": {"cpu": "5"}}), subresource="status")["message"]
    assert text == (
        'Apply failed with 1 conflict: conflict with "kubelet" with subresource "status" using v1: .status.capacity.cpu'
    )
    server.apply("m", body(NODE, status={"capacity": {"cpu": "5"}}))
    assert "m Apply" not in server.managers(), "the status is not written by the object itself"


def test_kubectl_takes_over_what_its_client_side_apply_has_set() -> None:
    annotation = "kubectl.kubernetes.io/last-applied-configuration"
    before = '{"apiVersion":"v1","data":{"a":"1","b":"1"},"kind":"ConfigMap","metadata":{"name":"x"}}\n'
    server = Server()
    server.update(
        "kubectl-client-side-apply",
        body(data={"a": "1", "b": "1"}, metadata={"name": "x", "annotations": {annotation: before}}),
    )
    conflict(server, "other", body(data={"a": "5"}))
    server.patch("u", {"data": {"b": "7"}})
    text = conflict(server, "kubectl", body(data={"a": "5", "b": "6"}))["message"]
    assert text == 'Apply failed with 1 conflict: conflict with "u" using v1: .data.b'
    found = server.apply("kubectl", body(data={"a": "5"}))
    assert found["data"] == {"a": "5", "b": "7"}
    assert found["metadata"]["annotations"][annotation] == (
        '{"apiVersion":"v1","data":{"a":"5"},"kind":"ConfigMap","metadata":{"name":"x"}}\n'
    )


@pytest.mark.parametrize(
    ("applied", "code", "text"),
    [
        ({"metadata": {"name": "x"}}, 400, "invalid object type: /, Kind="),
        (body(apiVersion="v2"), 400, "invalid object type: /v2, Kind=ConfigMap"),
        (body(POD), 400, "invalid object type: /v1, Kind=Pod"),
        (body(metadata={"managedFields": []}), 400, "metadata.managedFields must be nil"),
        (body(zap=1), 500, ".zap: field not declared in schema"),
        (body(data={"a": 1}), 500, ".data.a: expected string, got &value.valueUnstructured{Value:1}"),
        (body(data=["x"]), 500, ".data: expected map, got &{[x]}"),
        (body(immutable="x"), 500, ".immutable: expected boolean, got &{x}"),
        (
            body(metadata={"name": "x", "finalizers": ["a/b", "a/b"]}),
            500, '.metadata.finalizers: duplicate entries for key [="a/b"]',
        ),
        (
            body(metadata={"name": "x", "finalizers": [None]}),
            500, ".metadata.finalizers: element 0: associative list without keys has an element that's an explicit null",
        ),
        (
            body(data="x", immutable="x"),
            500, "errors:\n  .data: expected map, got &{x}\n  .immutable: expected boolean, got &{x}",
        ),
    ],
)  # fmt: skip
def test_a_body_that_cannot_be_applied(applied: Json, code: int, text: str) -> None:
    with pytest.raises(StatusError) as error:
        Server().apply("m", applied)
    start = "failed to create typed patch object (/x; /v1, Kind=ConfigMap): " if code == 500 else ""
    assert (error.value.code, error.value.message) == (code, start + text)


def test_elements_of_lists_are_refused_by_their_keys() -> None:
    ports = [{"containerPort": 80}, {"containerPort": 80, "protocol": "TCP"}]
    with pytest.raises(StatusError) as error:
        Server(POD).apply("m", body(POD, spec={"containers": [{"name": "a", "ports": ports}, None]}))
    assert error.value.message == (
        "failed to create typed patch object (/x; /v1, Kind=Pod): errors:\n"
        '  .spec.containers[name="a"].ports: duplicate entries for key [containerPort=80,protocol="TCP"]\n'
        "  .spec.containers: element 1: associative list with keys may not have a null element"
    )


def test_elements_of_other_managers_stay_in_their_places() -> None:
    server = Server(POD)
    server.apply("m1", body(POD, spec={"containers": [{"name": name, "image": "x"} for name in "abc"]}))
    server.apply("m2", body(POD, spec={"containers": [{"name": "d"}, {"name": "b"}]}))
    assert server.object is not None
    assert [container["name"] for container in server.object["spec"]["containers"]] == ["a", "d", "b", "c"]
    server.apply("m1", body(POD, spec={"containers": [{"name": "c", "image": "x"}]}))
    assert server.object["spec"]["containers"] == [
        {"name": "d", "resources": {}},
        {"name": "b", "resources": {}},
        {"name": "c", "image": "x", "resources": {}},
    ]


def test_fields_of_large_objects_have_no_managers() -> None:
    large = {str(i): "" for i in range(MAX_VALUES)}
    server = Server()
    server.update("u", body(data=large))
    assert server.managers() == {}
    server.patch("u", {"data": {"x": "1"}})
    with pytest.raises(StatusError, match="Request entity too large: server-side apply") as error:
        server.apply("m", body(data={"a": "1"}))
    assert error.value.code == 413
    with pytest.raises(StatusError, match="Request entity too large: server-side apply"):
        Server().apply("m", body(data=large))


data = st.dictionaries(st.sampled_from("abcd"), st.sampled_from("12"), max_size=4)
writes = st.lists(
    st.tuples(st.sampled_from(["m1", "m2", "u1", "u2"]), data, st.sampled_from([[], ["k/a"], ["k/b", "k/a"]])),
    max_size=8,
)


@given(writes)
def test_what_holds_after_any_writes(found: list[tuple[str, dict[str, str], list[str]]]) -> None:
    server = Server()
    for manager, values, finalizers in found:
        written = body(metadata={"name": "x"} | ({"finalizers": finalizers} if finalizers else {})) | (
            {"data": values} if values else {}
        )
        before = copied(server.object) if server.object is not None else None
        kept = copied(before) if before is not None else None
        if manager.startswith("u"):
            after = server.update(manager, written)
            assert after.get("data", {}) == values
        else:
            after = server.apply(manager, written, force=True)
            assert values.items() <= after.get("data", {}).items()
            assert set(finalizers) <= set(after["metadata"].get("finalizers", ()))
            assert server.apply(manager, written, force=True) == after, "the same apply again changes nothing"
        assert before == kept
        owned = {key for fields in server.managers().values() for key in fields.get("f:data", {})} - {"."}
        if server.managers():  # an object without entries is not followed
            assert {key.removeprefix("f:") for key in owned} == set(after.get("data", {})), "each value has a manager"
