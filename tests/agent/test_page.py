"""The node's web page in a real browser without a window, and the port it has on loopback."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from support.agent import Agent, Json, make_container, make_pod
from support.api import NodeApi
from support.browser import Browser, Tab
from testbed import host
from testbed.private_runtime import Testbed

pytestmark = pytest.mark.integration
#: Ends with words that would be more than words if they came onto a page as HTML.
RUDE = "echo '<img src=x onerror=alert(1)>' > /dev/termination-log; exit 1"
SCRATCH: Json = {"volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def shown(testbed: Testbed) -> Iterator[tuple[Agent, int]]:
    """An agent with a page, a pod that runs, one that waits and one that fails; and the page's port."""
    port = host.free_port(0)
    authentication = {"anonymous": {"enabled": True}, "webhook": {"enabled": False}}
    folder = Path(testbed.folder) / "agent-page"
    agent = Agent(testbed, folder, {"authentication": authentication}, ("--cadvisor-port", str(port)))
    with asyncio.Runner() as runner:
        try:
            agent.start()
            agent.put(
                make_pod(
                    "web",
                    make_container("talk", imagePolicy="x", **SCRATCH),
                    volumes=[{"name": "scratch", "emptyDir": {}}],
                ),
                make_pod("rude", make_container("main", RUDE)),
                make_pod("stuck", make_container("main", image="localhost/missing:1")),
            )
            runner.run(agent.wait_running("web"))
            NodeApi(agent.port).wait_listening()
            yield agent, port
        finally:
            runner.run(agent.clear())


def get(port: int, path: str, **headers: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
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


def test_the_port_opens_once(shown: tuple[Agent, int]) -> None:
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
    assert {pod["name"] for pod in document["pods"]} == {"web-node", "stuck-node", "rude-node"}
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
    files = "".join(
        NodeApi(shown[0].port).ask(f"/page/{name}")[1] for name in ("app.js", "pod.js", "charts.js", "style.css")
    )
    assert "://" not in files.replace("http://www.w3.org/2000/svg", "")  # nothing from elsewhere


def test_a_session_ends_with_the_agent(shown: tuple[Agent, int]) -> None:
    agent, port = shown
    link = new_link(agent)
    session = get(port, link.removeprefix(f"http://127.0.0.1:{port}"))[1]["Set-Cookie"].split(";")[0]
    agent.stop()
    agent.start()
    assert get(port, "/page/data", Cookie=session)[0] == 401


def open_page(tab: Tab, agent: Agent) -> Tab:
    """Opened with a new link, and showing the three pods."""
    tab.open(new_link(agent)).wait("document.querySelectorAll('.pods .head').length === 3")
    return tab


def open_pod(tab: Tab, pod: str) -> None:
    """With a click; until what is inside has come."""
    tab.run(f"{button(pod)}.click()")
    tab.wait(f"!!{inside(pod)}.querySelector('.timeline li')")


def button(pod: str) -> str:
    return (
        f"[...document.querySelectorAll('.head button')].find((button) => button.textContent === 'default/{pod}-node')"
    )


def inside(pod: str) -> str:
    return f"{button(pod)}.closest('tbody').querySelector('.inside')"


#: The lowest contrast of any text with what is behind it: [ratio, text].
CONTRAST = """(() => {
  const numbers = (colour) => colour.match(/[0-9.]+/g).map(Number);
  const light = (colour) => numbers(colour).slice(0, 3).map((part) => part / 255)
    .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0);
  const behind = (node) => {
    const colour = getComputedStyle(node).backgroundColor;
    return numbers(colour)[3] === 0 ? behind(node.parentElement) : colour;
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let lowest = [99, ""];
  while (texts.nextNode()) {
    const node = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !node.checkVisibility() || node.closest("noscript")) continue;
    const [a, b] = [light(getComputedStyle(node).color), light(behind(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < lowest[0]) lowest = [ratio, texts.currentNode.data];
  }
  return lowest;
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 800, 360])
def test_it_can_be_read_in_both_schemes_and_at_every_width(
    shown: tuple[Agent, int], browser: Browser, tmp_path: Path, width: int, scheme: str
) -> None:
    with browser.tab(width, prefers_color_scheme=scheme) as tab:
        open_page(tab, shown[0])
        open_pod(tab, "stuck")
        open_pod(tab, "rude")
        tab.picture(tmp_path / f"{width}-{scheme}.png")  # to be looked at
        assert tab.run("document.documentElement.scrollWidth <= innerWidth"), "it has to be scrolled sideways"
        ratio, words = tab.run(CONTRAST)
        assert ratio >= 4.5, words
        paper = tab.run("getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(255, 255, 255)") is (scheme == "light")
        assert tab.complaints() == []


def test_what_a_pod_waits_for_its_charts_and_its_timeline(shown: tuple[Agent, int], browser: Browser) -> None:
    with browser.tab() as tab:
        open_page(tab, shown[0])
        tab.wait("document.body.innerText.includes('Pods: 3, 2 not well')")  # one that crashes runs now and then
        text = tab.text()
        assert "Node node" in text
        assert "waits for container start main: ErrImageNeverPull: Container image" in text
        open_pod(tab, "stuck")
        reported = str(tab.run(f"{inside('stuck')}.innerText"))
        assert "Waits for" in reported and "by pod worker" in reported and "next: " in reported
        assert "localhost/missing:1" in reported and "PodScheduled" in reported and "Timeline" in reported
        open_pod(tab, "web")
        figures = f"{inside('web')}.querySelectorAll('svg')"
        tab.wait(f"[...{figures}].every((chart) => chart.querySelector('.line'))", 60)
        names = tab.run(f"[...{figures}].map((chart) => chart.getAttribute('aria-label'))")
        assert [re.split(r"[:,]", name)[0] for name in names] == ["CPU", "Memory", "Network", "Disk"]
        assert all("now " in name and "peak " in name and "in the last" in name for name in names), names
        assert "received " in names[2] and "sent " in names[2]
        assert "scratch" in str(tab.run(f"{inside('web')}.querySelector('.volumes').innerText"))


def test_remarks_about_manifests(shown: tuple[Agent, int], browser: Browser) -> None:
    words = 'web.json: spec.containers[0].imagePolicy: unknown field, ignored; did you mean "imagePullPolicy"?'
    with browser.tab() as tab:
        open_page(tab, shown[0])
        shown_above = tab.run("document.getElementById('remarks').innerText")
        assert shown_above.startswith("Remark: /") and shown_above.endswith(words), shown_above
        open_pod(tab, "web")
        assert tab.run(f"{inside('web')}.querySelector('.remarks').innerText") == shown_above
        open_pod(tab, "rude")
        assert tab.run(f"{inside('rude')}.querySelector('.remarks').innerText") == ""


def test_events_are_shown_with_their_reasons(shown: tuple[Agent, int], browser: Browser) -> None:
    names_it = "querySelectorAll('strong')].some((reason) => reason.textContent.endsWith('BackOff'))"
    with browser.tab() as tab:
        open_page(tab, shown[0])
        tab.wait(f"[...document.querySelector('#happened').{names_it}")
        open_pod(tab, "rude")
        tab.wait(f"[...{inside('rude')}.querySelector('.timeline').{names_it}")


def test_with_the_keyboard_alone(shown: tuple[Agent, int], browser: Browser) -> None:
    focus = "document.activeElement.textContent.trim()"
    with browser.tab() as tab:
        open_page(tab, shown[0])
        tab.press("Tab")
        assert tab.run(focus) == "Skip to the pods"
        assert tab.run("document.activeElement.getBoundingClientRect().left >= 0"), "who is there cannot be seen"
        met: list[str] = []
        while len(met) < 20 and tab.run(focus) != "default/stuck-node":
            tab.press("Tab")
            met.append(tab.run(f"{focus} || document.activeElement.id"))
            outline = tab.run("getComputedStyle(document.activeElement).outline")
            assert "solid" in outline and "3px" in outline, f"{met[-1]}: {outline}"
        expected = ["Usage", "Pods", "Events", "Images", "filter", "waiting", "default/rude-node", "default/stuck-node"]
        assert met == expected
        tab.press("Enter")
        tab.wait(f"!!{inside('stuck')}.querySelector('.timeline li')")
        assert tab.run("document.activeElement.getAttribute('aria-expanded')") == "true"
        before = tab.run("document.querySelector('#happened time').textContent")
        # what happened some time ago is shown in minutes
        tab.wait(f"document.querySelector('#happened time').textContent !== {json.dumps(before)}", 90)
        assert tab.run(focus) == "default/stuck-node", "news took the focus away"
        tab.press("Tab")
        assert tab.run(focus) == "default/web-node"
        tab.run(f"{button('stuck')}.focus()")
        tab.press("Escape")
        assert tab.run(f"{inside('stuck')}.hidden") and tab.run(focus) == "default/stuck-node"
        tab.run("document.getElementById('filter').focus()")
        tab.type("RUDE")
        assert tab.run("document.getElementById('count').textContent") == "1 of 3 shown"
        assert "default/web-node" not in tab.run("document.querySelector('.pods').innerText")


def test_with_a_screen_reader(shown: tuple[Agent, int], browser: Browser) -> None:
    with browser.tab() as tab:
        open_page(tab, shown[0])
        open_pod(tab, "stuck")
        reported = tab.read_out()
        roles = [role for role, _ in reported]
        assert {"banner", "navigation", "main", "status", "searchbox", "checkbox"} <= set(roles)
        assert ("button", "default/stuck-node") in reported and ("group", "default/stuck-node") in reported
        assert ("searchbox", "Name has") in reported
        regions = [name.split(":")[0] for role, name in reported if role == "region"]
        assert regions == ["Usage", "Pods", "Events", "Images"]
        heads = {name for role, name in reported if role == "columnheader"}
        assert {"Pod", "Status", "Memory", "Container", "Condition", "Image"} <= heads
        rows = {name for role, name in reported if role == "rowheader"}
        assert {"default/web-node", "Ready"} <= rows and any(name.startswith("main") for name in rows)
        images = [name for role, name in reported if role in ("image", "img")]
        assert len(images) == 8 and all(": now" in name for name in images)
        assert "▸" not in "".join(name for _, name in reported)
        levels = tab.run("[...document.querySelectorAll('h1,h2,h3')].map((heading) => Number(heading.tagName[1]))")
        assert levels[0] == 1 and levels.count(1) == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))
        # nothing is read out unasked but whether the agent answers, and how many pods the filter leaves
        live = tab.run(
            "[...document.querySelectorAll('[aria-live],[role=status],[role=alert]')].map((region) => region.id)"
        )
        assert live == ["state", "count"]
        assert tab.run("document.getElementById('state').textContent") == ""


def test_nothing_moves(shown: tuple[Agent, int], browser: Browser) -> None:
    with browser.tab(prefers_reduced_motion="reduce") as tab:
        open_page(tab, shown[0])
        open_pod(tab, "web")
        assert tab.run("document.getAnimations().length") == 0


def test_words_of_pods_stay_words(shown: tuple[Agent, int], browser: Browser) -> None:
    with browser.tab() as tab:
        open_page(tab, shown[0])
        open_pod(tab, "rude")
        tab.wait(f"{inside('rude')}.innerText.includes('<img src=x onerror=alert(1)>')")
        assert tab.run("document.querySelectorAll('img').length") == 0


#: Lays pods of foreign names and messages over what the agent reports.
HUNDRED = """(() => { const ask = window.fetch; window.fetch = async (path, more) => {
  const answer = await ask(path, more);
  if (path !== 'data') return answer;
  const data = await answer.json();
  const [pod] = data.pods;
  data.pods = Array.from({ length: 100 }, (_, number) => ({ ...pod, uid: `u${number}`, name: `<b>${number}</b>`,
    status: 'Running', ready: '1/1', message: '<script>alert(1)</script>', waits: [] }));
  return new Response(JSON.stringify(data));
}; })()"""


def test_a_hundred_pods(shown: tuple[Agent, int], browser: Browser) -> None:
    with browser.tab(360) as tab:
        tab.call("Page.addScriptToEvaluateOnNewDocument", source=HUNDRED)
        tab.open(new_link(shown[0])).wait("document.querySelectorAll('.pods .head').length === 100")
        assert "default/<b>42</b>" in tab.text() and "<script>alert(1)</script>" in tab.text()
        assert tab.run("document.querySelectorAll('b, main script').length") == 0
        assert tab.run("document.documentElement.scrollWidth <= innerWidth")
        tab.run("document.querySelectorAll('.head button')[60].focus()")
        tab.run("document.activeElement.known = 'still the same'")
        tab.run("window.asked = performance.getEntriesByType('resource').length")
        tab.wait("performance.getEntriesByType('resource').length > window.asked + 2")
        assert tab.run("document.activeElement.known") == "still the same", "rows are made anew"


def test_a_pod_that_goes_while_one_reads_about_it(shown: tuple[Agent, int], browser: Browser) -> None:
    agent, _ = shown
    with browser.tab() as tab:
        open_page(tab, agent)
        agent.put(make_pod("brief"))
        tab.wait(f"!!{button('brief')}")
        open_pod(tab, "brief")
        tab.run(f"{button('brief')}.focus()")
        agent.remove("brief")
        tab.wait(f"{inside('brief')}.innerText.startsWith('This pod is gone.')")
        assert "Timeline" in tab.run(f"{inside('brief')}.innerText"), "what was read about it is taken away"
        tab.press("Escape")
        tab.wait(f"!{button('brief')}")
        assert tab.run("document.activeElement.textContent") == "default/rude-node", "one has lost one's place"


def test_an_agent_that_is_away_is_reported_and_comes_back(shown: tuple[Agent, int], browser: Browser) -> None:
    agent, _ = shown
    state = "document.getElementById('state').textContent"
    with browser.tab() as tab:
        open_page(tab, agent)
        open_pod(tab, "stuck")
        agent.kill9()
        tab.wait(f"{state}.startsWith('The agent does not answer. Shown is what was so at ')")
        assert "default/web-node" in tab.text(), "what is known stays"
        agent.start()
        tab.wait(
            f"{state}.startsWith('This session has ended.')"
        )  # its cookie is worth nothing to what had the port meanwhile
        with browser.tab() as other:
            open_page(other, agent)
        tab.call("Page.bringToFront")
        tab.wait(f"{state} === 'The agent answers again.'")
        assert not tab.run(f"{inside('stuck')}.hidden"), "what was open stays open"


def test_a_session_that_has_ended_goes_on_with_another_link(shown: tuple[Agent, int], browser: Browser) -> None:
    agent, _ = shown
    state = "document.getElementById('state').textContent"
    with browser.tab() as tab:
        open_page(tab, agent)
        tab.call("Network.clearBrowserCookies")
        tab.wait(f"{state}.startsWith('This session has ended.')")
        with browser.tab() as other:
            open_page(other, agent)
        tab.call("Page.bringToFront")
        tab.wait(f"{state} === 'The agent answers again.'")
