"""What is wrong with a text that is no JSON is stated in the words of an API server, which `test_local_api_requests.py` compares."""

from __future__ import annotations

import pytest

from pykubelet_local_api.rest.json_errors import SUMMARY_BYTES, json_error, summary


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a": [1, {"b": null}]}', ""),
        ("{", "unexpected end of JSON input"),
        ('{"a": "', "unexpected end of JSON input"),
        ("{}x", "invalid character 'x' after top-level value"),
        ("a: b", "invalid character 'a' looking for beginning of value"),
        ('{"a" 1}', "invalid character '1' after object key"),
        ("{1: 2}", "invalid character '1' looking for beginning of object key string"),
        ('{"a": [1 2]}', "invalid character '2' after array element"),
        ('{"a": {"b": 1 "c"}}', "invalid character '\"' after object key:value pair"),
        ('{"]": [1, 2}', "invalid character '}' after array element"),
        ('{"a": "\\x"}', "invalid character 'x' in string escape code"),
        ('{"a": "\n"}', "invalid character '\\n' in string literal"),
        ("[" * 100_000, "exceeded max depth"),
    ],
)
def test_an_error_names_the_character_and_what_was_expected(text: str, why: str) -> None:
    assert json_error(text.encode()) == why


def test_bytes_that_are_no_text_are_shown_as_characters() -> None:
    assert json_error(b"\xff") == "invalid character 'ÿ' looking for beginning of value"


def test_a_body_is_shown_in_part() -> None:
    assert summary(b"") == "<empty>"
    assert summary(b"{}x") == "{}x"
    assert summary(b"\xff") == "ff"
    assert summary(b"{" + b"a" * 100) == "{" + "a" * (SUMMARY_BYTES - 1) + " ..."
