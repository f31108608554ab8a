"""The authenticated port: every request passes the gate, then goes to the one that answers its path.

Owns: the table of paths and what is said where nobody answers. Reads: the configuration of which groups are switched on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pykubelet.base.api import core
from pykubelet.base.api.codec import encode
from pykubelet.base.kit.cells import Cell
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.observed import Observed
from pykubelet.report.server.gate import Gate
from pykubelet.report.server.http.server import JSON, Answer, Connection, Request, Response
from pykubelet.report.server.known_pods import KnownPods
from pykubelet.report.server.routes import OpenRoutes, answer_path, pod_list

MASK = "<masked>"
_USER_INFORMATION = re.compile(r"^([^/?#]*//)[^/?#]*@")


class ApiRoutes(Value):
    """The gate, and what lies behind it."""

    gate: Gate
    open: OpenRoutes

    async def handle(self, request: Request, connection: Connection) -> Answer:
        refused = await self.gate.refuse(request, connection)
        if refused is not None:
            return refused
        connection.let_in()
        body = await connection.read_body()  # only now: who may not ask makes the agent read nothing but heads
        return await answer_path(self.open, replace(request, body=body) if body else request)


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
    """`/configz`: the configuration in use, without the credentials in it. `config` as it reads in JSON."""
    kind = {"kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1"}
    return Response(200, json.dumps({"kubeletconfig": {**kind, **_without_credentials(config)}}).encode(), JSON)


def _without_credentials(config: Mapping[str, Any]) -> dict[str, Any]:
    """With the values of `staticPodURLHeader` and the user information of `staticPodURL` masked."""
    shown = dict(config)
    if headers := config.get("staticPodURLHeader"):
        shown["staticPodURLHeader"] = {name: [MASK] * len(values) for name, values in headers.items()}
    if url := config.get("staticPodURL"):
        shown["staticPodURL"] = _USER_INFORMATION.sub(rf"\1{MASK}@", url)
    return shown
