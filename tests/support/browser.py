"""A real browser without a window, spoken to over its DevTools protocol on two pipes: what a person does at a page.

One browser for many tabs; each `Tab` is a page of its own. Calls wait for their answer; what the browser reports unasked is
kept by the tab it concerns.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

BROWSER = shutil.which("chromium") or "chromium"
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
)
ANSWER_S = 60.0
#: The browser's word for a network interface that has come or gone during a request, and how often in a row a test bears that.
NETWORK_CHANGED, NETWORK_CHANGES = "net::ERR_NETWORK_CHANGED", 20
#: The code of its answer when the page in which a script ran has given way to another.
SERVER_ERROR = -32000
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32}
Json = dict[str, Any]


class PageLeftError(AssertionError):
    """The page has given way to another before the script in it was done."""


class Browser:
    """`profile`: an empty directory for the browser's own files. `more`: further flags."""

    def __init__(self, profile: Path, *more: str) -> None:
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        shell = f'exec "$0" "$@" 3<&{commands} 4>&{answers}'
        argv = [BROWSER, *FLAGS, *more, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", shell, *argv],
            pass_fds=(commands, answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._number = 0
        self._rest = b""
        self.reported: list[Json] = []

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._commands)
        os.close(self._answers)

    def call(self, method: str, session: str = "", **params: Any) -> Json:
        self._number += 1
        message = {
            "id": self._number,
            "method": method,
            "params": params,
            **({"sessionId": session} if session else {}),
        }
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        for answer in self._read(time.monotonic() + ANSWER_S):
            if answer.get("id") == self._number:
                if method == "Runtime.evaluate" and answer.get("error", {}).get("code") == SERVER_ERROR:
                    raise PageLeftError(f"{method}: {answer['error']['message']}")
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])
            self.reported.append(answer)
        raise AssertionError(f"the browser does not answer {method}")

    def _read(self, deadline: float) -> Iterator[Json]:
        while (left := deadline - time.monotonic()) > 0:
            while b"\0" in self._rest:
                message, _, self._rest = self._rest.partition(b"\0")
                yield json.loads(message)
            if select.select([self._answers], [], [], left)[0]:
                data = os.read(self._answers, 1 << 20)
                assert data, "the browser has ended"
                self._rest += data

    @contextmanager
    def tab(self, width: int = 1280, height: int = 900, **features: str) -> Iterator[Tab]:
        """An empty page; `features`: media features, with `_` for `-`, such as `prefers_color_scheme="dark"`."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, session)
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility", "DOM"):
            tab.call(f"{domain}.enable")
        tab.resize(width, height)
        tab.call("Emulation.setFocusEmulationEnabled", enabled=True)
        named = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        tab.call("Emulation.setEmulatedMedia", features=named)
        try:
            yield tab
        finally:
            self.call("Target.closeTarget", targetId=target)


class Tab:
    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session

    def call(self, method: str, **params: Any) -> Json:
        return self._browser.call(method, self._session, **params)

    def open(self, url: str) -> Tab:
        for _ in range(NETWORK_CHANGES):
            if self.call("Page.navigate", url=url).get("errorText") != NETWORK_CHANGED:
                return self
        raise AssertionError(f"network interfaces came and went {NETWORK_CHANGES} times during the request for {url}")

    def run(self, script: str) -> Any:
        """The value of an expression, of what it promises if it is a promise."""
        return _value(self._evaluate(script))

    def run_undisturbed(self, script: str) -> Any:
        """The value of an expression that makes the browser send something; run again as long as the browser gives that up because a
        network interface has come or gone, such as that of a pod of another test."""
        for _ in range(NETWORK_CHANGES):
            before = len(self._browser.reported)
            done = self._evaluate(script)
            self.run("0")  # what is reported of the expression comes before this answer
            if not any(NETWORK_CHANGED in json.dumps(each) for each in self._browser.reported[before:]):
                return _value(done)
        raise AssertionError(f"network interfaces came and went {NETWORK_CHANGES} times during this: {script}")

    def leave(self, url: str, script: str, shown: str) -> None:
        """Open a page, run a script that leaves it for another, and wait until the expression `shown` is true there; again as long as the
        browser gives the request up because a network interface has come or gone."""
        changed = f"document.body.innerText.includes('{NETWORK_CHANGED.removeprefix('net::')}')"
        for _ in range(NETWORK_CHANGES):
            self.open(url).wait("document.readyState === 'complete'")
            with suppress(PageLeftError):
                self.run(script)
            if self.wait(f"{shown} ? 'shown' : {changed} ? 'changed' : ''") == "shown":
                return
        raise AssertionError(f"network interfaces came and went {NETWORK_CHANGES} times during this: {script}")

    def _evaluate(self, script: str) -> Json:
        return self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)

    def wait(self, script: str, within_s: float = 60.0) -> Any:
        """The first true value of an expression, on this page or on one that comes in its place meanwhile."""
        deadline = time.monotonic() + within_s
        while True:
            with suppress(PageLeftError):
                if value := self.run(f"(() => {{ try {{ return {script}; }} catch {{ return null; }} }})()"):
                    return value
            assert time.monotonic() < deadline, f"does not come: {script}\n{self.text()[:3000]}"
            time.sleep(0.05)

    def text(self) -> str:
        """What can be read on the page."""
        return str(self.run("document.body ? document.body.innerText : ''"))

    def press(self, key: str) -> None:
        code = KEYS[key]
        named = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": code}
        typed = {"Enter": "\r", " ": " "}.get(key)
        self.call("Input.dispatchKeyEvent", type="keyDown", **named, **({"text": typed} if typed else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **named)

    def type(self, words: str) -> None:
        self.call("Input.insertText", text=words)

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def picture(self, path: Path) -> None:
        """What the window shows."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def read_out(self) -> list[tuple[str, str]]:
        """Role and name of every element that a screen reader gets, in order."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [
            (str(node["role"]["value"]), str(node.get("name", {}).get("value", "")))
            for node in nodes
            if not node.get("ignored")
        ]

    def complaints(self) -> list[str]:
        """What the browser complained of in this tab: errors of scripts, refused or failed loads; without loads that it gave up itself
        because a network interface has come or gone."""
        found = []
        for message in self._browser.reported:
            if message.get("sessionId") != self._session:
                continue
            if message["method"] == "Log.entryAdded":
                entry = message["params"]["entry"]
                found.append(f"{entry['text']} {entry.get('url', '')}")
            elif message["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(message["params"]["exceptionDetails"])[:500])
        return [each for each in found if NETWORK_CHANGED not in each]


def _value(evaluated: Json) -> Any:
    assert "exceptionDetails" not in evaluated, evaluated["exceptionDetails"]
    return evaluated["result"].get("value")
