"""Metrics of HTTP requests, including refused ones. A request is measured until its last byte.

Owns: the metrics and their labels.
"""

from __future__ import annotations

import time

from pykubelet.base.kit.log import Log
from pykubelet.base.kit.metrics import Counter, Gauge, Histogram
from pykubelet.net.http.server import Answer, Handler, Request, ServedConnection, Takeover
from pykubelet.serve.endpoints.endpoint import OTHER, PathLabels, counted_name
from pykubelet.serve.endpoints.until_ended import until_ended

log = Log("server")
#: The verbosity that shows every request, and the most characters of each of its parts.
SERVED, SHOWN = 3, 1024
#: The status of an answer that hands the connection over.
SWITCHED = 101
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
    """Wrap a handler so that its requests are counted, and logged from verbosity 3 on."""

    async def handle(request: Request, connection: ServedConnection) -> Answer:
        measured = _Measured(request, connection.address, request_labels(request, server_type, paths))
        try:
            answer = await handler(request, connection)
        except BaseException:
            measured.ended()
            raise
        measured.status = SWITCHED if isinstance(answer, Takeover) else answer.status
        return until_ended(answer, measured.ended)

    return handle


def request_labels(request: Request, server_type: str, paths: PathLabels) -> Labels:
    """Method, path, server type, and whether the request is long-running. There are few values, whatever clients request."""
    method = request.method if request.method in METHODS else OTHER
    path, long_running = paths.get(counted_name(request.path), (OTHER, False))
    return method, path, server_type, str(long_running).lower()


class _Measured:
    """One request under way. `status`: 0 until it is known."""

    def __init__(self, request: Request, address: str, labels: Labels) -> None:
        self._request = request
        self._address = address
        self._labels = labels
        self._began = time.monotonic()  # the loop reads its clock once an iteration
        self.status = 0
        REQUESTS.inc(*labels)
        IN_FLIGHT.add(1, *labels)

    def ended(self) -> None:
        """Count its end."""
        took_s = time.monotonic() - self._began
        IN_FLIGHT.add(-1, *self._labels)
        DURATIONS.observe(took_s, *self._labels)
        if log.shows(SERVED):
            request = self._request
            log.at(
                SERVED,
                "HTTP",
                verb=request.method,
                URI=request.target[:SHOWN],
                latency=f"{took_s * 1000:.3f}ms",
                userAgent=request.headers.get("user-agent", "")[:SHOWN],
                srcIP=self._address,
                resp=self.status,
            )
