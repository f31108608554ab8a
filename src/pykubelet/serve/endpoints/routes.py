"""Routing on all ports: finds the handler of a request in a table of endpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from pykubelet.base.kit.tracing import SpanKind, is_traced, read_traceparent, span
from pykubelet.base.kit.values import Value
from pykubelet.config.settings import Settings
from pykubelet.net.http.server import Answer, Handler, Request, Response, ServedConnection, Takeover
from pykubelet.serve.endpoints.browsers import refuse_other_site
from pykubelet.serve.endpoints.endpoint import (
    ANY,
    NOT_FOUND,
    Endpoint,
    EndpointHandler,
    InputsT,
    wrong_method,
)
from pykubelet.serve.endpoints.health import PATH as HEALTH_PATH
from pykubelet.serve.endpoints.health import Check, health_handler
from pykubelet.serve.endpoints.until_ended import until_ended


class _Route(Value):
    """One route. `methods`: the allowed ones; ANY: all. `below`, `has_effect`: as in `Endpoint`."""

    path: str
    methods: frozenset[str]
    handler: EndpointHandler
    below: bool = False
    has_effect: bool = False


class Router:
    """The routes of a port. An exact match of the path has precedence over routes with `below`; else the first match counts.

    `traces`: whether requests make spans. `is_public`: the clients need no credentials, and there is no TLS. On all ports, what a
    browser requests for another site's page has no effect (`browsers.py`).
    """

    def __init__(self, routes: Iterable[_Route], *, traces: bool = True, is_public: bool = True) -> None:
        self._traces = traces
        self._is_public = is_public
        self._scheme = "http" if is_public else "https"
        self._exact: dict[str, _Route] = {}
        self._below: list[tuple[str, _Route]] = []
        for route in routes:
            if route.below:
                self._below.append((route.path.rstrip("/") + "/", route))
            else:
                self._exact[route.path] = route

    async def answer(self, request: Request) -> Answer:
        """The answer to a request that is authorized or needs no authorization."""
        route = self._exact.get(request.path) or self._find_above(request.path + "/")
        if route is None:
            return NOT_FOUND
        refused = refuse_other_site(request, self._scheme, has_effect=route.has_effect)
        if refused is not None:
            return refused
        if route.methods and request.method not in route.methods:
            return wrong_method(route.methods)
        if self._traces and is_traced():
            return await traced(route.path, route.handler, request, is_public=self._is_public)
        return await route.handler(request)

    def _find_above(self, path: str) -> _Route | None:
        return next((route for prefix, route in self._below if path.startswith(prefix)), None)


def api_router(table: Iterable[Endpoint[InputsT]], settings: Settings, inputs: InputsT) -> Router:
    """The routes of the authenticated port."""
    routes = (_api_route(endpoint, settings, inputs) for endpoint in table)
    return Router((route for route in routes if route is not None), is_public=False)


def _api_route(endpoint: Endpoint[InputsT], settings: Settings, inputs: InputsT) -> _Route | None:
    if endpoint.group.needs_debugging and not settings.config.enableDebuggingHandlers:
        return _refusal(endpoint)
    if not endpoint.when(settings):
        return None
    if not endpoint.group.is_on(settings.config):
        return _route(endpoint, constant_handler(lambda: endpoint.group.disabled))
    return _route(endpoint, endpoint.handler(inputs))


def read_only_router(table: Iterable[Endpoint[InputsT]], inputs: InputsT) -> Router:
    """The routes of the read-only port: endpoints with `read_only`; the others answer as without debugging handlers."""
    routes = (
        _route(endpoint, endpoint.handler(inputs)) if endpoint.read_only else _refusal(endpoint) for endpoint in table
    )
    return Router(route for route in routes if route is not None)


def _route(endpoint: Endpoint[InputsT], handler: EndpointHandler) -> _Route:
    return _Route(endpoint.path, endpoint.methods, handler, endpoint.below, endpoint.has_effect)


def _refusal(endpoint: Endpoint[InputsT]) -> _Route | None:
    refusal = endpoint.group.refusal
    return _Route(endpoint.path, ANY, constant_handler(lambda: refusal), endpoint.below) if refusal else None


def unauthenticated_handler(router: Router) -> Handler:
    """The handler of a port that needs no credentials."""

    async def handle(request: Request, _: ServedConnection) -> Answer:
        return await router.answer(request)

    return handle


def health_routes(checks: Mapping[str, Check]) -> Handler:
    """The handler of the health port."""
    route = _Route(HEALTH_PATH, ANY, health_handler(checks), below=True)
    return unauthenticated_handler(Router((route,), traces=False))


def constant_handler(make: Callable[[], Response]) -> EndpointHandler:
    """A handler with the same answer to every request."""

    async def handle(_: Request) -> Answer:
        return make()

    return handle


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
