"""The pairs of streams of a port-forward over SPDY: an error and a data stream for each connection to a port. Pure.

The headers of both are `streamtype` (error or data), `port` and `requestid`, by which they belong together. Old clients send no
`requestid`; their data stream has the number after that of the error stream.
Source: Kubernetes' `portforward.k8s.io` protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pykubelet.base.kit.text import parse_decimal
from pykubelet.base.kit.values import Value

ERROR, DATA = "error", "data"
#: The most streams of one client: two for each connection that is open through it.
MAX_STREAMS = 512
_MAX_ID = 64


class Half(Value):
    """A stream of which the other one is missing."""

    stream: int
    kind: str
    port: int


class Pair(Value):
    """Both streams of a connection to a port."""

    error: int
    data: int
    port: int


class PairBook:
    """The streams that are open. Forget those of a pair when it has ended."""

    def __init__(self) -> None:
        #: The streams of which the other one is missing.
        self._halves: dict[str, Half] = {}
        self._requests: dict[int, str] = {}
        self._open = 0

    @property
    def halves(self) -> Iterable[Half]:
        """The streams of which the other one is missing."""
        return self._halves.values()

    def open(self, stream: int, headers: Mapping[str, str]) -> Half | Pair | None:
        """A new stream: its pair if this completes one; None if the stream is to be refused."""
        kind, port = headers.get("streamtype", ""), parse_decimal(headers.get("port", ""), 65535)
        request = headers.get("requestid") or str(stream if kind == ERROR else stream - 2)
        if kind not in (ERROR, DATA) or not port or len(request) > _MAX_ID or self._open >= MAX_STREAMS:
            return None
        other = self._halves.get(request)
        if other is not None and other.kind == kind:
            return None
        self._open += 1
        if other is None:
            half = self._halves[request] = Half(stream, kind, port)
            self._requests[stream] = request
            return half
        del self._halves[request], self._requests[other.stream]
        return Pair(other.stream, stream, port) if kind == DATA else Pair(stream, other.stream, other.port)

    def forget_pair(self) -> None:
        """A pair has ended."""
        self._open -= 2

    def forget_half(self, stream: int) -> None:
        """Forget a stream if the other one is missing."""
        request = self._requests.pop(stream, None)
        if request is not None:
            del self._halves[request]
            self._open -= 1
