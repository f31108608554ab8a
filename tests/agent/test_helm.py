"""helm with the local API and a node of real containers: two charts, from their installation to their removal.

`HELM` names the program, of helm 3 or 4; without it the test is skipped.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent.test_local_api import LocalApi, api, joined
from support.agent import Agent

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif("HELM" not in os.environ, reason="HELM names no program of helm"),
]
__all__ = ["api"]  # the fixture
CHARTS = Path(__file__).with_name("charts")
MAP = "/api/v1/namespaces/shop/configmaps/web"
PROXY = "/api/v1/namespaces/shop/services/web:http/proxy/"
KINDS = ("pods", "services", "configmaps", "secrets", "serviceaccounts", "persistentvolumeclaims")


class Helm:
    """The program, with folders of its own, for the administrator of the API."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        folders = {f"HELM_{name}_HOME": str(folder / name) for name in ("CACHE", "CONFIG", "DATA")}
        self._env = {**os.environ, **folders, "KUBECONFIG": str(kubeconfig)}

    async def run(self, *words: str, fails: bool = False) -> str:
        """What it prints."""
        command = [os.environ["HELM"], "-n", "shop", *words]
        done = await asyncio.to_thread(
            subprocess.run, command, env=self._env, capture_output=True, text=True, timeout=300, check=False
        )
        assert (done.returncode != 0) == fails, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr


async def items(api: LocalApi, path: str) -> list[Any]:
    status, body = await asyncio.to_thread(api.ask, path)
    assert status == 200, body
    found: list[Any] = json.loads(body)["items"]
    return found


async def greeting(api: LocalApi) -> Any:
    return json.loads((await asyncio.to_thread(api.ask, MAP))[1])["data"]["index.html"]


async def test_charts_are_installed_upgraded_rolled_back_and_removed(
    api: LocalApi, make_agent: Callable[..., Agent], tmp_path: Path
) -> None:
    helm, web = Helm(api.data / "admin.kubeconfig", tmp_path), str(CHARTS / "web")
    waiting = ("--wait", "--timeout", "120s")
    async with joined(api, make_agent):
        await helm.run("install", "web", web, "--create-namespace", *waiting)
        assert await asyncio.to_thread(api.ask, PROXY) == (200, "hello")  # the service has the pod, which is ready
        assert "Succeeded" in await helm.run("test", "web", "--logs")
        keys = [secret for secret in await items(api, "/api/v1/namespaces/shop/secrets") if "key" in secret["data"]]

        await helm.run("upgrade", "web", web, "--set", "greeting=bye", *waiting)
        assert await greeting(api) == "bye"
        refused = await helm.run("upgrade", "web", web, "--set", "port=8081", *waiting, fails=True)
        assert 'Pod "web" is invalid: spec: Forbidden: pod updates may not change fields other than' in refused
        await helm.run("rollback", "web", "1", *waiting)
        assert await greeting(api) == "hello"
        history = json.loads(await helm.run("history", "web", "-o", "json"))
        assert [entry["status"] for entry in history] == ["superseded", "superseded", "failed", "deployed"]
        now = [secret for secret in await items(api, "/api/v1/namespaces/shop/secrets") if "key" in secret["data"]]
        assert [secret["data"] for secret in now] == [secret["data"] for secret in keys], "the chart looks it up"

        path = ("--set", f"path={tmp_path}/volume")
        await helm.run("install", "store", str(CHARTS / "store"), *path, *waiting)
        assert len((tmp_path / "volume/log").read_text().splitlines()) == 1
        await helm.run("upgrade", "store", str(CHARTS / "store"), *path, *waiting)
        found = json.loads(await helm.run("list", "-o", "json"))
        assert {entry["name"]: entry["revision"] for entry in found} == {"store": "2", "web": "4"}

        for name in ("web", "store"):
            await helm.run("uninstall", name, *waiting)
        assert json.loads(await helm.run("list", "-o", "json")) == []
        left = [
            item["metadata"]["name"] for kind in KINDS for item in await items(api, f"/api/v1/namespaces/shop/{kind}")
        ]
        assert sorted(left) == ["default", "kube-root-ca.crt", "web-test"]
        assert await items(api, "/api/v1/persistentvolumes") == []
