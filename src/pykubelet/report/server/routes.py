"""The tables of paths: who answers what on the ports that ask nobody who they are, and what all ports have in common.

Reads: `Roster`, `Statuses`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from pykubelet.base.api import core
from pykubelet.base.kit.values import Value, field, replace
from pykubelet.base.model.roster import Roster, is_mirror
from pykubelet.base.model.statuses import Statuses
from pykubelet.report.server.health import Check, answer_health
from pykubelet.report.server.http.server import Answer, Connection, Handler, Request, Response, text

Ask = Callable[[Request], Awaitable[Answer]]
DEBUG_PREFIXES = (
    "/run/",
    "/exec/",
    "/attach/",
    "/portForward/",
    "/containerLogs/",
    "/runningpods/",
    "/debug/pprof/",
    "/logs/",
)
NOT_FOUND = text(404, "404: Page Not Found")
WRONG_METHOD = text(405, "405: Method Not Allowed")
NO_DEBUGGING = text(405, "Debug endpoints are disabled.\n")


class Path(Value):
    """Who answers, and for which methods; none: for all."""

    ask: Ask
    methods: frozenset[str] = frozenset()


GET = frozenset({"GET", "HEAD"})
STREAM = frozenset({"GET", "POST"})
POST = frozenset({"POST"})
PUT = frozenset({"PUT"})


class OpenRoutes(Value):
    """`exact`: whole paths. `below`: everything below these prefixes, which end in a slash. `debugging` is
    `enableDebuggingHandlers`: without it those prefixes say so."""

    checks: Mapping[str, Check]
    exact: Mapping[str, Path] = field(default_factory=dict)
    below: Mapping[str, Path] = field(default_factory=dict)
    debugging: bool = False


async def answer_path(routes: OpenRoutes, request: Request) -> Answer:
    """The answer to a request that may be asked."""
    health = answer_health(request, routes.checks)
    if health is not None:
        return health
    if not routes.debugging and any(
        request.path.startswith(prefix) or request.path == prefix[:-1] for prefix in DEBUG_PREFIXES
    ):
        return NO_DEBUGGING
    path = routes.exact.get(request.path)
    if path is None:
        path = next((p for prefix, p in routes.below.items() if (request.path + "/").startswith(prefix)), None)
    if path is None:
        return NOT_FOUND
    if path.methods and request.method not in path.methods:
        return WRONG_METHOD
    return await path.ask(request)


def open_handler(routes: OpenRoutes) -> Handler:
    """For a port that asks nobody who they are."""

    async def handle(request: Request, _: Connection) -> Answer:
        return await answer_path(routes, request)

    return handle


def health_routes(checks: Mapping[str, Check]) -> Handler:
    """The health port."""
    return open_handler(OpenRoutes(checks, debugging=True))


def answering(make: Callable[[], Response]) -> Ask:
    """A path whose answer does not depend on the request."""

    async def ask(_: Request) -> Answer:
        return make()

    return ask


def pod_list(roster: Roster, statuses: Statuses) -> core.PodList:
    """All desired pods with their statuses, mirror pods left out, by namespace and name. Pure."""
    items = []
    for uid, entry in roster.pods.items():
        if is_mirror(entry.pod):
            continue
        status = statuses.pods.get(uid, entry.pod.status)
        items.append(replace(entry.pod, kind="", apiVersion="", status=status))
    items.sort(key=lambda pod: (pod.metadata.namespace, pod.metadata.name, pod.metadata.uid))
    return core.PodList(kind="PodList", apiVersion="v1", items=tuple(items))
