"""The authenticated port: every request passes the gate, then goes to the one that answers its path.

Owns: the table of paths and what is said where nobody answers. Reads: the configuration of which groups are switched on.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pykubelet.base.api import core
from pykubelet.base.api.codec import encode
from pykubelet.base.kit.cells import Cell
from pykubelet.base.model.observed import Observed
from pykubelet.report.server.gate import Gate
from pykubelet.report.server.health import Check, answer_health
from pykubelet.report.server.http import JSON, Answer, Connection, Request, Response
from pykubelet.report.server.known_pods import KnownPods
from pykubelet.report.server.routes import DEBUG_PREFIXES, NO_DEBUGGING, NOT_FOUND, WRONG_METHOD, pod_list

Ask = Callable[[Request], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Path:
    """Who answers, and for which methods; none: for all."""

    ask: Ask
    methods: frozenset[str] = frozenset()


GET = frozenset({"GET", "HEAD"})
STREAM = frozenset({"GET", "POST"})
POST = frozenset({"POST"})


@dataclass(frozen=True, slots=True)
class ApiRoutes:
    """`exact`: whole paths. `below`: everything below these prefixes, which end in a slash. `debugging` is
    `enableDebuggingHandlers`: without it those prefixes say so."""

    gate: Gate
    checks: Mapping[str, Check]
    exact: Mapping[str, Path] = field(default_factory=dict)
    below: Mapping[str, Path] = field(default_factory=dict)
    debugging: bool = True

    async def handle(self, request: Request, connection: Connection) -> Answer:
        refused = await self.gate.refuse(request, connection)
        if refused is not None:
            return refused
        return await answer_path(self, request)


async def answer_path(routes: ApiRoutes, request: Request) -> Answer:
    """The answer to a request that may be asked."""
    health = answer_health(request, routes.checks)
    if health is not None:
        return health
    if not routes.debugging and _is_debugging(request.path):
        return NO_DEBUGGING
    path = routes.exact.get(request.path)
    if path is None:
        path = next((p for prefix, p in routes.below.items() if (request.path + "/").startswith(prefix)), None)
    if path is None:
        return NOT_FOUND
    if path.methods and request.method not in path.methods:
        return WRONG_METHOD
    return await path.ask(request)


def _is_debugging(path: str) -> bool:
    return any(path.startswith(prefix) or path == prefix[:-1] for prefix in DEBUG_PREFIXES)


def answering(make: Callable[[], Response]) -> Ask:
    """A path whose answer does not depend on the request."""

    async def ask(_: Request) -> Answer:
        return make()

    return ask


def pods_answer(pods: KnownPods) -> Response:
    """`/pods`."""
    return Response(200, encode(pod_list(pods.roster.get(), pods.statuses.get())), JSON)


def running_pods_answer(observed: Cell[Observed]) -> Response:
    """`/runningpods/`: what the runtime has, with no more than it knows."""
    items = []
    for view in observed.get().pods.values():
        if not view.is_alive:
            continue
        ref = view.ref
        meta = core.ObjectMeta(name=ref.name, namespace=ref.namespace, uid=ref.uid)
        names = {c.name: c.image for c in view.containers if c.is_running}
        spec = core.PodSpec(containers=tuple(core.Container(name=n, image=image) for n, image in names.items()))
        items.append(core.Pod(metadata=meta, spec=spec))
    return Response(200, encode(core.PodList(kind="PodList", apiVersion="v1", items=tuple(items))), JSON)


def configz_answer(config: Mapping[str, Any]) -> Response:
    """`/configz`: the configuration in use. `config` as it reads in JSON."""
    kind = {"kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1"}
    return Response(200, json.dumps({"kubeletconfig": {**kind, **config}}).encode(), JSON)
