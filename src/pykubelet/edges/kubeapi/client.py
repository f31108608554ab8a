"""A client for single requests to the API server, with structs as bodies and answers.

Owns: deadlines, the limit of requests per second, one retry if the server refuses the credentials, and the encoding of
structs. Nothing else is retried: the caller decides (`ApiError.is_transient`, `retry_after_s`).
The HTTP library is imported when the first request is sent.

Source: the Kubernetes documentation "Kubernetes API Concepts"; `kubeAPIQPS`, `kubeAPIBurst`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from pykubelet.base.api.codec import DecodeError, decode, encode
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.metrics import Counter, Histogram
from pykubelet.base.kit.tracing import NO_SPAN, SpanKind, span
from pykubelet.base.kit.values import Value
from pykubelet.edges.kubeapi.credentials import CredentialSource, RequestCredentials
from pykubelet.edges.kubeapi.errors import QUEUE_FULL, ApiError
from pykubelet.edges.kubeapi.kubeconfig import ClusterAccess, Pem
from pykubelet.edges.kubeapi.limiter import Limiter, QueueFull

if TYPE_CHECKING:
    from pykubelet.edges.kubeapi.connection import ApiConnection, ApiStream

T = TypeVar("T")
log = Log("kubeapi")
#: The verbosity that shows every request.
REQUESTED = 6
REQUESTS = Counter(
    "rest_client_requests_total",
    "Number of HTTP requests, partitioned by status code, method, and host.",
    ("code", "method", "host"),
)
DURATIONS = Histogram(
    "rest_client_request_duration_seconds",
    "Request latency in seconds. Broken down by verb, and host.",
    ("verb", "host"),
    (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0),
)
_JSON = "application/json"
#: Answers without `metadata.managedFields`, which the agent does not read (KEP-5958). Servers that do not know the parameter
#: ignore it, and one that refuses it has the second form.
_WITHOUT_MANAGED_FIELDS = f"{_JSON};drop=metadata.managedFields, {_JSON}"
_UNAUTHORIZED = 401
#: Not Acceptable, and Unsupported Media Type: the server, or a proxy before it, may refuse the parameter.
_REFUSED_FORMS = (406, 415)
#: The status codes of successful requests other than 200, by method.
_CODES = {"POST": "201"}


class PatchKind(StrEnum):
    """The formats of patches, as content types."""

    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    JSON = "application/json-patch+json"


class ClientLimits(Value):
    """The limits of a client: `qps` requests per second with bursts of `burst` (<= 0: unlimited), and `at_once` concurrent ones.

    `deadline_s`: seconds for one answer. `longest_wait_s`: a request that would wait longer to be sent fails at once
    (`ApiError.was_queue_full`).
    """

    qps: float = 50.0
    burst: int = 100
    at_once: int = 24
    deadline_s: float = 30.0
    longest_wait_s: float = float("inf")


class ApiClient:
    """A client of one API server. Methods raise only ApiError. Paths are those of the API, without the server.

    `requests`: the number of requests that were sent. `rotated`: see CredentialSource. `drops_managed_fields`: the server is
    asked to leave `metadata.managedFields` out of its answers, until it refuses that.
    """

    def __init__(
        self,
        access: ClusterAccess,
        clock: Clock,
        limits: ClientLimits | None = None,
        user_agent: str = "kubelet",
        rotated: Pem | None = None,
        *,
        drops_managed_fields: bool = False,
    ) -> None:
        self.access = access
        self.limits = limits or ClientLimits()
        self.requests = 0
        self._user_agent = user_agent
        self._accept = _WITHOUT_MANAGED_FIELDS if drops_managed_fields else _JSON
        self._clock = clock
        self._host = urlsplit(access.server).netloc
        self._credentials = CredentialSource(access, clock, rotated)
        self._limiter = Limiter(self.limits.qps, self.limits.burst, self.limits.longest_wait_s)
        self._parallel = asyncio.Semaphore(self.limits.at_once)
        self._connection: ApiConnection | None = None

    async def get(self, path: str, kind: type[T], query: Mapping[str, str] | None = None) -> T:
        """The object at `path`, decoded as `kind`. Raises ApiError."""
        return _decoded(kind, await self.request("GET", path, query))

    async def create(self, path: str, body: object, kind: type[T]) -> T:
        """POST `body` (a struct or plain objects) to the path of a collection or subresource, and decode the answer as `kind`."""
        return _decoded(kind, await self.request("POST", path, None, encode(body), _JSON))

    async def update(self, path: str, body: object, kind: type[T]) -> T:
        """PUT `body` and decode the answer as `kind`. Raises ApiError (`is_conflict` for an old resource version)."""
        return _decoded(kind, await self.request("PUT", path, None, encode(body), _JSON))

    async def patch(self, path: str, body: object, how: PatchKind, kind: type[T]) -> T:
        """PATCH with `body` in the format `how`; the answer is decoded as `kind`. Raises ApiError."""
        return _decoded(kind, await self.request("PATCH", path, None, encode(body), how.value))

    async def delete(self, path: str, body: object | None = None) -> None:
        """DELETE the object at `path`. `body`: DeleteOptions."""
        await self.request("DELETE", path, None, encode(body) if body is not None else None, _JSON)

    async def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "",
    ) -> bytes:
        """Send one request and return the body of the answer. Waits for the rate limiter first; the deadline starts after that."""
        from pykubelet.edges.kubeapi.connection import timed_out, with_query

        full = with_query(path, query)
        await self._wait_to_send()
        async with self._parallel:
            try:
                async with asyncio.timeout(self.limits.deadline_s):
                    return await self._accepted(lambda: self._send(method, full, body, content_type))
            except TimeoutError as error:
                raise timed_out(self.limits.deadline_s, self.access.server) from error

    async def open(self, path: str, query: Mapping[str, str] | None = None) -> ApiStream:
        """GET with a streamed body, for watches and logs. Does not count for `ClientLimits.at_once`. Raises ApiError."""
        from pykubelet.edges.kubeapi.connection import timed_out, with_query

        full = with_query(path, query)
        await self._wait_to_send()
        try:
            async with asyncio.timeout(self.limits.deadline_s):
                return await self._accepted(lambda: self._open(full))
        except TimeoutError as error:
            raise timed_out(self.limits.deadline_s, self.access.server) from error

    async def close(self) -> None:
        """Close all connections. If the client is used again, it opens new ones."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _open(self, path: str) -> ApiStream:
        credentials = await self._credentials.current()
        try:
            return await self._counted("GET", self._connected().open(path, credentials))
        except ApiError as error:
            self._credentials_refused(error, credentials)
            raise

    async def _accepted(self, send: Callable[[], Awaitable[T]]) -> T:
        """The answer of `send`; if the server refuses the form of answers, that in the usual form, which is then kept.

        A server that refuses the usual form too means the request.
        """
        asked = self._accept
        try:
            return await send()
        except ApiError as error:
            if error.status not in _REFUSED_FORMS or asked == _JSON:
                raise
            self._ask_for(_JSON)
        try:
            answer = await send()
        except ApiError as error:
            if error.status in _REFUSED_FORMS:
                self._ask_for(asked)
            raise
        log.info("the API server cannot leave out managedFields", server=self.access.server)
        return answer

    def _ask_for(self, accept: str) -> None:
        self._accept = accept
        if self._connection is not None:
            self._connection.accept = accept

    async def _wait_to_send(self) -> None:
        try:
            await self._limiter.take()
        except QueueFull as error:
            text = f"too many requests to {self.access.server} are waiting to be sent"
            raise ApiError(0, QUEUE_FULL, text) from error

    async def _send(self, method: str, path: str, body: bytes | None, content_type: str) -> bytes:
        shown = await self._credentials.current()
        try:
            return await self._traced(method, path, shown, body, content_type)
        except ApiError as error:
            if not self._credentials_refused(error, shown):
                raise
            newer = await self._credentials.current()
            if newer is shown:
                raise
        return await self._traced(method, path, newer, body, content_type)

    async def _traced(
        self, method: str, path: str, credentials: RequestCredentials, body: bytes | None, content_type: str
    ) -> bytes:
        """Send a request within a span, and log it from verbosity 6 on."""
        began = self._clock.monotonic()
        with span(f"HTTP {method}", SpanKind.CLIENT) as traced:
            if traced is not NO_SPAN:
                traced.set("http.request.method", method)
                traced.set("url.full", self.access.server + path)
            sending = self._connected().request(method, path, credentials, body, content_type, traced.traceparent)
            try:
                answer = await self._counted(method, sending)
            except ApiError as error:
                traced.set("http.response.status_code", error.status)
                self._log_response(method, path, began, error)
                raise
            self._log_response(method, path, began, None)
            return answer

    def _log_response(self, method: str, path: str, began: float, error: ApiError | None) -> None:
        if log.shows(REQUESTED):
            took_ms = round((self._clock.monotonic() - began) * 1000)
            log.at(REQUESTED, "Response", verb=method, url=self.access.server + path, milliseconds=took_ms, error=error)

    async def _counted(self, method: str, sending: Awaitable[T]) -> T:
        """Measure one request for the metrics. A watch is measured until the head of its answer arrives."""
        self.requests += 1
        began, code = self._clock.monotonic(), "<error>"
        try:
            answer = await sending
            code = _CODES.get(method, "200")
            return answer
        except ApiError as error:
            code = str(error.status) if error.status else code
            raise
        finally:
            REQUESTS.inc(code, method, self._host)
            DURATIONS.observe(self._clock.monotonic() - began, method, self._host)

    def _credentials_refused(self, error: ApiError, shown: RequestCredentials) -> bool:
        if error.status == _UNAUTHORIZED:
            self._credentials.refused(shown)
        return error.status == _UNAUTHORIZED

    def _connected(self) -> ApiConnection:
        if self._connection is None:
            from pykubelet.edges.kubeapi.connection import ApiConnection

            self._connection = ApiConnection(self.access, self._user_agent, self._accept)
        return self._connection


def _decoded(kind: type[T], data: bytes) -> T:
    try:
        return decode(kind, data)
    except DecodeError as error:
        raise ApiError(0, "Undecodable", f"the answer is no {kind.__name__}: {error}") from error
