"""Creates keys, self-signed certificates and signing requests in a short-lived child process.

Owns: the child and its deadline. Stores nothing: the caller writes the files.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any, ClassVar

from pykubelet.base.kit.values import RedactedValue, Value
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.services.process import python_module, run_program

DEADLINE_S = 60.0
_CHILD = "pykubelet.edges.identity.make_keys"


class KeysError(Exception):
    """The child process failed; the text is the last line of its error output."""


class SelfSigned(RedactedValue):
    """A self-signed certificate and its key, in PEM."""

    hidden: ClassVar = ("key",)
    key: str
    certificate: str


class SigningRequest(RedactedValue):
    """A signing request and its key, in PEM. `public`: the public key as DER."""

    hidden: ClassVar = ("key",)
    key: str
    request: str
    public: bytes = b""


class StubRequest(RedactedValue):
    """A private key in PEM, and a signing request without a subject, signed by it, as DER."""

    hidden: ClassVar = ("key",)
    key: str
    request: bytes


class Description(Value):
    """The relevant fields of a certificate. Times are wall seconds."""

    not_before: float
    not_after: float
    name: str
    organizations: tuple[str, ...]
    dns: tuple[str, ...]
    ips: tuple[str, ...]


async def make_self_signed(name: str, dns: tuple[str, ...], ips: tuple[str, ...]) -> SelfSigned:
    """Create a key and a self-signed serving certificate for `name`. Raises KeysError."""
    question = {"kind": "self-signed", "name": name, "dns": dns, "ips": ips, "days": 365}
    answer = await _ask(question)
    return SelfSigned(answer["key"], answer["certificate"])


async def make_request(
    name: str, organizations: tuple[str, ...], dns: tuple[str, ...] = (), ips: tuple[str, ...] = (), key: str = ""
) -> SigningRequest:
    """Create a signing request for `key` (PEM), or for a new key if none is given. Raises KeysError."""
    question = {"kind": "request", "name": name, "organizations": organizations, "dns": dns, "ips": ips, "key": key}
    answer = await _ask(question)
    return SigningRequest(answer["key"], answer["request"], base64.b64decode(answer["public"]))


async def make_stub_requests(key_types: Sequence[str]) -> list[StubRequest]:
    """Create a key of each of these types (`base/api/key_types.py`), with its signing request. Raises KeysError."""
    answer = await _ask({"kind": "stubs", "types": list(key_types)})
    return [StubRequest(made["key"], base64.b64decode(made["request"])) for made in answer["stubs"]]


async def describe_pair(pem: bytes) -> Description:
    """Describe the first certificate in `pem`; its last block is the key. Raises KeysError, also if they do not match."""
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
    try:
        ended = await run_program(
            python_module(_CHILD), stdin=json.dumps(question).encode(), cwd="/", timeout_s=DEADLINE_S
        )
    except HostError as error:
        raise KeysError(str(error)) from error
    if ended.code:
        lines = ended.err.decode(errors="replace").strip().splitlines()
        raise KeysError(lines[-1] if lines else f"exit code {ended.code}")
    answer: dict[str, Any] = json.loads(ended.out)
    return answer
