"""Which path gives what, on the health port and on the read-only port. Reads: `Roster`, `Statuses`."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from pykubelet.base.api import core
from pykubelet.base.api.codec import encode
from pykubelet.base.kit.cells import Cell
from pykubelet.base.model.roster import Roster, is_mirror
from pykubelet.base.model.statuses import Statuses
from pykubelet.report.server.health import Check, answer_health
from pykubelet.report.server.http import JSON, Request, Response, Route, text

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


def health_routes(checks: Mapping[str, Check]) -> Route:
    """The health port."""

    def route(request: Request) -> Response:
        return answer_health(request, checks) or NOT_FOUND

    return route


def read_only_routes(checks: Mapping[str, Check], roster: Cell[Roster], statuses: Cell[Statuses]) -> Route:
    """The read-only port: health and pods, nothing that changes or shows more."""

    def route(request: Request) -> Response:
        health = answer_health(request, checks)
        if health is not None:
            return health
        if request.path == "/pods":
            if request.method not in ("GET", "HEAD"):
                return WRONG_METHOD
            return Response(200, encode(pod_list(roster.get(), statuses.get())), JSON)
        if any(request.path.startswith(prefix) or request.path == prefix[:-1] for prefix in DEBUG_PREFIXES):
            return NO_DEBUGGING
        return NOT_FOUND

    return route


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
