"""Reads label selectors, and matches labels. Pure; the cost of reading is linear in the text.

Owns the grammar and its errors, whose texts are the API server's. Source: Kubernetes documentation, "Labels and Selectors", "API".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from pykubelet.base.api.labels import label_key_errors, label_value_errors
from pykubelet.base.kit.text import parse_integer
from pykubelet.base.kit.values import Value
from pykubelet.base.manifests.validation.errors import Errors, invalid, invalids

#: An operator, or a word; in front of it any spaces. The longest operator counts.
_TOKEN = re.compile(r"(==|=|!=|!|[(),<>])|([^ \t\r\n=!,()<>]+)")
_OPERATORS = frozenset({"=", "==", "!=", ">", "<", "in", "notin"})
_BINARY = "in, notin, =, ==, !=, gt, lt"
_END = ""


class LabelRequirement(Value):
    """One requirement. `operator`: one of the binary ones, `exists` or `!`. `bound`: the number of `>` and `<`."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()
    bound: int = 0

    def fits(self, labels: Mapping[str, str]) -> bool:
        """Whether labels meet it."""
        value = labels.get(self.key)
        match self.operator:
            case "exists":
                return value is not None
            case "!":
                return value is None
            case "in" | "=" | "==":
                return value in self.values
            case "notin" | "!=":
                return value not in self.values
        number = None if value is None else parse_integer(value)
        return number is not None and (number > self.bound if self.operator == ">" else number < self.bound)


def read_label_selector(text: str) -> list[LabelRequirement]:
    """The requirements of a selector. Raises ValueError with the API server's text."""
    reader = _Reader(text)
    found: list[LabelRequirement] = []
    while (token := reader.peek()) != _END:
        if not (token == "!" or reader.is_word()):
            raise ValueError(f"found '{token}', expected: !, identifier, or 'end of string'")
        try:
            found.append(_requirement(reader))
        except ValueError as error:
            raise ValueError(f"unable to parse requirement: {error}") from error
        token = reader.take()
        if token == _END:
            break
        if token != ",":
            raise ValueError(f"found '{token}', expected: ',' or 'end of string'")
        if not (reader.peek() == "!" or reader.is_word()):
            raise ValueError(f"found '{reader.peek()}', expected: identifier after ','")
    return found


class _Reader:
    """The tokens of a selector, one after the other; at the end there are empty ones. `last`: what was taken, and whether it `was_word`."""

    def __init__(self, text: str) -> None:
        self._tokens: Iterator[re.Match[str]] = _TOKEN.finditer(text.partition("\0")[0].rstrip(" \t\r\n"))
        self._next: re.Match[str] | None = next(self._tokens, None)
        self.last, self.was_word = "", False

    def peek(self) -> str:
        """The next token."""
        return (self._next[1] or self._next[2]) if self._next is not None else _END

    def is_word(self) -> bool:
        """Whether the next token is a key or a value, and no operator."""
        return self._next is not None and self._next[2] is not None

    def take(self) -> str:
        """Take the next token."""
        self.last, self.was_word = self.peek(), self.is_word()
        self._next = next(self._tokens, None)
        return self.last

    def take_word(self) -> str:
        """Take the next token, which must be a key or a value."""
        if not self.is_word():
            raise ValueError(f"found '{self.peek()}', expected: identifier")
        return self.take()


def _requirement(reader: _Reader) -> LabelRequirement:
    is_absent = reader.peek() == "!"
    if is_absent:
        reader.take()
    key = reader.take_word()
    _check(key, label_key_errors, "<nil>")
    if is_absent or reader.peek() in (_END, ","):
        return LabelRequirement(key, "!" if is_absent else "exists")
    operator = reader.take()
    if operator not in _OPERATORS:
        raise ValueError(f"found '{operator}', expected: {_BINARY}")
    if operator in ("in", "notin"):
        values = _values(reader)
    else:
        values = [""] if reader.peek() in (_END, ",") else [reader.take_word()]
    return _checked(key, operator, sorted(set(values)))


def _checked(key: str, operator: str, values: list[str]) -> LabelRequirement:
    wrong: Errors = []
    bound = 0
    if operator in "<>":
        number = parse_integer(values[0].removeprefix("+"))
        if number is None:
            wrong.append(invalid("values[0]", values[0], "for 'Gt', 'Lt' operators, the value must be an integer"))
        bound = number or 0
    for place, value in enumerate(values):
        why = label_value_errors(value)
        wrong += invalids(f"values[{place}][{key}]", value, ["; ".join(why)] if why else [])
    if wrong:
        texts = [str(error) for error in wrong]
        raise ValueError(texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]")
    return LabelRequirement(key, operator, frozenset(values), bound)


def _values(reader: _Reader) -> list[str]:
    """The values in parentheses. An empty one beside a comma is the empty text."""
    if reader.take() != "(":
        raise ValueError(f"found '{reader.last}' expected: '('")
    if not reader.is_word() and reader.peek() not in (",", ")"):
        raise ValueError(f"found '{reader.peek()}', expected: ',', ')' or identifier")
    values, value, token = [], "", ""
    while (token := reader.take()) != ")":
        if token == ",":
            values.append(value)
            value = ""
        elif reader.was_word:
            value = token
            if reader.peek() not in (",", ")"):
                raise ValueError(f"found '{reader.peek()}', expected: ',' or ')'")
        else:
            raise ValueError(f"found '{token}', expected: ',', or identifier")
    return [*values, value]


def _check(text: str, errors: Callable[[str], list[str]], path: str) -> None:
    if why := errors(text):
        raise ValueError(str(invalid(path, text, "; ".join(why))))
