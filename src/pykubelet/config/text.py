"""Parses configuration text (YAML or JSON) with `base/api/documents.py`; it must be a map of fields. Pure."""

from __future__ import annotations

from typing import Any

from pykubelet.base.api.documents import DocumentError, load_document
from pykubelet.config.errors import ConfigError


def parse_document(data: bytes, file: str) -> dict[str, Any]:
    """The map in `data`. Raises ConfigError that names `file` and the line or path."""
    if not data.strip():
        raise ConfigError(f"{file}: the file is empty: must hold a YAML or JSON object")
    try:
        value = load_document(data)
    except DocumentError as error:
        raise ConfigError(f"{file}: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{file}: invalid document: must be a map of fields, is {_kind(value)}")
    return value


def _kind(value: object) -> str:
    if isinstance(value, list):
        return "a list"
    return "empty" if value is None else f"the value {value!r}"
