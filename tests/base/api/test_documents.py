"""The one reader of YAML and JSON: what scalars mean, and what is refused before it can cost memory or time."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pykubelet.base.api.document import MAX_DEPTH, MAX_DUPLICATES, MAX_KEY, MAX_NODES, DocumentError
from pykubelet.base.api.documents import MAX_DIGITS, MAX_LENIENT, load_document, read_document

MERGES = b"a0: &a0 {" + b",".join(b"k%d: 1" % i for i in range(10)) + b"}\n"
MERGES += b"".join(b"a%d: &a%d {<<: [%s]}\n" % (i, i, b",".join([b"*a%d" % (i - 1)] * 10)) for i in range(1, 9))
ALIASES = b"a0: &a0 [%s]\n" % b",".join([b"x"] * 9)
ALIASES += b"".join(b"a%d: &a%d [%s]\n" % (i, i, b",".join([b"*a%d" % (i - 1)] * 9)) for i in range(1, 9))
CHAIN = b"a0: &a0 [1]\n" + b"".join(b"a%d: &a%d [*a%d]\n" % (i, i, i - 1) for i in range(1, MAX_DEPTH + 10))


def refusal(data: bytes) -> tuple[str, str]:
    with pytest.raises(DocumentError) as error:
        load_document(data)
    return error.value.path, error.value.reason


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("22:22", "22:22"),
        ("12:30:00", "12:30:00"),
        ("190:20:30.15", "190:20:30.15"),
        ("yes", True),
        ("Off", False),
        ("y", True),
        ("N", False),
        ("tRue", "tRue"),
        ("~", None),
        ("", None),
        ("Null", None),
        ("2026-01-01", "2026-01-01"),
        ("2001-12-14t21:59:43.10-05:00", "2001-12-14t21:59:43.10-05:00"),
        ("010", 8),
        ("-0o17", -15),
        ("08", 8.0),
        ("0x1F", 31),
        ("-0b11", -3),
        ("1_000", 1000),
        ("+5", 5),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("1e999", "1e999"),
        ("0x_", "0x_"),
        ("0b_", "0b_"),
        ("_1", "_1"),
        ("+", "+"),
        ("-.", "-."),
        ("=", "="),
        ("१", "१"),
        ("9" * MAX_DIGITS, int("9" * MAX_DIGITS)),
        ("9" * (MAX_DIGITS + 1), "9" * (MAX_DIGITS + 1)),
        ("9" * 5000, "9" * 5000),
        ("'yes'", "yes"),
        ('"010"', "010"),
        ("! 1", "1"),
        ("!!str 22", "22"),
        ("!!int 0x10", 16),
        ("!!float 1", 1.0),
        ("!!bool yes", True),
        ("!!null ~", None),
    ],
)
def test_a_scalar_means_what_it_means_to_the_reference(text: str, value: Any) -> None:
    found = load_document(f"a: {text}".encode())["a"]
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("data", "path", "reason"),
    [
        (b"a: !!int x", "a", "the value is no int, as its tag requires (line 1)"),
        (b"a: !!float abc", "a", "the value is no float, as its tag requires (line 1)"),
        (b"a: [1, !!int ]", "a[1]", "the value is no int, as its tag requires (line 1)"),
        (b"a:\n- b: !!bool foo", "a[0].b", "the value is no bool, as its tag requires (line 2)"),
        (b"a: !!timestamp foo", "a", 'the tag "tag:yaml.org,2002:timestamp" is not supported (line 1)'),
        (b"a: !!python/name:os.system x", "a", 'the tag "tag:yaml.org,2002:python/name:os.system" is not supported (line 1)'),
        (b"a: !!set {b}", "a", 'the tag "tag:yaml.org,2002:set" is not supported (line 1)'),
        (b"a: !x [b]", "a", 'the tag "!x" is not supported (line 1)'),
        (b"a: .nan", "a", '".nan" is not a JSON number: quote it if it is text (line 1)'),
        (b"a: {b: 1,\n b: 2}", "a.b", "duplicate field: must be given once (line 2)"),
        (b'{"a": {"b": 1, "b": 2}}', "a.b", "duplicate field: must be given once"),
        (b"yes: 1\ntrue: 2", "true", "duplicate field: must be given once (line 2)"),
        (b"a: {[1]: 2}", "a", "a key that is no string (line 1)"),
        (b"~: 1", "", "a key that is no string (line 1)"),
        (b"a: &a [*a]", "a[0]", "an alias that contains itself (line 1)"),
        (b"a: *b", "a", 'undefined alias "b" (line 1)'),
        (b"a: {<<: 1}", "a.<<", "a merge key (<<) takes a map or a list of maps (line 1)"),
        (b"a: 1\n---\nb: 1", "", "more than one document: must be one"),
        (b"a: [b", "", "not valid YAML: did not find expected ',' or ']' (line 2)"),
        (b"a: \x01", "", "not valid YAML: unacceptable character #x0001: control characters are not allowed"),
        (b"\xff", "", "not UTF-8 text: invalid start byte at byte 0"),
        (b"? " + b"k" * (MAX_KEY + 1) + b"\n: 1", "", f"a key is too long: at most {MAX_KEY} characters are allowed (line 1)"),
        (b'{"' + b"k" * (MAX_KEY + 1) + b'": 1}', "", f"a key is too long: at most {MAX_KEY} characters are allowed"),
        (b"".join(b"\n%%TAG !%d! x" % i for i in range(100_000)) + b"\n---\na: 1", "", "too many %TAG directives: at most 10 are allowed"),
    ],
)  # fmt: skip
def test_what_is_refused_is_named_with_its_place(data: bytes, path: str, reason: str) -> None:
    assert refusal(data) == (path, reason)


ESCAPES = {
    "0": "\0",
    "a": "\a",
    "b": "\b",
    "t": "\t",
    "\t": "\t",
    "n": "\n",
    "v": "\v",
    "f": "\f",
    "r": "\r",
    "e": "\x1b",
    " ": " ",
    '"': '"',
    "'": "'",
    "/": "/",
    "\\": "\\",
    "N": "\x85",
    "_": "\xa0",
    "L": "\u2028",
    "P": "\u2029",
    "x41": "A",
    "u0041": "A",
    "U0001F600": "\U0001f600",
}


@pytest.mark.parametrize("beside", ["", "\\'"], ids=["C parser", "other parser"])
@pytest.mark.parametrize("escape", ESCAPES)
def test_a_double_quoted_scalar_has_the_escapes_of_the_reference(escape: str, beside: str) -> None:
    assert load_document(f'a: "x\\{escape}y{beside}"'.encode())["a"] == f"x{ESCAPES[escape]}y{beside[1:]}"


@pytest.mark.parametrize(
    "text",
    ['"\\z"', '"\\z\\\'"', '"\\\'\\z"', '"' + "\\'" * (MAX_LENIENT // 2) + '"'],
    ids=["z", "z first", "z last", "too long"],
)
def test_other_escapes_are_refused(text: str) -> None:
    path, reason = refusal(f"a: {text}".encode())
    assert (
        path == ""
        and reason.startswith("not valid YAML: found unknown escape character")
        and reason.endswith("(line 1)")
    )


EXAMPLES = sorted(Path(__file__).parents[3].glob("examples/**/*.yaml"))


@pytest.mark.parametrize("file", EXAMPLES, ids=[file.stem for file in EXAMPLES])
def test_an_escaped_quote_changes_nothing_else(file: Path) -> None:
    data = file.read_bytes()
    first = data.index(b"metadata:")
    found = read_document(data[:first] + b'quoted: "\\\'"\n' + data[first:])
    assert found.value.pop("quoted") == "'"
    assert (found.value, bool(found.more)) == (read_document(data).value, bool(read_document(data).more))


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 100_000,
        b"[" * 50_000 + b"]" * 50_000,
        b'{"a":' * 100_000,
        b'{"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b"{a: " * 100_000,
        b"- " * 100_000,
        b"".join(b" " * i + b"a:\n" for i in range(3_000)),
        CHAIN,
        b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
    ],
    ids=[
        "open lists",
        "lists",
        "open JSON maps",
        "JSON lists",
        "flow maps",
        "block lists",
        "block maps",
        "aliases",
        "one more",
    ],
)
def test_deep_nesting_is_refused(data: bytes) -> None:
    path, reason = refusal(data)
    assert path == "" and reason.startswith(f"nested too deeply: at most {MAX_DEPTH} levels are allowed")


def test_the_deepest_document_that_is_allowed() -> None:
    assert load_document(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH) != []
    assert load_document(b'{"a":' * MAX_DEPTH + b"1" + b"}" * MAX_DEPTH) != {}


@pytest.mark.parametrize(
    "data",
    [
        MERGES,
        ALIASES,
        b"- a\n" * (MAX_NODES + 1),
        b'{"a": [' + b"0," * MAX_NODES + b"0]}",
    ],
    ids=["merge keys", "aliases", "YAML", "JSON"],
)
def test_too_many_values_are_refused(data: bytes) -> None:
    path, reason = refusal(data)
    assert path == "" and reason.startswith(f"too many values: at most {MAX_NODES} are allowed")


@pytest.mark.parametrize(
    ("data", "value", "duplicates", "more"),
    [
        (b"a: 1\nb: 2\na: 3\n", {"a": 3, "b": 2}, [("a", 3)], 0),
        (b"a: {b: [{c: 1, d: 2}, {c: 3, c: 4}]}\na: {e: 5}\n", {"a": {"e": 5}}, [("a.b[1].c", 1), ("a", 2)], 0),
        (b"a: 1\na:\n", {"a": None}, [("a", 2)], 0),
        (b"yes: 1\ntrue: 2\n", {"true": 2}, [("true", 2)], 0),
        (b"a: 1\n---\nb: 2\n", {"a": 1}, [], 2),
        (b"---\na: 1\n...\n---\n[broken\n", {"a": 1}, [], 4),
        (b"a: 1\n---\n# nothing\n---\n", {"a": 1}, [], 0),
        (b"---\n---\na: 1\n", {"a": 1}, [], 0),
        # what Go's decoder makes of JSON: values are read over the earlier ones
        (b'{"a": 1, "b": {"c": 2, "c": 3}, "a": 4}', {"a": 4, "b": {"c": 3}}, [("a", 0), ("b.c", 0)], 0),
        (b'{"a": {"b": {"x": 1}, "c": 2}, "a": {"b": {"y": 3}}}', {"a": {"b": {"x": 1, "y": 3}, "c": 2}}, [("a", 0)], 0),
        (b'{"a": [{"b": 1}, {"b": 2}], "a": [{"c": 3}]}', {"a": [{"b": 1, "c": 3}]}, [("a", 0)], 0),
        (b'{"a": [1], "a": [2, 3], "a": null}', {"a": [2, 3]}, [("a", 0)], 0),
        (b'{"a": [{"b": 1, "b": 2}]}', {"a": [{"b": 2}]}, [("a[0].b", 0)], 0),
    ],
)  # fmt: skip
def test_what_is_written_twice_is_noted_and_read_as_the_reference_reads_it(
    data: bytes, value: Any, duplicates: list[tuple[str, int]], more: int
) -> None:
    found = read_document(data)
    assert (found.value, [tuple(place) for place in found.duplicates], found.more) == (value, duplicates, more)
    with pytest.raises(DocumentError) if duplicates or more else nullcontext():
        load_document(data)


@pytest.mark.parametrize("data", [b"a: 1\n" * 5000, b"{" + b'"a": {"b": [1]},' * 5000 + b'"a": 1}'])
def test_the_notes_about_duplicates_are_few(data: bytes) -> None:
    assert 1 <= len(read_document(data).duplicates) <= MAX_DUPLICATES


def test_aliases_and_merge_keys_mean_what_they_stand_for() -> None:
    document = load_document(
        b"x: &x {a: 1, b: {c: 2}}\ny: &n 5\nz: [*x, *n]\nm: {b: own, <<: *x}\nl: {<<: [{a: first}, *x], d: 3}\n*n : key"
    )
    assert document["z"] == [{"a": 1, "b": {"c": 2}}, 5]
    assert document["m"] == {"a": 1, "b": "own"}
    assert document["l"] == {"a": "first", "b": {"c": 2}, "d": 3}
    assert document["5"] == "key"


def test_keys_are_text() -> None:
    assert load_document(b"1: a\nyes: b\n1.5: c\n'<<': d") == {"1": "a", "true": "b", "1.5": "c", "<<": "d"}


plain = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False)
trees = st.recursive(
    plain | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)


@settings(deadline=None)
@given(st.dictionaries(st.text(), trees))
def test_json_is_read_as_json(document: dict[str, Any]) -> None:
    assert load_document(json.dumps(document).encode()) == document


SCRAPS = [
    "&a ",
    "*a",
    "<<: ",
    "!!int ",
    "!!str ",
    "? ",
    ": ",
    "- ",
    "{",
    "}",
    "[",
    "]",
    ",",
    "\n",
    " ",
    "k",
    "1",
    "'",
    '"',
    "\\'",
    ">\n",
    "---\n",
]


@settings(max_examples=400, deadline=None)
@given(
    st.binary(max_size=60) | st.lists(st.sampled_from(SCRAPS), max_size=30).map(lambda parts: "".join(parts).encode())
)
def test_any_text_is_a_value_or_an_error(data: bytes) -> None:
    try:
        value = load_document(data)
    except DocumentError as error:
        assert str(error)
    else:
        json.dumps(value, allow_nan=False)
