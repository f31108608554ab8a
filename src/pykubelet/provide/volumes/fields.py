"""Values of pod fields as the downward API writes them into files. Pure.

Source: the Kubernetes documentation "Downward API": metadata fields are available in volumes, status and spec
fields are not.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import Value, remember_last
from pykubelet.base.model.fieldrefs import FieldRefError, metadata_text

_ESCAPES = {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
    "\\": "\\\\",
    '"': '\\"',
}
_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})


class _Escapes(dict[int, str]):
    """What each character is written as. Those of Latin-1 are computed once."""

    def __missing__(self, code: int) -> str:
        escaped = _escaped(chr(code))
        if code < 0x100:
            self[code] = escaped
        return escaped


def quote(text: str) -> str:
    """`text` in double quotes, escaped as Go quotes strings: users parse files of all labels or annotations."""
    return f'"{text.translate(_ESCAPED)}"'


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character == " " or unicodedata.category(character) not in _UNPRINTABLE:
        return character
    code = ord(character)
    if 0xD800 <= code <= 0xDFFF:
        return "\\ufffd"
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


_ESCAPED = _Escapes()


def format_map(values: Mapping[str, str]) -> str:
    """One `key="escaped value"` a line, sorted by key, without a newline at the end."""
    return "\n".join(f"{key}={quote(values[key])}" for key in sorted(values))


class MapText(Value, weakref=True):
    """The text of all labels or annotations, which is made when it is needed: many files may have it."""

    values: Mapping[str, str]

    def encode(self) -> bytes:
        """The text."""
        return _text(self).encode()


@remember_last
def _text(made: MapText) -> str:
    return format_map(made.values)


@remember_last
def _labels(pod: Pod) -> MapText:
    return MapText(pod.metadata.labels)


@remember_last
def _annotations(pod: Pod) -> MapText:
    return MapText(pod.metadata.annotations)


def field_value(pod: Pod, path: str) -> str | MapText:
    """The value of a `fieldRef` in a volume; a label or annotation that is not there is empty.

    FieldRefError for fields that volumes do not offer.
    """
    match path:
        case "metadata.labels":
            return _labels(pod)
        case "metadata.annotations":
            return _annotations(pod)
    text = metadata_text(pod, path)
    if text is None:
        raise FieldRefError(f"unsupported fieldPath: {path}")
    return text
