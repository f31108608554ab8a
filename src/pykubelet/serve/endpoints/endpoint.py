"""An endpoint of the agent's ports, and everything that is derived from a table of endpoints. Pure.

Rules:

1. Every endpoint declares its authorization; there is no default.
2. The first segment of a path determines its authorization, even if no endpoint has that path: `/stats/none` is authorized
   like `/stats/summary`. So endpoints with the same first segment must declare the same authorization. If no endpoint has the
   first segment of a path, the path needs `nodes/proxy`.
3. Only endpoints with `read_only` are on the read-only port, which needs no credentials.

Source: the Kubernetes documentation "Kubelet authentication/authorization"; KEP-2862 (fine-grained authorization).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from pykubelet.base.kit.values import Value
from pykubelet.config.kubelet import KubeletConfiguration
from pykubelet.config.settings import Settings
from pykubelet.net.http.server import Answer, Request, Response, text
from pykubelet.serve.auth.access import AuthorizationRules, Subresource, first_segment

InputsT = TypeVar("InputsT")
EndpointHandler = Callable[[Request], Awaitable[Answer]]
#: The labels `path` and `long_running` of requests, by `counted_name`.
PathLabels = Mapping[str, tuple[str, bool]]

ANY: frozenset[str] = frozenset()
GET = frozenset({"GET", "HEAD"})
#: Also the methods of paths that upgrade the connection.
GET_OR_POST = frozenset({"GET", "POST"})
POST = frozenset({"POST"})
PUT = frozenset({"PUT"})

NOT_FOUND = text(404, "404: Page Not Found")
NO_DEBUGGING = text(405, "Debug endpoints are disabled.\n")
OTHER = "other"


def wrong_method(allowed: frozenset[str]) -> Response:
    """The answer to a method that a path does not have. `Allow` names GET alone where HEAD works too, as in the reference."""
    return Response(405, b"405: Method Not Allowed", headers={"Allow": ", ".join(sorted(allowed - {"HEAD"}))})


def always(_: object) -> bool:
    """The condition of an endpoint that no setting disables."""
    return True


class EndpointGroup(Value):
    """Endpoints that KubeletConfiguration enables together.

    `needs_debugging`: they are served only with `enableDebuggingHandlers`. `refusal`: the answer to any method without it, and on
    the read-only port; None: the path does not exist there. `is_on`: reads the group's own field; `disabled`: the answer while
    that is off.
    """

    needs_debugging: bool = True
    refusal: Response | None = None
    is_on: Callable[[KubeletConfiguration], bool] = always
    disabled: Response = NOT_FOUND


CORE = EndpointGroup(needs_debugging=False)
DEBUGGING = EndpointGroup(refusal=NO_DEBUGGING)
#: Without `enableDebuggingHandlers` these paths do not exist.
HIDDEN = EndpointGroup()
PROFILING = EndpointGroup(
    refusal=NO_DEBUGGING,
    is_on=lambda config: bool(config.enableProfilingHandler),
    disabled=text(405, "profiling endpoint is disabled.\n"),
)
SYSTEM_LOGS = EndpointGroup(
    refusal=NO_DEBUGGING,
    is_on=lambda config: bool(config.enableSystemLogHandler),
    disabled=text(405, "logs endpoint is disabled.\n"),
)
DEBUG_FLAGS = EndpointGroup(
    is_on=lambda config: bool(config.enableDebugFlagsHandler),
    disabled=text(405, "flags endpoint is disabled.\n"),
)


class Endpoint(Value, Generic[InputsT]):
    """One endpoint. `path`: as `/statusz` lists it.

    `below`: all paths below it, and the path without its last slash, belong to the endpoint too.
    `methods`: the allowed ones; ANY: all. `handler`: makes the handler from the inputs, once per port.
    `authorization`: subresources of the node, tried in this order; the first that is allowed admits the request.
    `when`: whether this node has the endpoint at all, for feature gates and flags.
    `read_only`: it is also on the read-only port, for clients without credentials.
    `has_effect`: a GET of it does something beyond reading, so that no browser may make it for another site's page.
    `label`, `long_running`: labels of the HTTP metrics; without a label, the path determines it (see `counted_name`).

    Raises ValueError for an endpoint that no port could serve, or that declares no authorization.
    """

    path: str
    methods: frozenset[str]
    handler: Callable[[InputsT], EndpointHandler]
    authorization: tuple[Subresource, ...]
    group: EndpointGroup
    below: bool = False
    when: Callable[[Settings], bool] = always
    read_only: bool = False
    label: str = ""
    long_running: bool = False
    has_effect: bool = False

    def __post_init__(self) -> None:
        if not first_segment(self.path):
            raise ValueError(f"{self.path!r}: a path begins with a slash and a name")
        if not self.authorization:
            raise ValueError(f"{self.path}: name the subresources that authorize it")
        if self.read_only and self.group.needs_debugging:
            raise ValueError(f"{self.path}: a debugging endpoint cannot be on the read-only port")


def authorization_rules(table: Iterable[Endpoint[Any]]) -> AuthorizationRules:
    """The authorization rules by the first segment of a path. Raises ValueError if two endpoints contradict each other."""
    rules: dict[str, tuple[Subresource, ...]] = {}
    for endpoint in table:
        found = rules.setdefault(first_segment(endpoint.path), endpoint.authorization)
        if found != endpoint.authorization:
            raise ValueError(f"{endpoint.path}: another endpoint below its first segment is authorized otherwise")
    return rules


def counted_name(path: str) -> str:
    """The part of a path by which HTTP metrics count: its first segment; for paths of metrics, the first two."""
    parts = path.strip("/").split("/")
    return "/".join(parts[:2]) if parts[0] == "metrics" else parts[0]


def metric_labels(table: Iterable[Endpoint[Any]]) -> PathLabels:
    """The labels of all requests that are not counted as `other`. Raises ValueError if two endpoints contradict each other."""
    labels: dict[str, tuple[str, bool]] = {}
    for endpoint in table:
        name = counted_name(endpoint.path)
        own = endpoint.label or name, endpoint.long_running
        if labels.setdefault(name, own) != own:
            raise ValueError(f"{endpoint.path}: another endpoint that is counted as {name!r} has other labels")
    return labels


def is_served(endpoint: Endpoint[Any], settings: Settings) -> bool:
    """Whether the authenticated port has the endpoint. An endpoint of a group whose own field is off counts as served."""
    debugging = bool(settings.config.enableDebuggingHandlers)
    return (debugging or not endpoint.group.needs_debugging) and endpoint.when(settings)


def listed_paths(table: Iterable[Endpoint[Any]], settings: Settings) -> tuple[str, ...]:
    """The paths of the authenticated port as `/statusz` lists them, sorted."""
    return tuple(sorted(endpoint.path for endpoint in table if is_served(endpoint, settings)))
