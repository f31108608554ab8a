"""Service account tokens: bound to their pod, replaced in time, kept while they are valid."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from provide.objects.stand import pod_with, stand, token_source
from support.api_server import ApiFault
from support.memory_api import virtual_api_server

from pykubelet.base.model.content import Present, Token, TokenKey, Unreadable
from pykubelet.base.model.ids import PodUID
from pykubelet.provide.objects.model import ContentSettings

pytestmark = pytest.mark.virtual_time

PATH = "/api/v1/namespaces/shop/serviceaccounts/clerk/token"


def key(audience: str = "", seconds: int = 3607, uid: str = "u1") -> TokenKey:
    return TokenKey(PodUID(uid), "shop", f"web-{uid}", "clerk", audience, seconds)


async def test_a_token_is_asked_for_once_bound_to_the_pod() -> None:
    async with stand() as s:
        s.want(pod_with(projected=(token_source("vault", 700),)))
        found = await s.found(key("vault", 700))
        assert isinstance(found, Present) and isinstance(found.value, Token)
        assert found.value.token and found.value.token not in repr(found)
        (asked,) = [sent for sent in s.server.requests if sent.method == "POST"]
        assert asked.path == PATH
        assert asked.body["spec"] == {
            "audiences": ["vault"],
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "web-u1", "uid": "u1"},
            "expirationSeconds": 700,
        }


async def test_each_pod_has_its_own_token_and_it_is_forgotten_with_the_pod() -> None:
    async with stand() as s:
        pod, other = (pod_with(projected=(token_source(),), uid=uid) for uid in ("u1", "u2"))
        s.want(pod, other)
        await s.until(lambda content: len(content.tokens) == 2)
        s.want(other)
        await s.until(lambda content: set(content.tokens) == {key(uid="u2")})
        assert s.server.count("POST") == 2


async def test_a_token_is_replaced_before_it_ends() -> None:
    server = virtual_api_server()
    server.answers["/token"] = short_lived
    async with stand(server=server) as s:
        s.want(pod_with(projected=(token_source(),)))
        first = await s.value(key())
        server.answers.clear()
        second = await s.value(key(), lambda value: value != first)
        assert second.token != first.token


async def test_a_token_that_cannot_be_replaced_stays_until_it_has_expired() -> None:
    server = virtual_api_server()
    server.answers["/token"] = short_lived
    async with stand(ContentSettings(refresh_retry_s=0.05), server) as s:
        s.want(pod_with(projected=(token_source(),)))
        first = await s.value(key())
        server.faults.append(ApiFault("POST", PATH, 503, "ServiceUnavailable", "later", times=-1))
        found = await s.found(key(), lambda found: isinstance(found, Unreadable))
        assert isinstance(found, Unreadable)
        assert found.message == 'token "shop/clerk" expired and refresh failed: later'
        assert [type(form) for form in s.forms_of(key())] == [Present, Unreadable]
        assert server.count("POST") >= 3  # the first try to replace it failed while it was valid, and was not reported
        server.faults.clear()
        assert await s.value(key(), lambda value: value != first)


def short_lived(body: Any) -> Any:
    """Valid for two seconds, so that it is replaced after one."""
    spec = {**body["spec"], "expirationSeconds": 2}
    return {**body, "spec": spec, "status": {"token": f"t{id(body)}", "expirationTimestamp": "2030-01-01T00:00:00Z"}}


async def test_an_absent_account_is_reported_at_once_and_found_when_it_comes() -> None:
    async with stand() as s:
        message = 'serviceaccounts "clerk" not found'
        s.server.faults.append(ApiFault("POST", PATH, 404, "NotFound", message, times=3))
        s.want(pod_with(projected=(token_source(),)))
        found = await s.found(key())
        assert isinstance(found, Unreadable)
        assert found.message == f"failed to fetch token: {message}"
        await s.value(key())


async def test_refusals_and_faults_of_the_first_moments_are_not_reported() -> None:
    async with stand() as s:
        s.server.faults.append(ApiFault("POST", PATH, 403, "Forbidden", "no relationship found between node and"))
        s.server.faults.append(ApiFault("POST", PATH, 500, "InternalError", "oops"))
        s.server.faults.append(ApiFault("POST", PATH))
        s.want(pod_with(projected=(token_source(),)))
        await s.value(key())
        assert [type(form) for form in s.forms_of(key())] == [Present]


async def test_a_refusal_that_lasts_is_reported() -> None:
    async with stand(ContentSettings(answer_timeout_s=0.1)) as s:
        s.server.faults.append(ApiFault("POST", PATH, 403, "Forbidden", "no", times=-1))
        s.want(pod_with(projected=(token_source(),)))
        found = await s.found(key())
        assert isinstance(found, Unreadable) and found.message == "failed to fetch token: no"


async def test_a_server_that_never_answers_holds_up_one_pod_only() -> None:
    async with stand(deadline_s=2.0) as s:
        s.server.faults.append(ApiFault("POST", PATH, hang=True, times=1))
        s.want(pod_with(projected=(token_source(),)))
        await s.until_server(lambda: s.server.count("POST") == 1)
        s.want(pod_with(projected=(token_source(),)), pod_with(projected=(token_source(),), uid="u2"))
        await s.value(key(uid="u2"))
        assert s.content.get().find(key()) is None
        await s.value(key())  # after the deadline of the first request
        await asyncio.sleep(0)


async def test_an_answer_without_a_usable_token_is_no_token() -> None:
    async with stand(ContentSettings(answer_timeout_s=0.0)) as s:
        answers: Iterator[dict[str, Any]] = iter(
            ({"status": {}}, {"status": {"token": "t", "expirationTimestamp": "soon"}})
        )
        s.server.answers["/token"] = lambda body: {**body, **next(answers)}
        s.want(pod_with(projected=(token_source(),)))
        first = await s.found(key())
        assert isinstance(first, Unreadable) and "the answer has no token" in first.message
        second = await s.found(key(), lambda found: found is not first)
        assert isinstance(second, Unreadable) and "no usable expirationTimestamp" in second.message
        s.server.answers.clear()
        await s.value(key())
