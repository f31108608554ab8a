"""Configuration text (YAML or JSON) to plain values: dicts with string keys, lists, str, int, float, bool, None. Pure.

The scalars are YAML 1.1's as the reference reads them (`yes`, `on` are booleans) without timestamps and base-60
numbers. A key given twice in one map is an error that names its path.
"""

from __future__ import annotations

import re
from typing import Any

from pykubelet.base.config.errors import ConfigError

_TRUE = frozenset({"yes", "true", "on"})
MAX_DIGITS = 100  # beyond every field's type; the interpreter itself refuses 4300
_TAG = "tag:yaml.org,2002:"
_BINARY, _OCTAL, _HEX = (
    re.compile(r"[-+]?0b[01_]+"),
    re.compile(r"[-+]?0o?[0-7_]+"),
    re.compile(r"[-+]?0x[0-9a-fA-F_]+"),
)
_DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9_]*)")


def parse_document(data: bytes, file: str) -> dict[str, Any]:
    """The one map that `data` holds. Raises ConfigError naming `file` and the line or path."""
    if not data.strip():
        raise ConfigError(f"{file}: the file is empty: must hold a YAML or JSON object")
    value = _parse_json(data, file) if data.lstrip()[:1] == b"{" else _parse_yaml(data, file)
    if not isinstance(value, dict):
        raise ConfigError(f"{file}: invalid document: must be a map of fields, is {_kind(value)}")
    return value


def _kind(value: object) -> str:
    if isinstance(value, list):
        return "a list"
    return "empty" if value is None else f"the value {value!r}"


def _parse_json(data: bytes, file: str) -> Any:
    """JSON proper; YAML's flow form, which looks alike, when it is not JSON."""
    import json  # not needed for YAML

    twice: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for key, value in items:
            if key in seen:
                twice.append(key)
            seen[key] = value
        return seen

    try:
        value = json.loads(data, object_pairs_hook=pairs)
    except ValueError:
        return _parse_yaml(data, file)
    if twice:
        raise ConfigError(*(f"{file}: {key}: duplicate field: must be given once" for key in twice))
    return value


def _parse_yaml(data: bytes, file: str) -> Any:
    import yaml  # 10 ms that `--help` and `--version` must not pay

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        node = yaml.compose(data, Loader=loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{file}: not valid YAML{where}: {error.problem or error.context}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not valid YAML: {' '.join(str(error).split())}") from error
    problems: list[str] = []
    value = None if node is None else _Plain(file, problems).value(node, "")
    if problems:
        raise ConfigError(*problems)
    return value


class _Plain:
    """Walks YAML nodes; collects what is wrong with the keys."""

    def __init__(self, file: str, problems: list[str]) -> None:
        self._file = file
        self._problems = problems
        self._open: set[int] = set()

    def value(self, node: Any, path: str) -> Any:
        if node.id == "scalar":
            return scalar(node.tag, node.value)
        if id(node) in self._open:
            self._problem(path, node, "an alias that contains itself")
            return None
        self._open.add(id(node))
        try:
            if node.id == "sequence":
                return [self.value(item, f"{path}[{index}]") for index, item in enumerate(node.value)]
            return self._map(node, path)
        finally:
            self._open.discard(id(node))

    def _map(self, node: Any, path: str) -> dict[str, Any]:
        given: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.id != "scalar":
                self._problem(path, key_node, "a key that is no string")
                continue
            key = key_node.value
            if key_node.tag == _TAG + "merge":
                for part in value_node.value if value_node.id == "sequence" else [value_node]:
                    if part.id == "mapping":
                        merged = {**self._map(part, path), **merged}
                continue
            here = f"{path}.{key}" if path else key
            if key in given:
                self._problem(here, key_node, "duplicate field: must be given once")
            given[key] = self.value(value_node, here)
        return {**merged, **given}

    def _problem(self, path: str, node: Any, text: str) -> None:
        where = f"{path}: " if path else ""
        self._problems.append(f"{self._file}: {where}{text} (line {node.start_mark.line + 1})")


def scalar(tag: str, text: str) -> str | int | float | bool | None:
    """The plain value of a YAML scalar with its resolved tag."""
    match tag.removeprefix(_TAG):
        case "null":
            return None
        case "bool":
            return text.lower() in _TRUE
        case "int":
            return _integer(text)
        case "float":
            try:
                return float(text.replace("_", ""))
            except ValueError:
                return text  # base 60, .inf, .nan
        case _:
            return text


def _integer(text: str) -> int | str:
    bare = text.replace("_", "")
    if len(bare) > MAX_DIGITS:
        return text
    if _DECIMAL.fullmatch(text):
        return int(bare)
    for pattern, base, prefix in ((_BINARY, 2, "0b"), (_HEX, 16, "0x"), (_OCTAL, 8, "0o")):
        if pattern.fullmatch(text):
            return int(bare.replace(prefix, "", 1), base)
    return text  # base 60
