import time
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cost import pause_limit_s

from pykubelet.base.model import arguments
from pykubelet.base.model.arguments import TooLongError

MOST = 1 << 20
expand = partial(arguments.expand, most=MOST)
expand_all_known = partial(arguments.expand_all_known, most=MOST)
VARIABLES = {"A": "1", "B": "two words", "EMPTY": "", "NEST": "$(A)", "WITH SPACE": "s"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("$(A)", "1"),
        ("x$(A)y$(B)z", "x1ytwo wordsz"),
        ("$(A)$(A)", "11"),
        ("$(EMPTY)|", "|"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$$$$(A)", "$$(A)"),
        ("$(UNKNOWN)", "$(UNKNOWN)"),
        ("$(NEST)", "$(A)"),
        ("$(WITH SPACE)", "s"),
        ("$A ${A} $", "$A ${A} $"),
        ("$(A", "$(A"),
        ("$(A$(A)", "$(A$(A)"),
        ("$()", "$()"),
        ("100$", "100$"),
        ("$$", "$"),
        ("$(\n)", "$(\n)"),
    ],
)
def test_references_are_replaced_as_documented(text: str, expected: str) -> None:
    assert expand(text, VARIABLES) == expected


def test_the_first_mapping_that_knows_the_name_wins() -> None:
    assert expand("$(A) $(Z)", {"A": "own"}, {"A": "service", "Z": "z"}) == "own z"


@given(st.text(alphabet="$()AB x"))
def test_nothing_defined_only_unescapes(text: str) -> None:
    """With no variables at all, text changes only where `$$` becomes `$`."""
    assert expand(text).count("$") + text.count("$$") >= text.count("$")
    if "$$" not in text:
        assert expand(text) == text


@given(st.text(alphabet="$()AB x"))
def test_escaping_every_dollar_gives_the_text_back(text: str) -> None:
    assert expand(text.replace("$", "$$"), VARIABLES) == text


def reference_expand(text: str, variables: dict[str, str]) -> str:
    """The documented algorithm, one character at a time."""
    out, at = "", 0
    while at < len(text):
        if text[at] != "$" or at + 1 == len(text):
            out, at = out + text[at], at + 1
        elif text[at + 1] == "$":
            out, at = out + "$", at + 2
        elif text[at + 1] == "(" and ")" in text[at:]:
            end = text.index(")", at)
            name = text[at + 2 : end]
            out, at = out + variables.get(name, f"$({name})"), end + 1
        else:
            out, at = out + text[at : at + 2], at + 2
    return out


@given(st.text(alphabet="$()AB x"), st.dictionaries(st.sampled_from(["A", "B", "AB", ""]), st.text(max_size=3)))
def test_agrees_with_a_scanner(text: str, variables: dict[str, str]) -> None:
    assert expand(text, variables) == reference_expand(text, variables)


def test_strict_expansion_names_what_is_unknown_or_empty() -> None:
    assert expand_all_known("a/$(A)/$$(A)", VARIABLES) == ("a/1/$(A)", ())
    assert expand_all_known("$(Z)$(EMPTY)$(Y)", VARIABLES)[1] == ("EMPTY", "Y", "Z")


@pytest.mark.parametrize(
    "text",
    [
        "$(" * 500_000,
        "$" * 999_999,
        "$(A" * 330_000,
        "$(" * 499_999 + ")",
        "$$(" * 330_000,
        "$()" * 330_000,
        "$(A)x$(" * 120_000,
    ],
)
def test_a_text_is_read_once(text: str) -> None:
    began = time.thread_time()
    expanded = expand(text, VARIABLES)
    assert len(expanded) <= len(text)
    assert time.thread_time() - began < 20 * pause_limit_s()


def test_what_becomes_too_long_is_refused_while_it_is_built() -> None:
    variables = {"A": "a" * 1000}
    assert len(expand("$(A)" * 1000, variables)) == 1_000_000
    with pytest.raises(TooLongError, match="more than 999999 characters"):
        arguments.expand("$(A)" * 1000, variables, most=999_999)
    with pytest.raises(TooLongError, match="more than 4095 characters"):
        arguments.expand_all_known("$(A)" * 5, variables, most=4095)
    with pytest.raises(TooLongError):
        arguments.expand("a" * 11, variables, most=10)
