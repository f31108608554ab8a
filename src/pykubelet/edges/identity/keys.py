"""Keys, self-signed certificates and signing requests, made in a short child process.

Owns: the child and its deadline. Nothing is kept here: the caller writes files.
"""

from __future__ import annotations

import base64
import json
import sys
from typing import Any, ClassVar

from pykubelet.base.kit.values import Discreet, Value
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.services.process import run_program

DEADLINE_S = 60.0
_CHILD = "pykubelet.edges.identity.make_keys"


class KeysError(Exception):
    """The child did not make what was wanted; the text is its last word."""


class SelfSigned(Discreet):
    """Both in PEM."""

    hidden: ClassVar = ("key",)
    key: str
    certificate: str


class SigningRequest(Discreet):
    """Key and request in PEM; `public`: the public key as DER."""

    hidden: ClassVar = ("key",)
    key: str
    request: str
    public: bytes = b""


class Description(Value):
    """What a certificate says. Times are wall seconds."""

    not_before: float
    not_after: float
    name: str
    organizations: tuple[str, ...]
    dns: tuple[str, ...]
    ips: tuple[str, ...]


async def make_self_signed(name: str, dns: tuple[str, ...], ips: tuple[str, ...], days: int = 365) -> SelfSigned:
    """A key and a serving certificate of its own for `name`. Raises KeysError."""
    question = {"kind": "self-signed", "name": name, "dns": dns, "ips": ips, "days": days}
    answer = await _ask(question)
    return SelfSigned(answer["key"], answer["certificate"])


async def make_request(
    name: str, organizations: tuple[str, ...], dns: tuple[str, ...] = (), ips: tuple[str, ...] = (), key: str = ""
) -> SigningRequest:
    """A signing request, for `key` (PEM) where one is given, else for a new key. Raises KeysError."""
    question = {"kind": "request", "name": name, "organizations": organizations, "dns": dns, "ips": ips, "key": key}
    answer = await _ask(question)
    return SigningRequest(answer["key"], answer["request"], base64.b64decode(answer["public"]))


async def describe_pair(pem: bytes) -> Description:
    """Of the first certificate in `pem`, whose key is the last block. Raises KeysError, also where they do not fit."""
    answer = await _ask({"kind": "describe", "pem": pem.decode("ascii", "replace")})
    return Description(
        not_before=answer["not_before"],
        not_after=answer["not_after"],
        name=answer["name"],
        organizations=tuple(answer["organizations"]),
        dns=tuple(answer["dns"]),
        ips=tuple(answer["ips"]),
    )


async def _ask(question: dict[str, Any]) -> dict[str, Any]:
    # without -P, Python looks for modules in the current directory first, which may be anybody's
    argv = (sys.executable, "-P", "-m", _CHILD)
    try:
        ended = await run_program(argv, stdin=json.dumps(question).encode(), cwd="/", timeout_s=DEADLINE_S)
    except HostError as error:
        raise KeysError(str(error)) from error
    if ended.code:
        lines = ended.err.decode(errors="replace").strip().splitlines()
        raise KeysError(lines[-1] if lines else f"exit code {ended.code}")
    answer: dict[str, Any] = json.loads(ended.out)
    return answer
