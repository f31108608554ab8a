"""Parses configuration text (YAML or JSON) with `base/api/documents.py`; it must be a map of fields. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pykubelet.base.api.document import Document, DocumentError
from pykubelet.base.api.documents import load_document, read_document
from pykubelet.config.errors import ConfigError

T = TypeVar("T")


def parse_document(data: bytes, file: str) -> dict[str, Any]:
    """The map that is the only document in `data`. Raises ConfigError that names `file` and the line or path."""
    return _map(_parsed(load_document, data, file), file)


def parse_first_document(data: bytes, file: str) -> tuple[dict[str, Any], Document]:
    """The map that is the first document in `data`, and what is odd about it. Raises ConfigError as `parse_document`."""
    document = _parsed(read_document, data, file)
    return _map(document.value, file), document


def _parsed(parse: Callable[[bytes], T], data: bytes, file: str) -> T:
    if not data.strip():
        raise ConfigError(f"{file}: the file is empty: must hold a YAML or JSON object")
    try:
        return parse(data)
    except DocumentError as error:
        raise ConfigError(f"{file}: {error}") from error


def _map(value: Any, file: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{file}: invalid document: must be a map of fields, is {_kind(value)}")
    return value


def _kind(value: object) -> str:
    if isinstance(value, list):
        return "a list"
    return "empty" if value is None else f"the value {value!r}"
