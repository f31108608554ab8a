from hypothesis import given
from hypothesis import strategies as st

from pykubelet.base.kit.text import shorten


def test_what_is_too_long_ends_with_dots() -> None:
    assert shorten("abcdef", 6) == "abcdef"
    assert shorten("abcdefg", 6) == "abc..."


@given(st.text(max_size=50), st.integers(min_value=3, max_value=60))
def test_nothing_is_longer_than_asked(text: str, most: int) -> None:
    assert len(shorten(text, most)) <= most
    assert text.startswith(shorten(text, most).removesuffix("...")) or text == shorten(text, most)
