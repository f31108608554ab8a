"""Routing on all ports: from a table of endpoints to the handler of a request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from pykubelet.base.kit.values import Value
from pykubelet.config.settings import Settings
from pykubelet.net.http.server import Answer, Connection, Handler, Request, Response
from pykubelet.serve.endpoints.endpoint import (
    ANY,
    NOT_FOUND,
    WRONG_METHOD,
    Endpoint,
    EndpointHandler,
    InputsT,
)
from pykubelet.serve.endpoints.health import PATH as HEALTH_PATH
from pykubelet.serve.endpoints.health import Check, health_handler


class _Route(Value):
    """`methods`: those that are allowed; ANY: all. `below`: everything below the path, too, and the path without its last slash."""

    path: str
    methods: frozenset[str]
    handler: EndpointHandler
    below: bool = False


class Router:
    """The routes of a port. A whole path goes before the path of which it is below, else the first route that matches counts."""

    def __init__(self, routes: Iterable[_Route]) -> None:
        self._exact: dict[str, _Route] = {}
        self._below: list[tuple[str, _Route]] = []
        for route in routes:
            if route.below:
                self._below.append((route.path.rstrip("/") + "/", route))
            else:
                self._exact[route.path] = route

    async def answer(self, request: Request) -> Answer:
        """The answer to a request that is authorized, or needs not be."""
        route = self._exact.get(request.path) or self._find_above(request.path + "/")
        if route is None:
            return NOT_FOUND
        if route.methods and request.method not in route.methods:
            return WRONG_METHOD
        return await route.handler(request)

    def _find_above(self, path: str) -> _Route | None:
        return next((route for prefix, route in self._below if path.startswith(prefix)), None)


def api_router(table: Iterable[Endpoint[InputsT]], settings: Settings, inputs: InputsT) -> Router:
    """The authenticated port."""
    routes = (_api_route(endpoint, settings, inputs) for endpoint in table)
    return Router(route for route in routes if route is not None)


def _api_route(endpoint: Endpoint[InputsT], settings: Settings, inputs: InputsT) -> _Route | None:
    if endpoint.group.needs_debugging and not settings.config.enableDebuggingHandlers:
        return _refusal(endpoint)
    if not endpoint.when(settings):
        return None
    if not endpoint.group.is_on(settings.config):
        return _route(endpoint, constant_handler(lambda: endpoint.group.disabled))
    return _route(endpoint, endpoint.handler(inputs))


def read_only_router(table: Iterable[Endpoint[InputsT]], inputs: InputsT) -> Router:
    """The read-only port: the endpoints that are there for clients without credentials; others as without debugging."""
    routes = (_route(one, one.handler(inputs)) if one.read_only else _refusal(one) for one in table)
    return Router(route for route in routes if route is not None)


def _route(endpoint: Endpoint[InputsT], handler: EndpointHandler) -> _Route:
    return _Route(endpoint.path, endpoint.methods, handler, endpoint.below)


def _refusal(endpoint: Endpoint[InputsT]) -> _Route | None:
    refusal = endpoint.group.refusal
    return _Route(endpoint.path, ANY, constant_handler(lambda: refusal), endpoint.below) if refusal else None


def unauthenticated_handler(router: Router) -> Handler:
    """For a port that asks for no credentials."""

    async def handle(request: Request, _: Connection) -> Answer:
        return await router.answer(request)

    return handle


def health_routes(checks: Mapping[str, Check]) -> Handler:
    """The health port."""
    return unauthenticated_handler(Router((_Route(HEALTH_PATH, ANY, health_handler(checks), below=True),)))


def constant_handler(make: Callable[[], Response]) -> EndpointHandler:
    """An endpoint whose answer does not depend on the request."""

    async def handle(_: Request) -> Answer:
        return make()

    return handle
