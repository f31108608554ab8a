from __future__ import annotations

import pytest

from pykubelet.config.errors import ConfigError
from pykubelet.config.text import parse_document


def test_yaml_scalars_are_those_of_the_reference() -> None:
    document = parse_document(
        b"""
a: yes
b: off
c: 0x1F
d: 010
e: 1_000
f: 1:30
g: 2020-01-01
h: ~
i: 'yes'
j: 1.5
l: 0b101
m: {x: [1, "2"]}
1: number
true: bool
""",
        "f",
    )
    assert document == {
        "a": True,
        "b": False,
        "c": 31,
        "d": 8,
        "e": 1000,
        "f": "1:30",
        "g": "2020-01-01",
        "h": None,
        "i": "yes",
        "j": 1.5,
        "l": 5,
        "m": {"x": [1, "2"]},
        "1": "number",
        "true": "bool",
    }


def test_a_number_too_long_to_be_one_stays_text() -> None:
    digits = "9" * 5000
    assert parse_document(f"a: {digits}".encode(), "f") == {"a": digits}
    assert parse_document(f'{{"a": {digits}}}'.encode(), "f") == {"a": digits}


def test_anchors_and_merge_keys_work() -> None:
    document = parse_document(b"base: &b {x: 1, z: 2}\nthere: {<<: *b, z: 3}\nlist: {<<: [*b, {z: 4}]}\n", "f")
    assert document["there"] == {"x": 1, "z": 3}
    assert document["list"] == {"x": 1, "z": 2}


def test_json_is_read_as_json() -> None:
    assert parse_document(b'{"a":\t{"b": [1, true, null]}}', "f") == {"a": {"b": [1, True, None]}}
    assert parse_document(b"{a: b}", "f") == {"a": "b"}


@pytest.mark.parametrize(
    ("data", "problems"),
    [
        (b"", ["f: the file is empty: must hold a YAML or JSON object"]),
        (b" \n", ["f: the file is empty: must hold a YAML or JSON object"]),
        (b"# only a comment\n", ["f: invalid document: must be a map of fields, is empty"]),
        (b"- a\n", ["f: invalid document: must be a map of fields, is a list"]),
        (b"text\n", ["f: invalid document: must be a map of fields, is the value 'text'"]),
        (b"a: 1\na: 2\n", ["f: a: duplicate field: must be given once (line 2)"]),
        (b"a: {b: 1, b: 2}\n", ["f: a.b: duplicate field: must be given once (line 1)"]),
        (b'{"a": 1, "a": 2}', ["f: a: duplicate field: must be given once"]),
        (b"? [a]\n: b\n", ["f: a key that is no string (line 1)"]),
        (b"a: .inf\n", ['f: a: ".inf" is not a JSON number: quote it if it is text (line 1)']),
        (b"a: 1\n---\nb: 2\n", ["f: more than one document: must be one"]),
        (b"a: \xff\n", ["f: not UTF-8 text: invalid start byte at byte 3"]),
        (b"a: *nope\n", ['f: a: undefined alias "nope" (line 1)']),
        (b"a: &x [*x]\n", ["f: a[0]: an alias that contains itself (line 1)"]),
    ],
)
def test_what_is_no_usable_document_is_named(data: bytes, problems: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        parse_document(data, "f")
    assert list(error.value.problems) == problems


@pytest.mark.parametrize("data", [b"a: [1\n", b"\tx: 1\n"])
def test_broken_yaml_is_named_with_its_file(data: bytes) -> None:
    with pytest.raises(ConfigError) as error:
        parse_document(data, "/etc/k.yaml")
    assert str(error.value).startswith("/etc/k.yaml: not valid YAML")
