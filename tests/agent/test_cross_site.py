"""A page of another site in a real browser, and what it can do on the node's ports: open them, and nothing else.

The port admits every client here, as it would admit a browser with an administrator's certificate, which browsers send with
requests of any page.
"""

from __future__ import annotations

import asyncio
import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.agent import Agent, make_container, make_pod
from support.api import NodeApi
from support.browser import Browser, Tab
from testbed import host
from testbed.private_runtime import Testbed

pytestmark = pytest.mark.integration
POD = "web-node"
#: Each way in which a page can make a browser send something, as an expression for a script: a promise of the end.
ATTEMPTS = {
    "a request": "fetch(`${port}/run/default/web-node/talk?cmd=touch+/tmp/request`, {method: 'POST', mode: 'no-cors'})",
    "a request that asks": "fetch(`${port}/run/default/web-node/talk?cmd=touch+/tmp/asked`, {method: 'POST', mode: 'cors'})",
    "a WebSocket": """new Promise((resolve) => {
        const query = 'command=touch&command=/tmp/socket&output=1&error=1';
        const socket = new WebSocket(`${port.replace('https', 'wss')}/exec/default/web-node/talk?${query}`, 'v4.channel.k8s.io');
        socket.onclose = resolve;
    })""",
    "a WebSocket of the newest kind": """new Promise((resolve) => {
        const query = 'command=touch&command=/tmp/newest&output=1&error=1';
        const socket = new WebSocket(`${port.replace('https', 'wss')}/exec/default/web-node/talk?${query}`, 'v5.channel.k8s.io');
        socket.onclose = resolve;
    })""",
    "an image": """new Promise((resolve) => {
        const image = new Image();
        image.onload = image.onerror = resolve;
        image.src = `${port}/debug/pprof/profile?seconds=1`;
    })""",
}


class Page(BaseHTTPRequestHandler):
    """Every path is an empty page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<title>another site</title>")

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    opened = Browser(tmp_path_factory.mktemp("profile"), "--ignore-certificate-errors")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """Another site: its name is not the node's address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://localhost:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def agent(testbed: Testbed) -> Iterator[Agent]:
    authentication = {"anonymous": {"enabled": True}, "webhook": {"enabled": False}}
    folder = Path(testbed.folder) / "agent-cross-site"
    started = Agent(testbed, folder, {"authentication": authentication}, ("--cadvisor-port", str(host.free_port(0))))
    with asyncio.Runner() as runner:
        try:
            started.start()
            started.put(make_pod("web", make_container("talk")))
            runner.run(started.wait_running("web"))
            NodeApi(started.port).wait_listening()
            yield started
        finally:
            runner.run(started.clear())


def made(agent: Agent) -> set[str]:
    """The files that something has made in the container; they are removed."""
    api = NodeApi(agent.port)
    status, names = api.ask(f"/run/default/{POD}/talk?cmd=ls+/tmp", "POST")
    assert status == 200
    for name in names.split():
        api.ask(f"/run/default/{POD}/talk?cmd=rm+/tmp/{name}", "POST")
    return set(names.split())


def attempt(tab: Tab, agent: Agent, name: str) -> None:
    tab.run_undisturbed(
        f"(async () => {{ const port = 'https://127.0.0.1:{agent.port}'; await {ATTEMPTS[name]}.catch?.(() => 0); }})()"
    )


def served(agent: Agent, part: str) -> list[int]:
    """The statuses of the requests in the agent's log that have this in their target."""
    lines = [line for line in agent.log_file.read_text().splitlines() if 'URI="' in line and part in line]
    return [int(line.rpartition("resp=")[2].split()[0]) for line in lines]


@pytest.mark.parametrize("name", [name for name in ATTEMPTS if name != "an image"])
def test_a_page_of_another_site_changes_nothing(browser: Browser, site: str, agent: Agent, name: str) -> None:
    with browser.tab() as tab:
        tab.open(site).wait("document.title === 'another site'")
        attempt(tab, agent, name)
    assert made(agent) == set()


def test_a_form_of_another_site_shows_why_it_is_refused(browser: Browser, site: str, agent: Agent) -> None:
    action = f"https://127.0.0.1:{agent.port}/run/default/web-node/talk?cmd=touch+/tmp/form"
    submit = f"document.body.innerHTML = '<form method=POST action=\"{action}\"></form>'; document.forms[0].submit()"
    with browser.tab() as tab:
        tab.leave(site, submit, "document.body.innerText.includes('a browser makes this request for another site')")
        assert site.rstrip("/") in tab.text()
    assert made(agent) == set()


def test_an_image_of_another_site_starts_no_profile(browser: Browser, site: str, agent: Agent) -> None:
    with browser.tab() as tab:
        tab.open(site).wait("document.title === 'another site'")
        attempt(tab, agent, "an image")
    # an attempt that the browser gave up is repeated, and may have reached the agent
    assert set(served(agent, "/debug/pprof/profile")) == {403}


def test_a_link_of_another_site_opens_the_page_of_the_node(browser: Browser, site: str, agent: Agent) -> None:
    with browser.tab() as tab:
        go = f"location.href = 'https://127.0.0.1:{agent.port}/page/'"
        tab.leave(site, go, "document.title.includes('pykubelet')")


@pytest.mark.parametrize(("name", "file"), [("a request", "request"), ("a WebSocket", "socket")])
def test_a_page_of_the_node_itself_may(browser: Browser, agent: Agent, name: str, file: str) -> None:
    with browser.tab() as tab:
        tab.open(f"https://127.0.0.1:{agent.port}/page/").wait("document.title.includes('pykubelet')")
        attempt(tab, agent, name)
    assert made(agent) == {file}


@pytest.mark.parametrize("host_name", ["x", "evil.example:10255"])
def test_the_read_only_port_answers_under_no_other_name(agent: Agent, host_name: str) -> None:
    for headers, status in (({"Host": host_name}, 403), ({"Host": "node:10255"}, 200), ({}, 200)):
        connection = http.client.HTTPConnection("127.0.0.1", agent.read_only_port, timeout=60)
        connection.request("GET", "/pods", headers=headers)
        assert connection.getresponse().status == status
        connection.close()
