from __future__ import annotations

from pykubelet.base.api import core
from pykubelet.base.manifests.strict import huge_numbers, unknown_fields, without_unknown


def test_unknown_fields_are_named_with_their_paths() -> None:
    pod = {
        "metadata": {"managedFields": [{"anything": 1}], "labels": {"any": "key"}, "nam": "x"},
        "spec": {
            "containers": [{"name": "c"}, {"image": "x", "resources": {"limits": {"a/b": 1}, "limit": {}}}],
            "affinity": {"nodeAffinity": {"required": {}}},
            "volumes": "not a list",
        },
        "extra": None,
    }
    assert [(one.path, one.near) for one in unknown_fields(core.Pod, pod)] == [
        ("metadata.nam", "name"),
        ("spec.containers[1].resources.limit", "limits"),
        ("spec.affinity.nodeAffinity.required", None),
        ("extra", None),
    ]
    assert without_unknown(core.Pod, pod) == {
        "metadata": {"labels": {"any": "key"}},
        "spec": {
            "containers": [{"name": "c"}, {"image": "x", "resources": {"limits": {"a/b": 1}}}],
            "affinity": {"nodeAffinity": {}},
            "volumes": "not a list",
        },
    }


def test_names_that_python_keeps_for_itself_are_known() -> None:
    assert unknown_fields(core.ListMeta, {"continue": "x", "continue_": "y"})[0].path == "continue_"


def test_numbers_that_do_not_fit_are_found() -> None:
    assert huge_numbers({"a": [1, 1 << 63], "b": {"c": -(1 << 63)}, "d": 1e300, "e": True}) == ["a[1]"]
