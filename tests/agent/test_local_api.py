"""A node that joins the local API as it joins any API server, with real containers: files that are applied, logs, exec, proxies."""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.agent import NODE_NAME, PROGRAM, WAIT_S, Agent
from testbed import host, images
from websockets.asyncio.client import connect

pytestmark = pytest.mark.integration
PODS = "/api/v1/namespaces/default/pods"
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "labels": {"app": "web"}},
    "spec": {
        "containers": [
            {
                "name": "c",
                "image": images.BUSYBOX,
                "command": ["sh", "-c", "echo hello; exec httpd -f -p 8080 -h /etc"],
                "ports": [{"containerPort": 8080}],
            }
        ],
        "terminationGracePeriodSeconds": 0,
    },
}


class LocalApi:
    """The program as a process, and its administrator."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "api"
        self.applied = folder / "apply"
        self.log = folder / "api.log"
        self.port = host.free_port(0)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.applied.mkdir(exist_ok=True)
        argv = [str(PROGRAM), "local-api", "--data-dir", str(self.data), "--port", str(self.port)]
        argv += ["--node-name", NODE_NAME, "--service-address", "", "--apply-dir", str(self.applied)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)

    @property
    def tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.data / "ca.crt"))
        pair = "local-api-client"
        context.load_cert_chain(self.data / f"{pair}.crt", self.data / f"{pair}.key")
        return context

    def ask(self, path: str, method: str = "GET", body: Any = None) -> tuple[int, str]:
        """Status and body of the answer; (0, "") if there is none."""
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=self.tls, timeout=20)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except OSError:
            return 0, ""
        finally:
            connection.close()

    async def wait(self, path: str, holds: Callable[[int, Any], bool]) -> Any:
        """Wait until an object is as wanted. `holds` gets the status and the object."""
        async with asyncio.timeout(WAIT_S):
            while True:
                status, body = await asyncio.to_thread(self.ask, path)
                found = json.loads(body) if body.startswith("{") else {}
                if holds(status, found):
                    return found
                await asyncio.sleep(0.1)

    async def wait_files(self) -> None:
        """Wait until the certificates are made."""
        made = (self.data / "kubelet.kubeconfig").exists
        assert await asyncio.to_thread(host.wait_until, made, WAIT_S), self.log.read_text()

    async def wait_running(self, name: str) -> Any:
        def is_running(status: int, pod: Any) -> bool:
            return status == 200 and pod.get("status", {}).get("phase") == "Running"

        return await self.wait(f"{PODS}/{name}", is_running)

    async def execute(self, name: str, *command: str) -> dict[int, bytes]:
        """The output of a command by the number of its channel."""
        words = "&".join(f"command={word}" for word in command)
        url = f"wss://127.0.0.1:{self.port}{PODS}/{name}/exec?stdout=1&stderr=1&{words}"
        output: dict[int, bytes] = {}
        async with connect(url, ssl=self.tls, subprotocols=["v5.channel.k8s.io"]) as socket:  # type: ignore[list-item]
            async for message in socket:
                assert isinstance(message, bytes)
                output[message[0]] = output.get(message[0], b"") + message[1:]
        return output


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[LocalApi]:
    made = LocalApi(tmp_path)
    made.start()
    try:
        await made.wait_files()
        await made.wait("/api/v1/namespaces/default", lambda status, _: status == 200)
        yield made
    finally:
        made.stop()


@asynccontextmanager
async def joined(api: LocalApi, make_agent: Callable[..., Agent]) -> AsyncIterator[Agent]:
    authority = str(api.data / "ca.crt")
    agent = make_agent(
        ("--kubeconfig", str(api.data / "kubelet.kubeconfig")),
        address="0.0.0.0",
        authentication={
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": authority},
        },
        authorization={"mode": "Webhook"},
    )
    agent.start()
    yield agent
    agent.stop()


async def test_a_pod_of_the_api_has_a_log_commands_and_a_proxy(api: LocalApi, make_agent: Callable[..., Agent]) -> None:
    async with joined(api, make_agent):
        status, body = await asyncio.to_thread(api.ask, PODS, "POST", POD)
        assert status == 201, body
        pod = await api.wait_running("web")
        assert pod["spec"]["nodeName"] == NODE_NAME
        assert await asyncio.to_thread(api.ask, f"{PODS}/web/log") == (200, "hello\n")
        assert await api.execute("web", "echo", "hi") == {1: b"hi\n", 3: b'{"metadata":{},"status":"Success"}'}
        status, passwd = await asyncio.to_thread(api.ask, f"{PODS}/web/proxy/passwd")
        assert (status, passwd.startswith("root:")) == (200, True)
        assert await asyncio.to_thread(api.ask, f"/api/v1/nodes/{NODE_NAME}/proxy/healthz") == (200, "ok")
        done = await asyncio.to_thread(
            subprocess.run,
            [str(PROGRAM), "local-api", "export", "--data-dir", str(api.data)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "\nkind: Pod\n" in done.stdout and "nodeName" not in done.stdout
        assert (await asyncio.to_thread(api.ask, f"{PODS}/web", "DELETE"))[0] == 200
        await api.wait(f"{PODS}/web", lambda status, _: status == 404)


async def test_a_file_is_applied_and_its_pod_ends_with_it(api: LocalApi, make_agent: Callable[..., Agent]) -> None:
    async with joined(api, make_agent):
        file = api.applied / "web.json"
        file.write_text(json.dumps(POD))
        await api.wait_running("web")
        file.unlink()
        await api.wait(f"{PODS}/web", lambda status, _: status == 404)
