"""Parses YAML and JSON text into plain values: dicts with text keys, lists, str, int, float, bool and None. Pure.

The agent's only reader of YAML: manifests, the configuration, drop-ins and kubeconfig files go through it. Scalars are
resolved as the reference does (sigs.k8s.io/yaml over go-yaml v2, YAML 1.1): `yes`, `on` and `y` are booleans, `010` is 8;
dates and base-60 numbers (`22:22`) are text. A duplicate key, a second document and an explicit tag that is not a scalar
type of JSON are errors.

The value is built from the parser's events, without recursion, so that size and depth are checked before memory is used.
Aliases and merge keys count with their expanded size. The YAML parser is imported on first use.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

#: The most values of a document, with aliases and merge keys expanded. A manifest has a few hundred.
MAX_NODES = 500_000
#: The most nested levels of maps and lists. The deepest field of a Pod is at about level 15.
MAX_DEPTH = 100
#: The most characters of a key. Label and annotation keys have at most 317.
MAX_KEY = 1024
#: The most characters of a number. Longer ones, which are out of the range of every field, become text and are refused there.
MAX_DIGITS = 100
#: The most %TAG directives. The parser compares each one with all others.
MAX_DIRECTIVES = 10

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


class DocumentError(ValueError):
    """The text is not a single valid YAML or JSON document. `path`: of the field; "" if the whole document is wrong."""

    def __init__(self, reason: str, line: int = 0, path: str = "") -> None:
        self.reason = f"{reason} (line {line})" if line else reason
        self.path = path
        super().__init__(f"{path}: {self.reason}" if path else self.reason)


def load_document(data: bytes) -> Any:
    """Parse the only document in `data`; None if it is empty. Raises DocumentError."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentError(f"not UTF-8 text: {error.reason} at byte {error.start}") from error
    if text.lstrip()[:1] == "{":
        try:
            return _load_json(text)
        except _NotJSON:
            pass  # YAML in flow style also begins with a brace, and its parser has the better error messages
    return _load_yaml(text)


def may_expand(data: bytes) -> bool:
    """Whether the document may contain aliases: then the size of its text does not limit its expanded size."""
    return b"&" in data and b"*" in data


class _NotJSON(ValueError):
    """The text is not JSON."""


def _load_json(text: str) -> Any:
    import json

    try:
        value = json.loads(
            text,
            object_pairs_hook=_json_object,
            parse_int=_number,
            parse_float=_number,
            parse_constant=_no_json_constant,
        )
    except DocumentError:
        raise
    except RecursionError as error:
        raise DocumentError(_TOO_DEEP) from error
    except ValueError as error:
        raise _NotJSON from error
    _check_size(value)
    return value


def _json_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise DocumentError(_DUPLICATE, path=_shown(key))
            seen.add(key)
    if any(len(key) > MAX_KEY for key in found):
        raise DocumentError(_LONG_KEY)
    return found


def _no_json_constant(name: str) -> None:
    raise _NotJSON(name)


def _check_size(value: Any) -> None:
    """Raise DocumentError if the value is nested too deeply or has too many values. For values without aliases."""
    count = 0
    depth = 0
    level = [value]
    while level:
        depth += 1
        if depth > MAX_DEPTH + 1:
            raise DocumentError(_TOO_DEEP)
        count += len(level)
        if count > MAX_NODES:
            raise DocumentError(_TOO_MANY)
        level = [item for node in level if isinstance(node, dict | list) for item in _items(node)]


def _items(node: dict[str, Any] | list[Any]) -> Iterator[Any]:
    return iter(node.values()) if isinstance(node, dict) else iter(node)


_TOO_DEEP = f"nested too deeply: at most {MAX_DEPTH} levels are allowed"
_TOO_MANY = f"too many values: at most {MAX_NODES} are allowed, aliases and merge keys expanded"
_LONG_KEY = f"a key is too long: at most {MAX_KEY} characters are allowed"
_DUPLICATE = "duplicate field: must be given once"
_BAD_KEY = "a key that is no string"


def _shown(key: str) -> str:
    return key if len(key) <= MAX_KEY else key[:MAX_KEY] + "..."


def _load_yaml(text: str) -> Any:
    import yaml  # takes 10 ms, which `--help` and `--version` should not spend

    if text.count("\n%TAG") > MAX_DIRECTIVES:
        raise DocumentError(f"too many %TAG directives: at most {MAX_DIRECTIVES} are allowed")
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
    documents: list[Any] = []
    try:
        while (event := loader.get_event()) is not None:
            if not isinstance(event, yaml.DocumentStartEvent):
                continue
            value = _Builder(yaml).build(loader)
            if value is not None:
                documents.append(value)
            if len(documents) > 1:
                raise DocumentError("more than one document: must be one")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = error.problem or error.context or "syntax error"
        raise DocumentError(f"not valid YAML: {problem}", mark.line + 1 if mark else 0) from error
    except yaml.YAMLError as error:
        raise DocumentError(f"not valid YAML: {str(error).splitlines()[0]}") from error
    finally:
        loader.dispose()
    return documents[0] if documents else None


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
        self._nodes = 0
        self._root: Any = None

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
            raise self._error(f'the tag "{_shown(event.tag)}" is not supported', event)
        if name == "str":
            return event.value
        value: Any = self._resolved(event.value, event)
        if not isinstance(value, kind) or (isinstance(value, bool) and name != "bool"):
            raise self._error(f"the value is no {name}, as its tag requires", event)
        return float(value) if name == "float" and isinstance(value, int) else value

    def _add_alias(self, event: Any) -> None:
        if event.anchor not in self._anchors:
            raise self._error(f'undefined alias "{_shown(event.anchor)}"', event)
        anchored = self._anchors[event.anchor]
        if anchored is None:
            raise self._error("an alias that contains itself", event)
        self._put(anchored.value, anchored.nodes, anchored.height, event)

    def _open(self, event: Any, value: dict[str, Any] | list[Any]) -> None:
        kind = "map" if isinstance(value, dict) else "seq"
        if event.tag not in (None, "!", _TAG + kind):
            raise self._error(f'the tag "{_shown(event.tag)}" is not supported', event)
        if self._stack and self._stack[-1].is_key:
            raise self._error(_BAD_KEY, event)
        if len(self._stack) >= MAX_DEPTH:
            raise self._error(_TOO_DEEP, event, with_path=False)
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        self._stack.append(_Open(value, event.anchor, self._nodes, self._step()))

    def _close(self, event: Any) -> None:
        done = self._stack.pop()
        for part in done.merges:
            for key, value in part.items():
                done.value.setdefault(key, value)
        nodes = self._nodes - done.nodes_before + 1
        if done.anchor is not None:
            self._anchors[done.anchor] = _Anchored(done.value, nodes, done.height)
        self._put(done.value, 1, done.height, event)

    def _put(self, value: Any, nodes: int, height: int, event: Any) -> None:
        """Add `value` to the open map or list. `nodes`: how many values it counts as; `height`: its nested levels."""
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise self._error(_TOO_MANY, event, with_path=False)
        if not self._stack:
            self._root = value
            return
        top = self._stack[-1]
        if top.is_key:
            self._put_key(top, value, event)
            return
        if len(self._stack) + height > MAX_DEPTH:
            raise self._error(_TOO_DEEP, event, with_path=False)
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
            raise self._error(_LONG_KEY, event)
        top.key, top.is_key = text, False
        if text in top.value:
            raise self._error(_DUPLICATE, event)

    def _put_merge(self, top: _Open, value: Any, event: Any) -> None:
        """Keep the maps of a merge key. Their keys count again, because each one is copied."""
        parts = value if isinstance(value, list) else [value]
        if not all(isinstance(part, dict) for part in parts):
            raise self._error("a merge key (<<) takes a map or a list of maps", event)
        self._nodes += sum(map(len, parts))
        if self._nodes > MAX_NODES:
            raise self._error(_TOO_MANY, event, with_path=False)
        top.merges += parts

    def _step(self) -> str:
        """The path step of the next value in the innermost open map or list."""
        if not self._stack:
            return ""
        top = self._stack[-1]
        if isinstance(top.value, list):
            return f"[{len(top.value)}]"
        return "." + ("<<" if top.key is None or top.key is _MERGE else top.key)

    def _error(self, reason: str, event: Any, with_path: bool = True) -> DocumentError:
        path = ""
        if with_path:
            steps = [level.step for level in self._stack]
            if self._stack and not self._stack[-1].is_key:
                steps.append(self._step())
            path = "".join(steps).removeprefix(".")
        return DocumentError(reason, event.start_mark.line + 1, path)


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
