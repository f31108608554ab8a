"""A real browser in front of the API server, as dashboards have it: what the API server passes on for it is served.

The page is `kubectl proxy`'s own in one case and one of another site in the other: the node gets the browser's `Origin`, and
has to leave the decision to the API server.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.agent import NODE_NAME, Agent, make_container, make_pod
from support.browser import Browser, Tab
from support.cluster import Cluster
from testbed import host

#: A command through a WebSocket: all that came on the output, once the connection is closed.
EXEC = """new Promise((resolve) => {
    const query = 'command=sh&command=-c&command=echo+$((40%2B2))&stdout=true&stderr=true';
    const socket = new WebSocket(`${proxy.replace('http', 'ws')}/api/v1/namespaces/NAMESPACE/pods/web/exec?${query}`, 'PROTOCOL');
    socket.binaryType = 'arraybuffer';
    let output = '';
    socket.onmessage = (message) => {
        const data = new Uint8Array(message.data);
        if (data[0] === 1) output += new TextDecoder().decode(data.slice(1));
    };
    socket.onclose = () => resolve(output);
})"""
#: A request to the node through its proxy of the API server.
RUN = "fetch(`${proxy}/api/v1/nodes/NODE/proxy/run/NAMESPACE/web/main?cmd=echo+hello`, {method: 'POST'}).then((a) => a.text())"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    opened = Browser(tmp_path / "profile")
    yield opened
    opened.close()


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    folder = tmp_path / "pages"
    folder.mkdir()
    (folder / "page.html").write_text("<title>a dashboard</title>")
    return folder


@pytest.fixture
def other_site(pages: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(pages))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://localhost:{server.server_port}/page.html"
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(cluster: Cluster, cluster_agent: Agent, pages: Path) -> Iterator[str]:
    """`kubectl proxy`, which also passes on exec."""
    cluster.run(make_pod("web", make_container("main")))
    cluster.wait_ready("web")
    port = host.free_port(0)
    plane = cluster.plane
    command = [str(plane.programs.kubectl), "--kubeconfig", str(plane.admin), "proxy", f"--port={port}"]
    with subprocess.Popen([*command, f"--www={pages}", "--reject-paths=^$"], stdout=subprocess.PIPE) as running:
        assert running.stdout is not None and b"Starting to serve" in running.stdout.readline()
        yield f"http://127.0.0.1:{port}"
        running.terminate()


def value(tab: Tab, proxy: str, script: str, cluster: Cluster, protocol: str = "") -> str:
    for name, word in (("NAMESPACE", cluster.namespace), ("NODE", NODE_NAME), ("PROTOCOL", protocol)):
        script = script.replace(name, word)
    return str(tab.run_undisturbed(f"(async () => {{ const proxy = '{proxy}'; return await {script}; }})()"))


@pytest.mark.parametrize("protocol", ["v4.channel.k8s.io", "v5.channel.k8s.io"])
def test_exec_from_a_page_through_the_api_server(
    cluster: Cluster, proxy: str, browser: Browser, other_site: str, protocol: str
) -> None:
    for page in (f"{proxy}/static/page.html", other_site):
        with browser.tab() as tab:
            tab.open(page).wait("document.title === 'a dashboard'")
            assert value(tab, proxy, EXEC, cluster, protocol) == "42\n", page


def test_a_request_to_the_node_from_a_page_through_the_api_server(
    cluster: Cluster, proxy: str, browser: Browser
) -> None:
    with browser.tab() as tab:
        tab.open(f"{proxy}/static/page.html").wait("document.title === 'a dashboard'")
        assert value(tab, proxy, RUN, cluster) == "hello\n"
