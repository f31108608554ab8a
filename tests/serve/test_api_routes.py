"""The authenticated port: the body of a request is read after its authorization."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from serve.ports import settings_of

from pykubelet.base.kit.clock import ManualClock
from pykubelet.net.http.server import Answer, Request, Response, ServedConnection, text
from pykubelet.net.http.wire import Body
from pykubelet.serve.auth.access import Subresource
from pykubelet.serve.auth.auth_filter import AuthFilter, AuthRules
from pykubelet.serve.endpoints.api_routes import ApiHandler
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
