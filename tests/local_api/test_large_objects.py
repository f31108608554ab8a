"""Objects of the largest size do not keep the API from answering other clients."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import msgspec
import pytest
from local_api.server import account_made, serving
from local_api.test_restart import MAPS, ask, client_of

PODS = "/api/v1/namespaces/default/pods"
#: The longest that another client may wait meanwhile: a part of the time that one such decision takes.
LONGEST_S = 0.5


def pod(containers: int) -> dict[str, Any]:
    """A pod near the limit of bodies."""
    listed = [
        {"name": f"c{number}", "image": "example.test/none:1", "env": [{"name": "A", "value": "x" * 150}]}
        for number in range(containers)
    ]
    return {"metadata": {"name": "large"}, "spec": {"containers": listed}}


async def test_other_clients_are_answered_while_a_large_pod_is_decided(tmp_path: Path) -> None:
    async with serving(tmp_path) as api, client_of(api) as client:
        await account_made(api)
        await ask(client, "POST", MAPS, {"metadata": {"name": "small"}})
        loop = asyncio.get_running_loop()
        creating = asyncio.ensure_future(ask(client, "POST", PODS, pod(4000)))
        waits, began = [], loop.time()
        while not creating.done():
            start = loop.time()
            assert (await ask(client, "GET", f"{MAPS}/small"))[0] == 200
            waits.append(loop.time() - start)
        took_s = loop.time() - began
        status, made = await creating
        assert status == 201, made
        assert len(waits) >= 5
        assert sorted(waits)[len(waits) // 2] < max(took_s / 5, LONGEST_S)


async def test_a_body_above_the_limit_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as api, client_of(api) as client:
        await account_made(api)
        body = msgspec.json.encode({"metadata": {"name": "huge"}, "data": {"a": "x" * (3 << 20)}})
        async with client.post(MAPS, data=io.BytesIO(body), headers={"Content-Type": "application/json"}) as answer:
            assert answer.status == 413
        assert (await ask(client, "GET", f"{MAPS}/huge"))[0] == 404


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/apis/authentication.k8s.io/v1/tokenreviews"),
        ("POST", "/api/v1/namespaces/default/serviceaccounts/default/token"),
        ("POST", f"{PODS}/web/eviction"),
        ("DELETE", f"{MAPS}/web"),
        ("DELETE", MAPS),
    ],
)
async def test_a_body_that_is_no_object_is_small(tmp_path: Path, method: str, path: str) -> None:
    async with serving(tmp_path) as api, client_of(api) as client:
        await account_made(api)
        status, found = await ask(client, method, path, {"spec": {"token": "x" * (200 << 10)}})
        assert (status, found["reason"]) == (413, "RequestEntityTooLarge")
