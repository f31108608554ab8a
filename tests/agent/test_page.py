"""The node's web page in a real browser without a window, and the door it has on loopback."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.agent import Agent, make_container, make_pod
from support.api import NodeApi
from testbed import containerd, host

pytestmark = pytest.mark.integration
BROWSER = shutil.which("chromium") or "chromium"
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--mute-audio",
)


@pytest.fixture(scope="module")
def shown(testbed: containerd.Testbed) -> Iterator[tuple[Agent, int]]:
    """An agent with a page, a pod that runs and one that waits; and the page's port."""
    port = host.free_port(0)
    authentication = {"anonymous": {"enabled": True}, "webhook": {"enabled": False}}
    folder = Path(testbed.folder) / "agent-page"
    agent = Agent(testbed, folder, {"authentication": authentication}, ("--cadvisor-port", str(port)))
    with asyncio.Runner() as runner:
        try:
            agent.start()
            agent.put(
                make_pod("web", make_container("talk")),
                make_pod("stuck", make_container("main", image="localhost/nobody-has-this:1")),
            )
            runner.run(agent.wait_running("web"))
            NodeApi(agent.port).wait_listening()
            yield agent, port
        finally:
            runner.run(agent.clear())


def get(port: int, path: str, **headers: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


def new_link(agent: Agent) -> str:
    answer = agent.ask("page")
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


def browse(link: str, folder: Path, *flags: str) -> str:
    """What the page is after five seconds of its life, as HTML."""
    argv = [BROWSER, *FLAGS, f"--user-data-dir={folder}", "--virtual-time-budget=8000", "--timeout=40000", *flags]
    done = subprocess.run([*argv, "--dump-dom", link], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_the_door_opens_once(shown: tuple[Agent, int]) -> None:
    agent, port = shown
    assert get(port, "/page/")[0] == 401
    assert get(port, "/page/data")[0] == 401
    assert get(port, "/page/open?token=guess")[0] == 401
    link = new_link(agent)
    path = link.removeprefix(f"http://127.0.0.1:{port}")
    status, headers, _ = get(port, path)
    assert (status, headers["Location"]) == (303, "/page/")
    cookie = headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    session = cookie.split(";")[0]
    assert get(port, path)[0] == 401
    status, headers, text = get(port, "/page/data", Cookie=session)
    assert status == 200 and "default-src 'none'" in headers["Content-Security-Policy"]
    document = json.loads(text)
    assert {pod["name"] for pod in document["pods"]} == {"web-node", "stuck-node"}
    assert document["node"]["memory"] > 1 << 20 and document["images"]
    assert get(port, "/page/", Cookie=session, Host="evil.example")[0] == 403
    assert get(port, "/page/../pods", Cookie=session)[0] == 404
    assert get(port, "/page/__init__.py", Cookie=session)[0] == 404
    older, newer = new_link(agent), new_link(agent)
    assert get(port, older.removeprefix(f"http://127.0.0.1:{port}"))[0] == 401
    assert get(port, newer.removeprefix(f"http://127.0.0.1:{port}"))[0] == 303


def test_the_page_is_on_the_authenticated_port_too(shown: tuple[Agent, int]) -> None:
    code, text = NodeApi(shown[0].port).ask("/page/")
    assert code == 200 and "<title>pykubelet node</title>" in text
    files = "".join(NodeApi(shown[0].port).ask(f"/page/{name}")[1] for name in ("app.js", "style.css"))
    assert "http" not in files.replace("http://www.w3.org/2000/svg", "")  # nothing from elsewhere


@pytest.mark.parametrize(
    ("name", "flags"), [("page", ("--window-size=1280,1400",)), ("page-phone", ("--window-size=390,1600",))]
)
def test_a_browser_shows_it(shown: tuple[Agent, int], tmp_path: Path, name: str, flags: tuple[str, ...]) -> None:
    agent, _ = shown
    picture = tmp_path / f"{name}.png"
    html = browse(new_link(agent), tmp_path / "profile", *flags, f"--screenshot={picture}")
    text = re.sub(r"<[^>]+>", " ", html)
    assert "Node node" in text and "2 pods, 1 waiting for something" in text
    assert "default/web-node" in text and "default/stuck-node" in text
    assert "ErrImageNeverPull" in text and "waits for: " in text
    assert len(re.findall(r'<svg[^>]*role="img"[^>]*aria-label="[^"]+: now', html)) == 5
    assert 'lang="en"' in html and 'scope="col"' in html
    assert "Cannot ask the agent" not in text
    assert urlsplit(new_link(agent)).hostname == "127.0.0.1"
    assert picture.stat().st_size > 10_000
