"""Pods from a manifest URL: they come, change, stay while the server is away, and go."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from support.agent import Agent, Json, make_container, make_pod

pytestmark = pytest.mark.integration

MakeAgent = Callable[..., Agent]
STAY = 'trap "exit 0" TERM; while :; do sleep 3600 & wait $!; done'


@dataclass
class Served:
    """What the URL gives; `code` other than 200 is a failure. `headers`: of the last question."""

    pods: list[Json] = field(default_factory=list)
    code: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    url: str = ""


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.headers = dict(self.headers)
            pods = {"apiVersion": "v1", "kind": "PodList", "items": served.pods}
            body = json.dumps(pods).encode() if served.code == 200 else b"out of order"
            self.send_response(served.code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """The test's output is no place for it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served.url = f"http://127.0.0.1:{server.server_address[1]}/pods"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield served
        server.shutdown()
        thread.join()


async def test_pods_of_a_url_come_change_and_go(make_agent: MakeAgent, served: Served) -> None:
    served.pods = [make_pod("one"), make_pod("two", make_container(script=f"echo before; {STAY}"))]
    header = {"X-Node": ["node-1"]}
    agent = make_agent(staticPodURL=served.url, staticPodURLHeader=header, httpCheckFrequency="500ms").start()
    agent.put(make_pod("from-file"))
    await agent.wait_running("one", "two", "from-file")
    assert served.headers["X-Node"] == "node-1"
    sources = {pod["name"]: pod["source"] for pod in agent.ask_json("pods")["pods"]}
    assert sources == {"one-node": "http", "two-node": "http", "from-file-node": "file"}
    [kept] = (await agent.look()).of("one-node").running

    served.pods[1] = make_pod("two", make_container(script=f"echo after; {STAY}"))
    await agent.wait_for("the changed pod runs", lambda: agent.output("two", "main") == "after\n")
    await agent.wait_running("two")

    served.code = 500

    def reported() -> bool:
        return any(served.url in problem["origin"] for problem in agent.ask_json("pods")["problems"])

    await agent.wait_for("the failing URL is reported", reported)
    assert "500" in agent.ask("pods").stdout
    await agent.wait_running("one", "two")

    served.code, served.pods = 200, served.pods[:1]
    await agent.wait_gone("two")
    assert [c.id for c in (await agent.look()).of("one-node").running] == [kept.id], "it was never touched"
    assert not agent.ask_json("pods")["problems"]
    served.pods = []
    await agent.wait_gone("one")
    await agent.remove_all()
    assert agent.stop() == 0
