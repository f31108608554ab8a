"""The gRPC connection to the runtime: endpoints, channels, and calls with their errors translated.

Owns: parsing of `unix://` endpoints, and `Unary`, `ServerStreaming` and `OpenStream`, the thin wrappers around every call. Not
here: the methods of CRI (`client.py`), and gRPC itself (net/grpc).
"""

from __future__ import annotations

import os
import re
import time
from typing import Generic, TypeVar

from pykubelet.base.kit.log import Log
from pykubelet.base.kit.metrics import Counter, Gauge, Histogram, exponential_bounds
from pykubelet.base.kit.tracing import NO_SPAN, SpanKind, span
from pykubelet.edges.cri.errors import CriCode, CriError, translated
from pykubelet.net.grpc.call import Message, R, decoded
from pykubelet.net.grpc.channel import MAX_SOCKET_PATH, Channel, ServerStream, unix_dial
from pykubelet.net.grpc.http2 import HTTP_1
from pykubelet.net.grpc.limits import Http2Limits
from pykubelet.net.grpc.status import Code, RpcError, trace_field

_BOUNDS_S = exponential_bounds(0.005, 2.5, 14)
OPERATIONS = Counter(
    "kubelet_runtime_operations_total",
    "Cumulative number of runtime operations by operation type.",
    ("operation_type",),
)
OPERATION_ERRORS = Counter(
    "kubelet_runtime_operations_errors_total",
    "Cumulative number of runtime operation errors by operation type.",
    ("operation_type",),
)
OPERATION_DURATIONS = Histogram(
    "kubelet_runtime_operations_duration_seconds",
    "Duration in seconds of runtime operations. Broken down by operation type.",
    ("operation_type",),
    _BOUNDS_S,
)
SANDBOX_DURATIONS = Histogram(
    "kubelet_run_podsandbox_duration_seconds",
    "Duration in seconds of the run_podsandbox operations. Broken down by RuntimeClass.Handler.",
    ("runtime_handler",),
)
SANDBOX_ERRORS = Counter(
    "kubelet_run_podsandbox_errors_total",
    "Cumulative number of the run_podsandbox operation errors by RuntimeClass.Handler.",
    ("runtime_handler",),
)
LOSING_SUPPORT = Gauge(
    "kubelet_cri_losing_support",
    "the Kubernetes version that the currently running CRI implementation will lose support on if not upgraded.",
    ("version",),
)


def operation_type(method: str) -> str:
    """The name of a method in metrics: `RunPodSandbox` is `run_podsandbox`. Pure."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", method).lower()
    return words.replace("pod_sandbox", "podsandbox").replace("update_container_resources", "update_container")


log = Log("cri")
#: The verbosity that shows every call.
CALLS = 10
#: High limits, because the container runtime is trusted and sends large messages. The kubelet accepts up to 16 MiB from it.
RUNTIME_LIMITS = Http2Limits(
    header_list=256 << 10, message=16 << 20, stream_window=17 << 20, connection_window=64 << 20
)
#: What to do about a socket of Docker Engine, or of Podman.
_DOCKER = (
    "If it is Docker Engine's socket, start `pykubelet cri-docker`, and set containerRuntimeEndpoint to "
    "unix:///run/pykubelet-cri-docker/cri.sock"
)


Q = TypeVar("Q", bound=Message)
Metadata = tuple[tuple[str, str], ...]


def socket_path(endpoint: str) -> str:
    """The path in `unix:///run/x.sock` (or a bare absolute path).

    Raises CriError(INVALID_ARGUMENT) for another scheme, a relative path, or a path that is too long for the kernel.
    """
    if endpoint.startswith("unix://"):
        path = endpoint.removeprefix("unix://")
    elif endpoint.startswith("unix:"):
        path = endpoint.removeprefix("unix:")
    else:
        path = endpoint
    if not path.startswith("/") or path == "/":
        raise CriError(CriCode.INVALID_ARGUMENT, f"only unix:///path endpoints are supported, not {endpoint!r}", "dial")
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        problem = f"the socket path {path!r} is longer than {MAX_SOCKET_PATH} bytes"
        raise CriError(CriCode.INVALID_ARGUMENT, problem, "dial")
    return path


class Wire:
    """One channel to one socket. Create it inside the running event loop."""

    def __init__(self, endpoint: str) -> None:
        self.path = socket_path(endpoint)
        self.channel = Channel(unix_dial(self.path), RUNTIME_LIMITS)

    def close(self) -> None:
        """Close the channel. Calls in flight fail with code Canceled."""
        self.channel.close()

    async def wait_lost(self) -> None:
        """Wait until an established connection is lost. A new channel connects on its first call."""
        await self.channel.wait_lost()

    def error(self, error: RpcError, call: str) -> CriError:
        """Translate an error to a `CriError`. If the socket does not exist, or has no CRI, the message names it."""
        found = translated(error.code, error.message, call)
        if found.is_unavailable and HTTP_1 in found.message:
            return CriError(CriCode.UNAVAILABLE, f"{self.path} does not serve the CRI: {HTTP_1}. {_DOCKER}", call)
        if found.is_unavailable and not os.path.exists(self.path):
            message = f"the runtime's socket {self.path} does not exist; is the container runtime running?"
            return CriError(CriCode.UNAVAILABLE, message, call)
        return found


class _Method(Generic[Q, R]):
    """One method of a service, by its path."""

    def __init__(self, wire: Wire, path: str, request: type[Q], response: type[R], metadata: Metadata = ()) -> None:
        self._wire = wire
        self._name = path.rpartition("/")[2]
        self._span = path.removeprefix("/")
        self._attributes = {
            "rpc.system": "grpc",
            "rpc.service": self._span.partition("/")[0],
            "rpc.method": self._name,
            "network.transport": "unix",
        }
        self._operation = operation_type(self._name)
        self._method = wire.channel.method(path, metadata)
        self._encode = request.SerializeToString
        self._response = response


class Unary(_Method[Q, R]):
    """A call with one request, one response and a deadline."""

    async def __call__(self, request: Q, timeout_s: float | None) -> R:
        """Make the call. Raises CriError. Cancelling the caller cancels the call; the runtime may still carry it out."""
        operation, began = self._operation, time.monotonic()  # the loop's clock counts milliseconds
        OPERATIONS.inc(operation)
        with span(self._span, SpanKind.CLIENT, self._attributes) as traced:
            fields = b"" if traced is NO_SPAN else trace_field(traced.traceparent)
            code, message = Code.CANCELED, None
            try:
                data = await self._wire.channel.unary(self._method, self._encode(request), timeout_s, fields)
                answer, code = decoded(self._response, data), Code.OK
            except RpcError as error:
                OPERATION_ERRORS.inc(operation)
                code, message = error.code, error.message
                raise self._wire.error(error, self._name) from error
            finally:
                took_s = time.monotonic() - began
                OPERATION_DURATIONS.observe(took_s, operation)
                traced.set("rpc.grpc.status_code", code)
                if log.shows(CALLS):
                    log.at(CALLS, "runtime call", method=self._name, duration_s=round(took_s, 6), error=message)
        return answer


class ServerStreaming(_Method[Q, R]):
    """A call with one request and a stream of responses, until either side ends it."""

    async def open(self, request: Q) -> OpenStream[R]:
        """Send the request. Responses are kept until they are read. The caller must close the result. Raises CriError."""
        try:
            stream = await self._wire.channel.stream(self._method, self._encode(request))
        except RpcError as error:
            raise self._wire.error(error, self._name) from error
        return OpenStream(self._wire, self._name, self._response, stream)


class OpenStream(Generic[R]):
    """A running stream with one reader."""

    def __init__(self, wire: Wire, name: str, response: type[R], stream: ServerStream) -> None:
        self._wire = wire
        self._name = name
        self._response = response
        self._stream = stream

    def failure(self) -> CriError | None:
        """The error that ended the stream, or None while it is open."""
        end = self._stream.end
        if end is None:
            return None
        if end.code is Code.OK:
            return CriError(CriCode.UNAVAILABLE, "the runtime ended the stream", self._name)
        return self._wire.error(end, self._name)

    async def read(self) -> R | None:
        """The next response, or None if the runtime has ended the stream. Raises CriError if the stream failed."""
        try:
            data = await self._stream.read()
            return None if data is None else decoded(self._response, data)
        except RpcError as error:
            raise self._wire.error(error, self._name) from error

    def close(self) -> None:
        """End the stream. Does nothing if it has ended already."""
        self._stream.close()
