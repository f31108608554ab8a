"""The handler of the authenticated port, and the answers of `/pods`, `/allocatedPods`, `/runningpods/` and `/configz`.

Every request is authenticated and authorized, then routed by its path.

Reads: `Roster`, `Statuses`, `Observed`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pykubelet.base.api import core
from pykubelet.base.api.codec import encode
from pykubelet.base.kit.cells import Cell
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.roster import Roster, is_mirror
from pykubelet.base.model.statuses import Statuses
from pykubelet.net.http.server import JSON, Answer, Request, Response, ServedConnection, text
from pykubelet.serve.auth.auth_filter import AuthFilter
from pykubelet.serve.endpoints.known_pods import KnownPods
from pykubelet.serve.endpoints.routes import Router


class ApiHandler(Value):
    """The handler of the authenticated port: authentication and authorization before routing."""

    auth: AuthFilter
    router: Router

    async def handle(self, request: Request, connection: ServedConnection) -> Answer:
        """Answer a request; its body is read only after authorization."""
        refused = await self.auth.refuse(request, connection)
        if refused is not None:
            return refused
        await connection.admit()
        body = await connection.read_body()  # only now, so that nothing but the head of a refused request is read
        return await self.router.answer(replace(request, body=body) if body else request)


def pod_list(roster: Roster, statuses: Statuses) -> core.PodList:
    """All desired pods with their statuses, without mirror pods, sorted by namespace and name. Pure."""
    items = []
    for uid, entry in roster.pods.items():
        if is_mirror(entry.pod):
            continue
        status = statuses.pods.get(uid, entry.pod.status)
        items.append(replace(entry.pod, kind="", apiVersion="", status=status))
    items.sort(key=lambda pod: (pod.metadata.namespace, pod.metadata.name, pod.metadata.uid))
    return core.PodList(kind="PodList", apiVersion="v1", items=tuple(items))


def pods_answer(pods: KnownPods) -> Response:
    """`/pods`."""
    return Response(200, encode(pod_list(pods.roster.get(), pods.statuses.get())), JSON)


class AllocatedPods(Value):
    """`/allocatedPods` and `/allocatedPods/<namespace>/<name>`: the admitted pods with the sizes that the node has allocated."""

    pods: KnownPods

    async def answer(self, request: Request) -> Response:
        """All of them as a PodList, or one Pod. Their statuses are empty."""
        wanted = [part for part in request.path.split("/") if part][1:]
        found = allocated_pods(self.pods.roster.get())
        if not wanted:
            return Response(200, encode(core.PodList(kind="PodList", apiVersion="v1", items=found)), JSON)
        if len(wanted) != len(("namespace", "name")):
            return text(404, "the path is /allocatedPods/<namespace>/<name>\n")
        for pod in found:
            if [pod.metadata.namespace, pod.metadata.name] == wanted:
                return Response(200, encode(replace(pod, kind="Pod", apiVersion="v1")), JSON)
        return text(404, f"pod {'/'.join(wanted)} is not allocated on this node\n")


def allocated_pods(roster: Roster) -> tuple[core.Pod, ...]:
    """The admitted pods without their statuses, without mirror pods, sorted by namespace and name. Pure."""
    items = [
        replace(entry.pod, kind="", apiVersion="", status=core.PodStatus())
        for entry in roster.pods.values()
        if entry.rejection is None and entry.admission_wait is None and not is_mirror(entry.pod)
    ]
    items.sort(key=lambda pod: (pod.metadata.namespace, pod.metadata.name, pod.metadata.uid))
    return tuple(items)


def running_pods_answer(observed: Cell[Observed]) -> Response:
    """`/runningpods/`: the pods that run in the runtime, with the fields that the runtime knows."""
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
    """`/configz`. `config`: the configuration in use as JSON values, without credentials."""
    return Response(200, json.dumps({"kubeletconfig": config}).encode(), JSON)
