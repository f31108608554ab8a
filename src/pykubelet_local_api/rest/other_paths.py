"""The paths that are no resource's: health, metrics, version, discovery, OpenAPI, and the documents about tokens.

A new one is an entry in `_ANSWERS`; the tests with hostile requests take the paths from there.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from pykubelet.net.http.server import Answer, Response, text
from pykubelet.net.http.wire import Request
from pykubelet_local_api.access.tokens import CONFIGURATION_PATH, KEYS_PATH
from pykubelet_local_api.errors import method_not_allowed, unknown_path
from pykubelet_local_api.kinds.discovery import ServedDocument, discovery, discovery_paths
from pykubelet_local_api.kinds.openapi import openapi, openapi_paths
from pykubelet_local_api.kinds.table import KINDS
from pykubelet_local_api.objects import Json
from pykubelet_local_api.rest.access import ClientAccess
from pykubelet_local_api.rest.formats import JSON, failure
from pykubelet_local_api.rest.metrics import METRICS_PATHS, metrics
from pykubelet_local_api.store.store import ObjectStore
from pykubelet_local_api.view import RequestUser

#: Below these paths, answers to paths that are not served are a Status.
_OF_RESOURCES = (
    "/api/",
    "/version/",
    *(f"/apis/{group}/" for group in dict.fromkeys(kind.group for kind in KINDS if kind.group)),
)


class OtherPaths:
    """Answers requests for these paths. `version`, `problem`: as for `ObjectsHandler`."""

    def __init__(self, store: ObjectStore, access: ClientAccess, version: Json, problem: Callable[[], str]) -> None:
        self._store = store
        self._access = access
        self._version = version
        self._problem = problem

    def answer(self, request: Request, user: RequestUser, verb: str) -> Answer:
        """Answer a request. `verb`: as RBAC names it. Raises StatusError."""
        path = request.path if request.path == "/" else request.path.rstrip("/")
        is_read = request.method in ("GET", "HEAD")
        self._access.check_path(user, "get" if is_read else verb, path)
        answer = _ANSWERS.get(path)
        if answer is not None and is_read:
            return answer(self, path, request.headers.get("accept", ""))
        if answer in (OtherPaths.version, OtherPaths.discovery):
            raise method_not_allowed()
        return failure(unknown_path()) if request.path.startswith(_OF_RESOURCES) else text(404, "404 page not found\n")

    def health(self, path: str, _: str) -> Response:
        """Whether the server is alive, or ready."""
        problem = self._problem() if path.startswith("/readyz") else ""
        return text(500 if problem else 200, problem or "ok")

    def metrics(self, path: str, _: str) -> Answer:
        """The metrics."""
        return metrics(path, self._store, self._problem())

    def version(self, _path: str, _accept: str) -> Response:
        """The release."""
        return Response(200, msgspec.json.encode(self._version), JSON)

    def discovery(self, path: str, accept: str) -> Response:
        """Which resources there are."""
        return _document(discovery(path, accept))

    def openapi(self, path: str, accept: str) -> Response:
        """What their objects have."""
        return _document(openapi(path, accept))

    def tokens(self, path: str, _: str) -> Response:
        """How tokens are checked."""
        return Response(200, msgspec.json.encode(self._access.document(path)), JSON)


def _document(found: ServedDocument | None) -> Response:
    assert found is not None, "a path of the table has a document"
    return Response(200, found.body, found.content_type)


_HEALTH = tuple(f"/{name}{part}" for name in ("healthz", "livez", "readyz") for part in ("", "/ping"))
#: By path, what answers a GET: from the path and the header Accept.
_ANSWERS: dict[str, Callable[[OtherPaths, str, str], Answer]] = {
    **dict.fromkeys(_HEALTH, OtherPaths.health),
    **dict.fromkeys(METRICS_PATHS, OtherPaths.metrics),
    "/version": OtherPaths.version,
    **dict.fromkeys(discovery_paths(), OtherPaths.discovery),
    **dict.fromkeys(openapi_paths(), OtherPaths.openapi),
    **dict.fromkeys((CONFIGURATION_PATH, KEYS_PATH), OtherPaths.tokens),
}
SERVED_PATHS = tuple(_ANSWERS)
