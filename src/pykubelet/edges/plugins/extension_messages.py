"""The messages between the agent and a process extension, as JSON lines. Pure. `docs/extensions/protocol.md` has the protocol."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from pykubelet.base.kit.text import escape_controls, shorten
from pykubelet.base.kit.values import Value
from pykubelet.base.model.extension_process import PROTOCOL_VERSION, Point

#: A line in either direction, without its end: bytes.
LINE_BYTES = 1 << 20
#: Texts of a process that are kept: characters.
TEXT_LENGTH = 1024
_VERSION = re.compile(r"[0-9]{1,4}\.[0-9]{1,4}", re.ASCII)
_ANNOTATION = re.compile(r"[A-Za-z0-9./_-]{1,317}", re.ASCII)
#: Points that later versions of the protocol may have are ignored; so many names at most.
_MAX_OFFERS = 32


class ProtocolError(Exception):
    """A process has sent what is no message of the protocol. The text states why."""


class HelloAnswer(Value):
    """The answer to `hello`. `annotation`: pods without this annotation are not prepared; empty: all pods are."""

    version: str
    offers: frozenset[Point]
    annotation: str = ""


class CallAnswer(Value):
    """The answer to a request: its `result` as JSON, or an `error`, which is not empty."""

    id: int
    result: bytes = b""
    error: str = ""


class SentPods(Value):
    """A set of pods: a JSON list, which nothing has looked at."""

    data: bytes


class _Line(Struct):
    id: int | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: str | UnsetType = UNSET
    offers: list[str] | UnsetType = UNSET
    version: str = ""
    annotation: str = ""
    pods: Raw | UnsetType = UNSET


class PrepareAnswer(Struct, frozen=True):
    """The result of `prepare` and `set_up`. Either `ready`, or a reason to `wait`; then it is asked again in `again_s` seconds."""

    ready: bool = False
    wait: str = ""
    again_s: float = 2.0


class ProbeAnswer(Struct, frozen=True):
    """The result of `probe`."""

    success: bool
    message: str = ""


_LINES = msgspec.json.Decoder(_Line)
_PREPARED = msgspec.json.Decoder(PrepareAnswer)
_PROBED = msgspec.json.Decoder(ProbeAnswer)
AGAIN_LEAST_S, AGAIN_MOST_S = 0.5, 60.0


def hello_line(node: str, settings: Mapping[str, Any]) -> bytes:
    """The first line that a process gets. ValueError, TypeError: the settings are no JSON."""
    return _line({"hello": {"version": PROTOCOL_VERSION, "node": node, "settings": settings}})


def request_line(number: int, call: str, fields: Mapping[str, Any]) -> bytes:
    """A request. Values of `fields` may be `Raw`: JSON already."""
    return _line({"id": number, "call": call, **fields})


def notice_line(fields: Mapping[str, Any]) -> bytes:
    """A notification: nothing answers it."""
    return _line(fields)


def _line(message: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(message) + b"\n"


def parse_line(line: bytes) -> HelloAnswer | CallAnswer | SentPods:
    """The message of a line. Raises ProtocolError."""
    try:
        found = _LINES.decode(line)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"a message of the wrong type: {error}") from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ProtocolError(f"a line that is no JSON object: {error}") from None
    if found.id is not UNSET:
        return _answer(found.id, found)
    if found.offers is not UNSET:
        return _hello(found.offers, found)
    if found.pods is not UNSET:
        return SentPods(bytes(found.pods))
    raise ProtocolError('a message without "id", "offers" or "pods"')


def _answer(number: int, found: _Line) -> CallAnswer:
    if found.error is not UNSET:
        return CallAnswer(number, error=shown(found.error) or "it has failed without a reason")
    if found.result is UNSET:
        raise ProtocolError('an answer with neither "result" nor "error"')
    return CallAnswer(number, bytes(found.result))


def _hello(offers: list[str], found: _Line) -> HelloAnswer:
    if _VERSION.fullmatch(found.version) is None:
        raise ProtocolError('an answer to hello without a "version" such as "1.0"')
    if found.version.partition(".")[0] != PROTOCOL_VERSION.partition(".")[0]:
        raise ProtocolError(f"version {found.version} of the protocol; this agent has {PROTOCOL_VERSION}")
    if found.annotation and _ANNOTATION.fullmatch(found.annotation) is None:
        raise ProtocolError('an "annotation" that is no key of an annotation')
    known = {point.value: point for point in Point}
    points = frozenset(known[name] for name in offers[:_MAX_OFFERS] if name in known)
    return HelloAnswer(found.version, points, found.annotation)


def parse_prepared(result: bytes, call: str = "prepare") -> PrepareAnswer:
    """The result of `prepare` or `set_up`, with `again_s` within its limits. Raises ProtocolError."""
    try:
        answer = _PREPARED.decode(result)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ProtocolError(f"the result of {call} is malformed: {error}") from None
    if not answer.ready and not answer.wait:
        raise ProtocolError(f'the result of {call} is malformed: expected "ready": true, or "wait" with a reason')
    again_s = min(max(answer.again_s, AGAIN_LEAST_S), AGAIN_MOST_S)
    return PrepareAnswer(answer.ready, shown(answer.wait), again_s)


def parse_probed(result: bytes) -> ProbeAnswer:
    """The result of `probe`. Raises ProtocolError."""
    try:
        return _PROBED.decode(result)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ProtocolError(f"the result of probe is malformed: {error}") from None


def shown(text: str) -> str:
    """A text of a process as it is kept and shown: in one line, without what controls a terminal, and not too long."""
    return escape_controls(shorten(text, TEXT_LENGTH)).replace("\n", " ").strip()
