"""Field selectors choose what was meant, whatever the values are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.base.api.selectors import field_selector, read_field_selector


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ((), ""),
        ((("metadata.name", "web"),), "metadata.name=web"),
        ((("spec.nodeName", "n"), ("spec.driver", "d")), "spec.nodeName=n,spec.driver=d"),
        ((("spec.driver", "x,spec.pool.name!=zz"),), "spec.driver=x\\,spec.pool.name!\\=zz"),
        ((("a", "\\"),), "a=\\\\"),
    ],
)
def test_values_are_escaped(wanted: tuple[tuple[str, str], ...], text: str) -> None:
    assert field_selector(*wanted) == text


@given(
    st.lists(st.tuples(st.sampled_from(("metadata.name", "spec.driver")), st.text("ab,=!\\", max_size=8)), max_size=3)
)
def test_what_was_made_is_read(wanted: list[tuple[str, str]]) -> None:
    found = list(read_field_selector(field_selector(*wanted)))
    assert found == [(path, True, value) for path, value in wanted]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a!=None", [("a", False, "None")]),
        ("a==b,", [("a", True, "b")]),
        ("a=b,c!=d", [("a", True, "b"), ("c", False, "d")]),
    ],
)
def test_other_requirements_are_read(text: str, found: list[tuple[str, bool, str]]) -> None:
    assert list(read_field_selector(text)) == found
