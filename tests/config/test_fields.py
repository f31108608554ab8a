"""Each field of the table: is known, has the default, keeps or replaces a zero, refuses wrong types."""

from __future__ import annotations

import json
from typing import Any

import pytest
from config.fields_table import rows

from pykubelet.config.combine import File, FlagInput, combine, read_file
from pykubelet.config.errors import ConfigError
from pykubelet.config.kubelet import KubeletConfiguration
from pykubelet.config.schema import check, complete, field_paths, get_path, set_path, to_plain

ROWS = rows()

WRONG: dict[str, tuple[Any, ...]] = {
    "bool": ("yes please", 1, [], {}),
    "str": (5, True, [], {}),
    "int32": ("5", True, 1.5, 2**31, -(2**31) - 1, []),
    "int64": ("5", False, 2**63, 10**40, {}),
    "uint32": (-1, 2**32, "x"),
    "float": ("0.5", True, []),
    "duration": ("10", "5 minutes", True, "", []),
    "quantity": ("10 MB", True, [], {}),
    "list": ("a", {}, 5),
    "map": ("a=b", [], 5),
}
ZERO: dict[str, Any] = {"bool": False, "str": "", "duration": "0s", "quantity": "0", "float": 0.0}
GIVEN: dict[str, Any] = {"bool": True, "str": "x", "duration": "7s", "quantity": "7Mi", "float": 0.5}


def _document(path: str, value: Any) -> dict[str, Any]:
    document: dict[str, Any] = {}
    set_path(document, path, value)
    return document


def test_the_configuration_has_exactly_the_fields_of_the_table() -> None:
    assert sorted(field_paths()) == sorted(path for path, *_ in ROWS)


@pytest.mark.parametrize(("path", "kind", "pointer", "default"), ROWS, ids=[row[0] for row in ROWS])
def test_a_field_has_its_default(path: str, kind: str, pointer: bool, default: Any) -> None:
    assert get_path(complete({}), path) == default
    assert get_path(to_plain(KubeletConfiguration()), path) == default


@pytest.mark.parametrize(("path", "kind", "pointer", "default"), ROWS, ids=[row[0] for row in ROWS])
def test_a_zero_is_kept_by_pointers_and_means_the_default_elsewhere(
    path: str, kind: str, pointer: bool, default: Any
) -> None:
    zero = [] if kind == "list" else {} if kind == "map" else ZERO.get(kind, 0)
    kept = pointer or kind in ("list", "map")
    assert get_path(complete(_document(path, zero)), path) == (zero if kept or not default else default)


@pytest.mark.parametrize(("path", "kind", "pointer", "default"), ROWS, ids=[row[0] for row in ROWS])
def test_null_means_not_given_except_for_durations_with_a_default(
    path: str, kind: str, pointer: bool, default: Any
) -> None:
    document = _document(path, None)
    assert check(document, is_patch=True) == []
    if kind != "duration" or pointer or path == "logging.flushFrequency":
        assert check(document) == []
    else:
        assert check(document)[0].text.startswith(f"{path}: invalid value null: must be a duration")
    assert get_path(complete(document), path) == default


@pytest.mark.parametrize(
    ("document", "field", "filled"),
    [
        ({"clusterDNS": [None, "1.1.1.1"]}, "clusterDNS", ["", "1.1.1.1"]),
        ({"tlsCurvePreferences": [None]}, "tlsCurvePreferences", [0]),
        ({"featureGates": {"MemoryQoS": None}}, "featureGates", {"MemoryQoS": False}),
        ({"kubeReserved": {"cpu": None}}, "kubeReserved", {"cpu": ""}),
        ({"staticPodURLHeader": {"a": None, "b": [None]}}, "staticPodURLHeader", {"a": [], "b": [""]}),
        ({"registerWithTaints": [None]}, "registerWithTaints", [{}]),
        (
            {"reservedMemory": [{"numaNode": None, "limits": {"memory": None}}]},
            "reservedMemory",
            [{"limits": {"memory": "0"}}],
        ),
    ],
)
def test_null_inside_a_list_or_map_is_the_zero_value(document: dict[str, Any], field: str, filled: Any) -> None:
    assert check(document) == []
    assert complete(document)[field] == filled


@pytest.mark.parametrize(("path", "kind", "pointer", "default"), ROWS, ids=[row[0] for row in ROWS])
def test_a_wrong_type_names_path_value_and_what_is_allowed(path: str, kind: str, pointer: bool, default: Any) -> None:
    for wrong in WRONG[kind]:
        problems = check(_document(path, wrong))
        assert len(problems) == 1, wrong
        text = problems[0].text
        assert text.startswith(f"{path}: invalid value {json.dumps(wrong, separators=(',', ':'))}: must be ")


@pytest.mark.parametrize(("path", "kind", "pointer", "default"), ROWS, ids=[row[0] for row in ROWS])
def test_a_value_of_the_right_type_is_taken(path: str, kind: str, pointer: bool, default: Any) -> None:
    value: Any = {"list": [], "map": {}}.get(kind, GIVEN.get(kind, 7))
    document = _document(path, value)
    assert check(document) == []
    assert get_path(complete(document), path) == value


@pytest.mark.parametrize(
    ("document", "messages"),
    [
        ({"authentication": 5}, ["authentication: invalid value 5: must be a map"]),
        ({"clusterDNS": ["1.2.3.4", 5]}, ["clusterDNS[1]: invalid value 5: must be a string"]),
        (
            {"evictionHard": {"memory.available": 5}},
            ["evictionHard[memory.available]: invalid value 5: must be a string"],
        ),
        ({"featureGates": {"A": "true"}}, ['featureGates[A]: invalid value "true": must be true or false']),
        (
            {"reservedMemory": [{"numaNode": 0, "limits": {"memory": "lots"}}]},
            [
                'reservedMemory[0].limits[memory]: invalid value "lots": must be a quantity such as "500Mi", "2" or "100m"'
            ],
        ),
        (
            {"maxPods": "x", "port": True, "nope": 1},
            [
                'maxPods: invalid value "x": must be an integer from -2147483648 to 2147483647',
                "port: invalid value true: must be an integer from -2147483648 to 2147483647",
            ],
        ),
    ],
)
def test_what_is_wrong_inside_is_named_with_its_path(document: dict[str, Any], messages: list[str]) -> None:
    assert [problem.text for problem in check(document)] == messages


@pytest.mark.parametrize(
    ("document", "remarks"),
    [
        ({"maxPod": 5}, ['maxPod: unknown field, ignored; did you mean "maxPods"?']),
        ({"maxpods": 5}, ['maxpods: unknown field, ignored; did you mean "maxPods"?']),
        ({"clientCAFile": "x"}, ['clientCAFile: unknown field, ignored; did you mean "authentication.x509.clientCAFile"?']),
        ({"zzzzqqqq": None}, ["zzzzqqqq: unknown field, ignored"]),
        ({"memorySwap": {"qqq": 1}}, ["memorySwap.qqq: unknown field, ignored; known are swapBehavior"]),
        (
            {"logging": {"vmodule": [{"filePattern": "a", "verbosty": 3}]}},
            ['logging.vmodule[0].verbosty: unknown field, ignored; did you mean "logging.vmodule[0].verbosity"?'],
        ),
        (
            {"reservedMemory": [{"numaNode": 1}, {"numNode": 2, "x": {"maxPods": 1}}]},
            [
                'reservedMemory[1].numNode: unknown field, ignored; did you mean "reservedMemory[1].numaNode"?',
                "reservedMemory[1].x: unknown field, ignored; known are numaNode, limits",
            ],
        ),
        ({"evictionHard": {"any.name": "5%"}, "featureGates": {"Any": True}, "maxPods": "x"}, []),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_patch", [False, True], ids=["main file", "drop-in"])
def test_unknown_fields_are_remarked_with_path_and_nearest_name(
    document: dict[str, Any], remarks: list[str], is_patch: bool
) -> None:
    document = {**document, "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}
    try:
        _, found = read_file(File("/k", json.dumps(document).encode()), is_patch)
    except ConfigError as error:
        found = error.remarks
    assert [(remark.origin, remark.text) for remark in found] == [("/k", text) for text in remarks]


def test_lists_maps_and_nested_values_are_built() -> None:
    text = b"""
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
staticPodURLHeader: {Accept: [a, b]}
tlsCurvePreferences: [29, 23]
registerWithTaints: [{key: k, value: v, effect: NoSchedule}]
reservedMemory: [{numaNode: 1, limits: {memory: 1Gi, hugepages-2Mi: 4}}]
shutdownGracePeriodByPodPriority: [{priority: 100, shutdownGracePeriodSeconds: 30}]
logging: {flushFrequency: 2000000000, vmodule: [{filePattern: 'a*', verbosity: 3}]}
userNamespaces: {idsPerPod: 131072}
maxPods: 20.0
"""
    config = combine(File("/k", text), (), FlagInput(), None).config
    assert config.staticPodURLHeader == {"Accept": ("a", "b")}
    assert config.tlsCurvePreferences == (29, 23)
    assert config.registerWithTaints[0].effect == "NoSchedule"
    assert config.reservedMemory[0].limits == {"memory": "1Gi", "hugepages-2Mi": "4"}
    assert config.shutdownGracePeriodByPodPriority[0].shutdownGracePeriodSeconds == 30
    assert config.logging.flushFrequency.s == 2
    assert config.logging.vmodule[0].verbosity == 3
    assert config.maxPods == 20


def test_the_plain_form_reads_back_as_the_same_configuration() -> None:
    config = combine(None, (), FlagInput(), None).config
    header = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}
    data = json.dumps({**header, **to_plain(config)}).encode()
    assert read_file(File("/k", data)) == (to_plain(config), ())
    assert to_plain(combine(File("/k", data), (), FlagInput(), None).config) == {
        **to_plain(config),
        "evictionHard": {},
    }


def test_a_bad_field_in_a_file_names_the_file() -> None:
    data = b"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: many\n"
    with pytest.raises(ConfigError) as error:
        combine(File("/etc/k.yaml", data), (), FlagInput(), None)
    assert error.value.problems == (
        '/etc/k.yaml: maxPods: invalid value "many": must be an integer from -2147483648 to 2147483647',
    )
