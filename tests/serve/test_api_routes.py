"""The authenticated port: the body of a request is read after its authorization."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from report.samples import container, entry, make_pod
from serve.ports import GATES_OF_ENDPOINTS, inputs_of, settings_of

from pykubelet.base.api.core import Pod, PodList, PodStatus
from pykubelet.base.kit.cells import make_cell
from pykubelet.base.kit.clock import ManualClock
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.roster import Rejection, Roster
from pykubelet.base.model.waits import Owner, Wait
from pykubelet.net.http.server import Answer, Request, Response, ServedConnection, text
from pykubelet.net.http.wire import Body
from pykubelet.serve.auth.access import Subresource
from pykubelet.serve.auth.auth_filter import AuthFilter, AuthRules
from pykubelet.serve.endpoints.api_routes import AllocatedPods, ApiHandler
from pykubelet.serve.endpoints.endpoint import CORE, PUT, Endpoint
from pykubelet.serve.endpoints.routes import api_router


async def echo(request: Request) -> Answer:
    return text(200, request.body.decode())


ECHO: Endpoint[None] = Endpoint("/echo", PUT, lambda _: echo, (Subresource.PROXY,), CORE)


@pytest.mark.parametrize(
    ("anonymous", "expected"), [(False, (401, b"Unauthorized", b"body")), (True, (200, b"body", b""))]
)
async def test_a_body_is_read_after_the_request_was_authorized(
    anonymous: bool, expected: tuple[int, bytes, bytes]
) -> None:
    rules = AuthRules(
        "node",
        anonymous,
        tokens=False,
        token_ttl_s=1,
        always_allow=True,
        allowed_ttl_s=1,
        denied_ttl_s=1,
        authorization={},
    )
    routes = ApiHandler(AuthFilter(rules, None, ManualClock()), api_router((ECHO,), settings_of(), None))
    reader = asyncio.StreamReader()
    reader.feed_data(b"body")
    reader.feed_eof()
    writer: Any = None  # nothing is written
    connection = ServedConnection(reader, writer, body=Body(reader, 4, 60.0))
    answer = await routes.handle(Request("PUT", "/echo"), connection)
    assert isinstance(answer, Response)
    assert (answer.status, answer.body, await reader.read()) == expected


async def test_allocated_pods_are_the_admitted_ones_without_status() -> None:
    web = make_pod(container("main"), name="web", uid="1")
    entries = (
        entry(replace(web, status=PodStatus(phase="Running"))),
        entry(make_pod(name="rejected", uid="2"), rejection=Rejection("OutOfcpu", "")),
        entry(make_pod(name="new", uid="3"), admission_wait=Wait("node", Owner.POD_ADMISSION, 0.0)),
    )
    inputs = inputs_of(settings_of(gates=GATES_OF_ENDPOINTS))
    roster = make_cell("roster", Roster({PodUID(item.pod.metadata.uid): item for item in entries}))[0]
    handler = AllocatedPods(replace(inputs.pods, roster=roster))

    async def ask(path: str) -> tuple[int, bytes]:
        answer = await handler.answer(Request("GET", path))
        return answer.status, answer.body

    status, body = await ask("/allocatedPods")
    listed = msgspec.json.decode(body, type=PodList)
    assert (status, listed.kind, [pod.metadata.name for pod in listed.items]) == (200, "PodList", ["web"])
    status, body = await ask("/allocatedPods/default/web")
    found = msgspec.json.decode(body, type=Pod)
    assert (status, found.kind, found.apiVersion, found.spec, found.status) == (200, "Pod", "v1", web.spec, PodStatus())
    assert await ask("/allocatedPods/default/rejected") == (
        404,
        b"pod default/rejected is not allocated on this node\n",
    )
    assert (await ask("/allocatedPods/default"))[0] == (await ask("/allocatedPods/a/b/c"))[0] == 404
