"""Spans of requests that are authorized or need no authorization. A span lasts until the last byte of the answer."""

from __future__ import annotations

from pykubelet.base.kit.tracing import SpanKind, read_traceparent, span
from pykubelet.net.http.server import Answer, Request, Takeover
from pykubelet.serve.endpoints.endpoint import EndpointHandler
from pykubelet.serve.endpoints.until_ended import until_ended

SERVER_ERROR = 500
SWITCHED = 101


async def traced(route: str, handler: EndpointHandler, request: Request, *, is_public: bool) -> Answer:
    """Answer within a span, which is a child of the client's. `route`: the path of the endpoint, which names the span.

    `is_public`: clients need no credentials, so they cannot make the node record; their span is only linked.
    """
    attributes = {"http.request.method": request.method, "http.route": route, "url.path": request.path[:256]}
    remote = read_traceparent(request.headers.get("traceparent", ""))
    served = span(route, SpanKind.SERVER, attributes, remote=remote, is_public=is_public)
    served.enter()
    try:
        answer = await handler(request)
    except BaseException as error:
        served.fail(str(error) or type(error).__name__)
        served.end()
        raise
    finally:
        served.leave()
    status = SWITCHED if isinstance(answer, Takeover) else answer.status
    served.set("http.response.status_code", status)
    if status >= SERVER_ERROR:
        served.fail("")
    return until_ended(answer, served.end)
