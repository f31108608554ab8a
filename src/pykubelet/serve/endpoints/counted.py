"""Metrics of HTTP requests, including refused ones. A request is measured until its last byte.

Owns: the metrics and their labels.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack

from pykubelet.base.kit.metrics import Counter, Gauge, Histogram
from pykubelet.net.http.server import Answer, Closable, Handler, Request, ServedConnection, StreamedResponse, Takeover
from pykubelet.serve.endpoints.endpoint import OTHER, PathLabels, counted_name

METHODS = frozenset({"OPTIONS", "GET", "HEAD", "POST", "PUT", "DELETE", "TRACE", "CONNECT"})
#: The authenticated port, and the one for clients without credentials.
READ_WRITE, READ_ONLY = "readwrite", "readonly"
_LABELS = ("method", "path", "server_type", "long_running")
REQUESTS = Counter(
    "kubelet_http_requests_total", "Number of the http requests received since the server started", _LABELS
)
DURATIONS = Histogram("kubelet_http_requests_duration_seconds", "Duration in seconds to serve http requests", _LABELS)
IN_FLIGHT = Gauge("kubelet_http_inflight_requests", "Number of the inflight http requests", _LABELS)
Labels = tuple[str, str, str, str]


def counted(handler: Handler, server_type: str, paths: PathLabels) -> Handler:
    """Wrap a handler so that its requests are counted."""

    async def handle(request: Request, connection: ServedConnection) -> Answer:
        labels = request_labels(request, server_type, paths)
        with ExitStack() as until_answered:
            ended = _began(labels)
            until_answered.callback(ended)
            answer = await handler(request, connection)
            if isinstance(answer, StreamedResponse):
                until_answered.pop_all()
                return StreamedResponse(
                    answer.status, _Chunks(answer.chunks, ended), answer.content_type, answer.headers
                )
            if isinstance(answer, Takeover):
                until_answered.pop_all()
                return _until_ended(answer, ended)
            return answer

    return handle


def request_labels(request: Request, server_type: str, paths: PathLabels) -> Labels:
    """Method, path, server type, and whether the request is long-running. There are few values, whatever clients request."""
    method = request.method if request.method in METHODS else OTHER
    path, long_running = paths.get(counted_name(request.path), (OTHER, False))
    return method, path, server_type, str(long_running).lower()


def _began(labels: Labels) -> Callable[[], None]:
    now = asyncio.get_running_loop().time
    began = now()
    REQUESTS.inc(*labels)
    IN_FLIGHT.add(1, *labels)

    def ended() -> None:
        IN_FLIGHT.add(-1, *labels)
        DURATIONS.observe(now() - began, *labels)

    return ended


def _until_ended(answer: Takeover, ended: Callable[[], None]) -> Takeover:
    async def talk(connection: ServedConnection) -> None:
        try:
            await answer.talk(connection)
        finally:
            ended()

    return Takeover(talk)


class _Chunks:
    """The chunks of a stream, with a notification of its end."""

    def __init__(self, chunks: AsyncIterator[bytes], ended: Callable[[], None]) -> None:
        self._chunks = chunks
        self._ended = ended

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._chunks

    async def __anext__(self) -> bytes:
        return await anext(self._chunks)

    async def aclose(self) -> None:
        try:
            if isinstance(self._chunks, Closable):
                await self._chunks.aclose()
        finally:
            self._ended()
