"""What is true after a restart of the local API: objects, credentials, and what clients with older versions are answered."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from local_api.server import account_made, serving

from pykubelet_local_api.begin import LocalApiStartError
from pykubelet_local_api.wiring import LocalApi


@asynccontextmanager
async def client_of(api: LocalApi) -> AsyncIterator[aiohttp.ClientSession]:
    """An administrator's client."""
    found = await asyncio.to_thread(lambda: yaml.safe_load(Path(api.kubeconfig).read_text()))
    cluster, user = found["clusters"][0]["cluster"], found["users"][0]["user"]
    tls = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    folder = Path(api.kubeconfig).parent
    files = [folder / "test-client.crt", folder / "test-client.key"]
    for file, name in zip(files, ("client-certificate-data", "client-key-data"), strict=True):
        await asyncio.to_thread(file.write_bytes, base64.b64decode(user[name]))
    tls.load_cert_chain(files[0], files[1])
    async with aiohttp.ClientSession(api.url, connector=aiohttp.TCPConnector(ssl=tls)) as client:
        yield client


async def ask(
    client: aiohttp.ClientSession, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, Any]:
    """The status and the body of an answer."""
    async with client.request(method, path, json=body, headers=headers) as answer:
        return answer.status, await answer.json()


MAPS = "/api/v1/namespaces/default/configmaps"


async def test_objects_versions_and_tokens_survive_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path) as api, client_of(api) as client:
        await account_made(api)
        _, made = await ask(client, "POST", MAPS, {"metadata": {"name": "kept"}, "data": {"a": "1"}})
        await ask(client, "POST", MAPS, {"metadata": {"name": "gone"}})
        await ask(client, "DELETE", f"{MAPS}/gone")
        _, before = await ask(client, "GET", MAPS)
        _, token = await ask(client, "POST", "/api/v1/namespaces/default/serviceaccounts/default/token", {"spec": {}})
        authority = (tmp_path / "ca.crt").read_bytes()
    async with serving(tmp_path) as api, client_of(api) as client:
        await account_made(api)
        assert await ask(client, "GET", f"{MAPS}/kept") == (200, made)
        assert (await ask(client, "GET", f"{MAPS}/gone"))[0] == 404
        _, after = await ask(client, "GET", MAPS)
        assert after["items"] == before["items"]
        assert int(after["metadata"]["resourceVersion"]) >= int(before["metadata"]["resourceVersion"])
        status, review = await ask(
            client, "POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": token["status"]["token"]}}
        )
        assert status == 201
        assert review["status"]["user"]["username"] == "system:serviceaccount:default:default"
        assert (tmp_path / "ca.crt").read_bytes() == authority


async def test_a_watch_from_before_a_restart_lists_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as api, client_of(api) as client:
        await account_made(api)
        _, listed = await ask(client, "GET", MAPS)
        await ask(client, "POST", MAPS, {"metadata": {"name": "later"}})
    async with serving(tmp_path) as api, client_of(api) as client:
        await account_made(api)
        version = listed["metadata"]["resourceVersion"]
        async with client.get(f"{MAPS}?watch=true&resourceVersion={version}") as answer:
            line = await answer.content.readline()
        assert b'"type":"ERROR"' in line
        assert b'"code":410' in line


async def test_two_programs_do_not_use_one_folder(tmp_path: Path) -> None:
    async with serving(tmp_path):
        with pytest.raises(LocalApiStartError, match="another process uses"):
            async with serving(tmp_path):
                raise AssertionError("a second program has started")
