"""What the state files of the resource managers have in common: their JSON, and the checksum in it. Pure.

The checksum is FNV-1a (32 bits) over a dump of the file's struct, in which the checksum is 0; each file's module writes its dump.

From 1.37 on, the state is in the file twice: as the text `data` with a checksum of its own, which counts, and beside it in the format
of before, without the memory and CPUs of pods as a whole, for older kubelets.
Source: the reference's package `checkpointmanager`; its test values are among our tests. The page "Pod-level resource managers
reference" of the Kubernetes documentation, "Kubelet state checkpoint formats".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pykubelet.base.kit.fnv import fnv1a_32

CORRUPT = "checkpoint is corrupted"

# Go escapes these inside JSON strings, Python does not. Outside of strings they do not occur.
_GO_ESCAPES = str.maketrans({char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"})


class StateFileError(ValueError):
    """The text is not a state file; the message states why."""


class PolicyDiffers(StateFileError):
    """The file is of another policy than the configured one."""


def checksum(dump: str) -> int:
    """The checksum of a struct by its dump."""
    return fnv1a_32(dump.encode())


def dump_map(
    value: Mapping[Any, Any] | None, dump: Callable[[Any], str], key: Callable[[Any], Any] | None = None
) -> str:
    """A map in a dump, sorted by its keys, or by `key` of these."""
    if value is None:
        return "<nil>"
    return f"map[{' '.join(f'{name}:{dump(value[name])}' for name in sorted(value, key=key))}]"


def dump_list(value: Iterable[Any] | None, dump: Callable[[Any], str] = str) -> str:
    """A list in a dump."""
    return "<nil>" if value is None else f"[{' '.join(map(dump, value))}]"


def add_data(document: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
    """The document with the whole state as its `data`."""
    text = write_json(state)
    return {**document, "data": text, "dataChecksum": checksum(f"(string){text}")}


def read_data(document: Mapping[str, Any], version: str) -> Mapping[str, Any] | None:
    """The state in a document's `data`; None if it has none. `version`: of the format, which errors name. Raises StateFileError."""
    text, found = as_text(member(document, "data"), "data"), as_number(member(document, "dataChecksum"), "dataChecksum")
    if not text and not found:
        return None
    if found != checksum(f"(string){text}"):
        raise StateFileError(f"could not load {version} checkpoint: {CORRUPT}")
    return read_json(text)


def write_json(document: Mapping[str, Any]) -> str:
    """The document as the reference writes it: keys in the order given, no blanks."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).translate(_GO_ESCAPES)


def read_json(text: str) -> Mapping[str, Any]:
    """The object that `text` spells. Raises CheckpointError."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        rest = "" if error.msg.startswith("Unterminated string") else text[error.pos :].strip()
        raise StateFileError(f"invalid JSON: {error}" if rest else "unexpected end of JSON input") from None
    except (ValueError, RecursionError) as error:
        raise StateFileError(f"invalid JSON: {error}") from None
    return as_object(document, "the file")


def as_object(value: Any, name: str) -> Mapping[str, Any]:
    """A JSON object. Raises CheckpointError for anything else."""
    if not isinstance(value, dict):
        raise StateFileError(f"json: {name} must be an object")
    return value


def as_list(value: Any, name: str) -> list[Any]:
    """A JSON array. Raises CheckpointError for anything else."""
    if not isinstance(value, list):
        raise StateFileError(f"json: {name} must be an array")
    return value


def as_text(value: Any, name: str) -> str:
    """A JSON string; null stands for the empty one. Raises CheckpointError for anything else."""
    if value is not None and not isinstance(value, str):
        raise StateFileError(f"json: {name} must be a string")
    return value or ""


def as_number(value: Any, name: str, low: int = 0, high: int = 2**64 - 1) -> int:
    """A JSON integer; null stands for 0. Raises CheckpointError for anything else, and for numbers out of range."""
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise StateFileError(f"json: {name} must be an integer from {low} to {high}")
    return value


def member(document: Mapping[str, Any], key: str) -> Any:
    """The member named `key` in any case, the last one of several; None if there is none."""
    found = None
    for name, value in document.items():
        if name == key or name.lower() == key.lower():
            found = value
    return found
