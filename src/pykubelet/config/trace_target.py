"""Parses `tracing.endpoint`, a target in gRPC's syntax. Pure.

Source: "gRPC Name Resolution" (the schemes dns, unix and unix-abstract; the default port 443).
"""

from __future__ import annotations

from urllib.parse import urlsplit

from pykubelet.base.kit.values import Value

DEFAULT = "localhost:4317"
_DEFAULT_PORT = 443


class TargetError(ValueError):
    """The text names no target. The message gives the reason."""


class TraceTarget(Value):
    """An address: `path` of a unix socket (beginning with NUL: an abstract one), or `host` and `port`.

    `authority`: the pseudo-header of requests. `endpoint`: the text that was parsed.
    """

    endpoint: str
    path: str = ""
    host: str = ""
    port: int = 0
    authority: str = "localhost"


def read_target(endpoint: str) -> TraceTarget:
    """The target of an endpoint such as `collector:4317`, `dns:///collector:4317` or `unix:///run/otlp.sock`.

    Raises TargetError.
    """
    if endpoint.startswith("unix-abstract:"):
        name = endpoint.removeprefix("unix-abstract:").removeprefix("//")
        return TraceTarget(endpoint, path=f"\0{name}")
    if endpoint.startswith("unix:"):
        path = endpoint.removeprefix("unix:")
        return TraceTarget(endpoint, path=path.removeprefix("//") if path.startswith("///") else path)
    address = endpoint
    if endpoint.startswith("dns:"):
        address = endpoint.removeprefix("dns:")
        if address.startswith("//"):  # //<name server>/<address>; the resolver of the system is used
            address = address[2:].partition("/")[2]
    try:
        parts = urlsplit(f"//{address}")
        port = parts.port
    except ValueError as error:
        raise TargetError(f"no host and port: {error}") from error
    if not parts.hostname:
        raise TargetError("the host is missing")
    if any(sign.isspace() for sign in parts.hostname):
        raise TargetError('invalid character " " in host name')
    return TraceTarget(endpoint, host=parts.hostname, port=port or _DEFAULT_PORT, authority=parts.netloc)
