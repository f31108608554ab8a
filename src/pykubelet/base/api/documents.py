"""Parses YAML and JSON text into plain values: dicts with text keys, lists, str, int, float, bool and None. Pure.

The agent's only reader of YAML: manifests, the configuration, drop-ins and kubeconfig files go through it. Scalars are
resolved as the reference does (sigs.k8s.io/yaml over go-yaml v2, YAML 1.1): `yes`, `on` and `y` are booleans, `010` is 8;
dates and base-60 numbers (`22:22`) are text. An explicit tag that is not a scalar type of JSON is an error. A duplicate key and a
second document are noted (`read_document`) or errors (`load_document`).

A double-quoted scalar may have all escapes of go-yaml v2, and `\\/` of YAML 1.2. The C parser lacks `\\'`: a text with this escape is
read by the slower parser in Python (`_lenient`).

The value is built from the parser's events, without recursion, so that size and depth are checked before memory is used.
Aliases and merge keys count with their expanded size. The YAML parser is imported on first use.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from pykubelet.base.api.document import (
    LONG_KEY,
    MAX_DEPTH,
    MAX_DUPLICATES,
    MAX_KEY,
    MAX_NODES,
    TOO_DEEP,
    TOO_MANY,
    Document,
    DocumentError,
    Place,
    duplicate_error,
)
from pykubelet.base.api.document_json import NotJSON, read_json

#: The most characters of a number. Longer ones, which are out of the range of every field, become text and are refused there.
MAX_DIGITS = 100
#: The most %TAG directives. The parser compares each one with all others.
MAX_DIRECTIVES = 10
#: So many documents are read on the event loop. Each needs a parser of its own.
FEW_DOCUMENTS = 20
#: The most characters of a text that the parser in Python reads: about three seconds.
MAX_LENIENT = 1 << 20

_UNKNOWN_ESCAPE = "found unknown escape character"
_TAG = "tag:yaml.org,2002:"
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
}
_NOT_IN_JSON = re.compile(r"\.(nan|NaN|NAN)|[-+]?\.(inf|Inf|INF)")
_INTEGER = re.compile(r"[-+]?(0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO]?[0-7]+|0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_OCTAL = re.compile(r"([-+]?)0([0-7]+)")
_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
    "null": (type(None),),
}


def load_document(data: bytes) -> Any:
    """Parse the only document in `data`; None if it is empty. Raises DocumentError, also for duplicate keys and a second document."""
    document = read_document(data)
    for place in document.duplicates:
        raise duplicate_error(place)
    if document.more:
        raise DocumentError("more than one document: must be one")
    return document.value


def read_document(data: bytes) -> Document:
    """Parse the first document in `data`, as the reference does: None if it is empty. Raises DocumentError.

    Of the values of a duplicate key, the last one counts in YAML; in JSON they are merged.
    """
    return _load_text(_text(data))


#: The lines that begin a document, or end one; an empty document; and what may precede a document's first line.
_MARKER = re.compile(r"^(---|\.\.\.)(?=[ \t\r\n]|\Z)", re.MULTILINE)
_EMPTY = re.compile(r"(?:---)?[ \t\r]*(?:#[^\n]*)?(?:\n[ \t\r]*(?:#[^\n]*)?)*")
_PREFIX = re.compile(r"(?:[ \t\r]*(?:#[^\n]*)?\n|%[^\n]*\n)*")


def read_documents(data: bytes) -> Iterator[Document | DocumentError]:
    """Parse the documents in `data` one by one, without the empty ones. An error is about one document; the others follow.

    The limit of values is that of all together: behind a document that exceeds it nothing follows.
    """
    try:
        text = _text(data)
    except DocumentError as error:
        yield error
        return
    left, line, counted = MAX_NODES, 0, 0
    for start, end in _parts(text):
        if _EMPTY.fullmatch(text, start, end):
            continue
        line, counted = line + text.count("\n", counted, start), start
        try:
            document = _load_text(text[start:end])
        except DocumentError as error:
            yield error.below(line)
            continue
        left -= document.nodes
        if left < 0:
            yield DocumentError(TOO_MANY)
            return
        if document.value is not None:
            yield document.below(line) if line and document.duplicates else document


def _parts(text: str) -> Iterator[tuple[int, int]]:
    """Where each document begins and ends. In no YAML value does a line begin like the markers of documents."""
    start = 0
    for marker in _MARKER.finditer(text):
        at = marker.start()
        if marker[1] == "...":
            yield start, at
            start = marker.end()
            start = (text.find("\n", start) + 1) or len(text)
        elif (prefix := _PREFIX.match(text, start)) is None or prefix.end() < at:
            yield start, at
            start = at
    yield start, len(text)


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentError(f"not UTF-8 text: {error.reason} at byte {error.start}") from error


def _load_text(text: str) -> Document:
    if text.lstrip()[:1] in ("{", "["):
        try:
            return read_json(text, _number)
        except NotJSON:
            pass  # YAML in flow style also begins like this, and its parser has the better error messages
    return _load_yaml(text)


def may_be_slow(data: bytes) -> bool:
    """Whether `data` may take longer than its size suggests: it has aliases, which expand, many documents, or needs the slower parser."""
    return (b"&" in data and b"*" in data) or b"\\'" in data or data.count(b"\n---") > FEW_DOCUMENTS


_BAD_KEY = "a key that is no string"


def _shown(key: str) -> str:
    return key if len(key) <= MAX_KEY else key[:MAX_KEY] + "..."


def _load_yaml(text: str) -> Document:
    import yaml  # takes 10 ms, which `--help` and `--version` should not spend

    if text.count("\n%TAG") > MAX_DIRECTIVES:
        raise DocumentError(f"too many %TAG directives: at most {MAX_DIRECTIVES} are allowed")
    try:
        return _read_events(yaml, getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text))
    except _UnknownEscape:
        if "\\'" not in text or len(text) > MAX_LENIENT:
            raise
    return _read_events(yaml, _lenient(yaml)(text))


class _UnknownEscape(DocumentError):
    """The parser does not know an escape of a double-quoted scalar."""


@cache
def _lenient(yaml: Any) -> Any:
    """The parser in Python, with the escape that the C parser lacks."""
    escapes = {**yaml.SafeLoader.ESCAPE_REPLACEMENTS, "'": "'"}
    return type("_LenientLoader", (yaml.SafeLoader,), {"ESCAPE_REPLACEMENTS": escapes})


def _read_events(yaml: Any, loader: Any) -> Document:
    first = Document(None)
    try:
        while (event := loader.get_event()) is not None:
            if not isinstance(event, yaml.DocumentStartEvent):
                continue
            if first.value is not None:
                mark = event.start_mark
                if _has_value(yaml, loader):
                    return first._replace(more=mark.line + 1 if mark else 1)
                continue
            builder = _Builder(yaml)
            first = Document(builder.build(loader), tuple(builder.duplicates), nodes=builder.nodes)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = error.problem or error.context or "syntax error"
        kind = _UnknownEscape if problem.startswith(_UNKNOWN_ESCAPE) else DocumentError
        raise kind(f"not valid YAML: {problem}", mark.line + 1 if mark else 0) from error
    except yaml.YAMLError as error:
        raise DocumentError(f"not valid YAML: {str(error).splitlines()[0]}") from error
    finally:
        loader.dispose()
    return first


def _has_value(yaml: Any, loader: Any) -> bool:
    """Whether the document whose start event was just read has a value, be it valid or not."""
    try:
        event = loader.peek_event()
    except yaml.YAMLError:
        return True
    return not isinstance(event, yaml.ScalarEvent) or resolve_scalar(event.value) is not None or not event.implicit[0]


class _Open:
    """A map or list whose end was not read yet. `key`: that of the map's next value; `step`: its path step in the parent."""

    __slots__ = ("anchor", "height", "is_key", "key", "merges", "nodes_before", "step", "value")

    def __init__(self, value: Any, anchor: str | None, nodes_before: int, step: str) -> None:
        self.value = value
        self.anchor = anchor
        self.nodes_before = nodes_before
        self.step = step
        self.height = 1
        self.key: str | None = None
        self.is_key = isinstance(value, dict)
        self.merges: list[Any] = []


#: The steps of a path to the values of Secrets.
_OF_SECRETS = (".data", ".stringData")
#: Stands for the key `<<` until its value is read. No text of a document can equal it.
_MERGE = "\ud800<<"


class _Anchored:
    __slots__ = ("height", "nodes", "value")

    def __init__(self, value: Any, nodes: int, height: int) -> None:
        self.value = value
        self.nodes = nodes
        self.height = height


class _Builder:
    """Builds one document from the parser's events."""

    def __init__(self, yaml: Any) -> None:
        self._yaml = yaml
        self._stack: list[_Open] = []
        self._anchors: dict[str, _Anchored | None] = {}  # None: its value is not complete yet
        self.nodes = 0
        self._root: Any = None
        self.duplicates: list[Place] = []

    def build(self, loader: Any) -> Any:
        """Read the rest of the document whose start event was just read, and return its value."""
        yaml = self._yaml
        while True:
            event = loader.get_event()
            if isinstance(event, yaml.ScalarEvent):
                self._add_scalar(event)
            elif isinstance(event, yaml.AliasEvent):
                self._add_alias(event)
            elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
                self._open(event, {} if isinstance(event, yaml.MappingStartEvent) else [])
            elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
                self._close(event)
            else:  # the end of the document
                return self._root

    def _add_scalar(self, event: Any) -> None:
        is_key = bool(self._stack) and self._stack[-1].is_key
        plain = event.implicit[0] and event.tag is None
        if is_key and plain and event.value == "<<":
            self._stack[-1].key, self._stack[-1].is_key = _MERGE, False
            return
        if event.tag in (None, "!"):
            value = self._resolved(event.value, event) if plain else event.value
        else:
            value = self._tagged(event)
        if event.anchor is not None:
            self._anchors[event.anchor] = _Anchored(value, 1, 0)
        self._put(value, 1, 0, event)

    def _resolved(self, text: str, event: Any) -> Any:
        if _NOT_IN_JSON.fullmatch(text):
            raise self._error(f'"{text}" is not a JSON number: quote it if it is text', event)
        return resolve_scalar(text)

    def _tagged(self, event: Any) -> Any:
        name = event.tag.removeprefix(_TAG)
        kind = _TYPES.get(name)
        if kind is None or name == event.tag:
            raise self._error(f"the tag{self._quoted(event.tag)} is not supported", event)
        if name == "str":
            return event.value
        value: Any = self._resolved(event.value, event)
        if not isinstance(value, kind) or (isinstance(value, bool) and name != "bool"):
            raise self._error(f"the value is no {name}, as its tag requires", event)
        return float(value) if name == "float" and isinstance(value, int) else value

    def _add_alias(self, event: Any) -> None:
        if event.anchor not in self._anchors:
            raise self._error(f"undefined alias{self._quoted(event.anchor)}", event)
        anchored = self._anchors[event.anchor]
        if anchored is None:
            raise self._error("an alias that contains itself", event)
        self._put(anchored.value, anchored.nodes, anchored.height, event)

    def _open(self, event: Any, value: dict[str, Any] | list[Any]) -> None:
        kind = "map" if isinstance(value, dict) else "seq"
        if event.tag not in (None, "!", _TAG + kind):
            raise self._error(f"the tag{self._quoted(event.tag)} is not supported", event)
        if self._stack and self._stack[-1].is_key:
            raise self._error(_BAD_KEY, event)
        if len(self._stack) >= MAX_DEPTH:
            raise self._error(TOO_DEEP, event, with_path=False)
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        self._stack.append(_Open(value, event.anchor, self.nodes, self._step()))

    def _close(self, event: Any) -> None:
        done = self._stack.pop()
        for part in done.merges:
            for key, value in part.items():
                done.value.setdefault(key, value)
        nodes = self.nodes - done.nodes_before + 1
        if done.anchor is not None:
            self._anchors[done.anchor] = _Anchored(done.value, nodes, done.height)
        self._put(done.value, 1, done.height, event)

    def _put(self, value: Any, nodes: int, height: int, event: Any) -> None:
        """Add `value` to the open map or list. `nodes`: how many values it counts as; `height`: its nested levels."""
        self.nodes += nodes
        if self.nodes > MAX_NODES:
            raise self._error(TOO_MANY, event, with_path=False)
        if not self._stack:
            self._root = value
            return
        top = self._stack[-1]
        if top.is_key:
            self._put_key(top, value, event)
            return
        if len(self._stack) + height > MAX_DEPTH:
            raise self._error(TOO_DEEP, event, with_path=False)
        if top.key is None:
            top.value.append(value)
            top.height = max(top.height, height + 1)
        elif top.key is _MERGE:
            self._put_merge(top, value, event)
            top.height = max(top.height, height)
        else:
            top.value[top.key] = value
            top.height = max(top.height, height + 1)
        if isinstance(top.value, dict):
            top.is_key = True

    def _put_key(self, top: _Open, key: Any, event: Any) -> None:
        text = _key_text(key)
        if text is None:
            raise self._error(_BAD_KEY, event)
        if len(text) > MAX_KEY:
            raise self._error(LONG_KEY, event)
        top.key, top.is_key = text, False
        if text in top.value and len(self.duplicates) < MAX_DUPLICATES:
            self.duplicates.append(Place(self._path(), event.start_mark.line + 1))

    def _put_merge(self, top: _Open, value: Any, event: Any) -> None:
        """Keep the maps of a merge key. Their keys count again, because each one is copied."""
        parts = value if isinstance(value, list) else [value]
        if not all(isinstance(part, dict) for part in parts):
            raise self._error("a merge key (<<) takes a map or a list of maps", event)
        self.nodes += sum(map(len, parts))
        if self.nodes > MAX_NODES:
            raise self._error(TOO_MANY, event, with_path=False)
        top.merges += parts

    def _quoted(self, text: str) -> str:
        """The text in quotes; nothing where it may be a part of a password that should have quotes."""
        steps = [level.step for level in self._stack] + [self._step()]
        return "" if any(step in _OF_SECRETS for step in steps) else f' "{_shown(text)}"'

    def _step(self) -> str:
        """The path step of the next value in the innermost open map or list."""
        if not self._stack:
            return ""
        top = self._stack[-1]
        if isinstance(top.value, list):
            return f"[{len(top.value)}]"
        return "." + ("<<" if top.key is None or top.key is _MERGE else top.key)

    def _path(self) -> str:
        """The path of the value that is read next, or of the open map whose next key is read."""
        steps = [level.step for level in self._stack]
        if self._stack and not self._stack[-1].is_key:
            steps.append(self._step())
        return "".join(steps).removeprefix(".")

    def _error(self, reason: str, event: Any, with_path: bool = True) -> DocumentError:
        return DocumentError(reason, event.start_mark.line + 1, self._path() if with_path else "")


def _key_text(key: Any) -> str | None:
    """The key as text, as in JSON; None if it cannot be a key."""
    if isinstance(key, str):
        return key
    if isinstance(key, bool):
        return "true" if key else "false"
    return str(key) if isinstance(key, int | float) else None


def resolve_scalar(text: str) -> str | int | float | bool | None:
    """The value of a plain YAML scalar."""
    first = text[:1]
    if first.isalpha() or first in ("", "~"):
        return _WORDS.get(text, text) if len(text) < 6 else text
    return _number(text) if first in "+-.0123456789" else text


def _number(text: str) -> str | int | float:
    """The number that `text` spells. If it is not a number, or out of every range, the text itself."""
    bare = text if text.startswith(".") else text.replace("_", "")
    if len(bare) > MAX_DIGITS:
        return text
    if _INTEGER.fullmatch(bare):
        if octal := _OCTAL.fullmatch(bare):
            bare = f"{octal[1]}0o{octal[2]}"
        return int(bare, 0)
    if _FLOAT.fullmatch(bare):
        value = float(bare)
        return value if math.isfinite(value) else text
    return text
