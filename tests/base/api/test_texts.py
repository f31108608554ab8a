"""Text that nothing on a host can use."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.base.api import core
from pykubelet.base.api.codec import from_object
from pykubelet.base.api.texts import NUL, SURROGATE, unusable_text


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ({"a": ["x", {"b": "y\0"}]}, ("a[1].b", NUL)),
        ({"a": ["x", {"b": "\ud800"}]}, ("a[1].b", SURROGATE)),
        ({"a\0": 1}, ("a?", NUL)),
        ({"\udc80": 1}, ("?", SURROGATE)),
        ({"a": "\\u0000", "b": ["\\", 1, None, 2.5, True]}, None),
        ({"a": "\U0001f600"}, None),
        ("", None),
    ],
)
def test_the_first_text_is_named_with_its_path(value: object, found: tuple[str, str] | None) -> None:
    assert unusable_text(value) == found


def test_fields_have_their_names_in_the_api() -> None:
    volumes = [{"name": "a", "hostPath": {"path": "/x"}}, {"name": "b", "nfs": {"server": "s", "path": "/x\0y"}}]
    spec = from_object(core.PodSpec, {"containers": [], "volumes": volumes})
    assert unusable_text(spec) == ("volumes[1].nfs.path", NUL)
    mounts = [{"name": "a", "mountPath": "/a", "subPathExpr": "\0"}]
    spec = from_object(core.PodSpec, {"containers": [{"name": "c", "volumeMounts": mounts}]})
    assert unusable_text(spec) == ("containers[0].volumeMounts[0].subPathExpr", NUL)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(st.characters(codec=None), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(values)
def test_what_passes_can_be_encoded_and_has_no_nul(value: Any) -> None:
    if unusable_text(value) is None:
        assert b"\0" not in "".join(_texts_of(value)).encode()


def _texts_of(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for item in (*value, *value.values()) for text in _texts_of(item)]
    return [text for item in value for text in _texts_of(item)] if isinstance(value, list) else []
