"""`pykubelet pods` and `pykubelet explain`, against a real socket with a real server behind it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from live_table import render_rows
from report.samples import WALL
from serve.world import NOW, World, make_world

from pykubelet.app import ask
from pykubelet.app.amounts import render_amount
from pykubelet.app.wiring_server import socket_handler
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.diagnostics import Diagnostics, PodDiagnostics
from pykubelet.base.model.node import RuntimeReady
from pykubelet.base.model.plugins import Plugin, Plugins, PluginType
from pykubelet.base.model.waits import Owner, TimelineEntry, Wait
from pykubelet.serve.explain.documents import ask_routes
from pykubelet.serve.explain.node import plugins_document
from pykubelet.serve.listen import serve_socket


class Served:
    """An agent's socket below `root`, served from a thread of its own."""

    def __init__(self, root: Path, world: World) -> None:
        self.root, self.world = root, world
        self._ready, self._loop = threading.Event(), asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))

    async def _serve(self) -> None:
        path = self.root / "pykubelet.sock"
        async with Supervisor("test") as supervisor:
            supervisor.start_root(
                "socket", serve_socket(socket_handler(ask_routes(self.world.inputs, self.world.clock), None), str(path))
            )
            while not path.exists():  # noqa: ASYNC110 - a file has no event
                await asyncio.sleep(0)
            await asyncio.sleep(0)  # it listens
            self._ready.set()
            await self._end.wait()

    def __enter__(self) -> Served:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    with Served(tmp_path, make_world()) as found:
        yield found
    monkeypatch.undo()
    time.tzset()


@contextmanager
def answering(path: Path, answer: bytes) -> Iterator[None]:
    """A server at a socket that gives this answer to one request."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def serve() -> None:
            link, _ = server.accept()
            with link:
                link.recv(1000)
                link.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join()


def run(command: Any, *argv: str, root: Path) -> int:
    code: int = command([*argv, "--root-dir", str(root)])
    return code


def test_the_table_of_pods(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ask.pods, root=served.root) == 0
    assert capsys.readouterr().out.splitlines() == [
        "NAMESPACE   NAME   READY   STATUS              RESTARTS   AGE     WAITING FOR",
        "default     db     0/1     ContainerCreating   0          1m40s   older pod of the same name db-old (5s, pod worker)",
        "default     db     1/1     Terminating         0          1m40s   -",
        "default     late   0/1     ContainerCreating   0          1m40s   "
        "volume data: FailedMount (49s, volume manager); image busybox (12s, image manager)",
        "default     web    0/1     CrashLoopBackOff    2          1m40s   "
        "container start app: CrashLoopBackOff (10s, pod worker)",
        "",
        "Manifests that cannot be used:",
        "  /etc/manifests/bad.yaml: spec.containers: Required value",
        "",
        "Remarks: 2, which `pykubelet explain node` shows",
    ]


def test_a_long_name_moves_its_own_row_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pods = [
        {
            "namespace": "default",
            "name": name,
            "ready": "1/1",
            "status": "Running",
            "restarts": 0,
            "created": 0,
            "waits": [],
        }
        for name in ("b" * 250, "web")
    ]
    document = {"time": 1.0, "node": "n", "pods": pods, "waits": [], "problems": [], "remarks": []}
    body = json.dumps(document).encode()
    head = f"HTTP/1.0 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with answering(tmp_path / "pykubelet.sock", head + body):
        assert run(ask.pods, root=tmp_path) == 0
    assert capsys.readouterr().out.splitlines() == [
        "NAMESPACE   NAME   READY   STATUS    RESTARTS   AGE   WAITING FOR",
        f"default     {'b' * 250}   1/1     Running   0                -",
        "default     web    1/1     Running   0                -",
    ]


def test_pods_as_json_feed_the_live_table(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ask.pods, "-o", "json", root=served.root) == 0
    document = json.loads(capsys.readouterr().out)
    rows = render_rows(document, NOW)
    assert [row[:6] for row in rows][-1] == ("default", "web", "0/1", "CrashLoopBackOff", "2", "1m40s")


EXPLAINED = """\
Pod default/web (uid-1), from file
CrashLoopBackOff: phase Running, ready 0/1, restarts 2, 1m40s old
Stage syncing for 1m40s

Waits for:
  container start app: for 10s, owned by pod worker
    why   CrashLoopBackOff: back-off 20s restarting failed container=app pod=web_default(uid-1)
    next  start again in 12s

Containers:
  app      restarts 2   waiting (CrashLoopBackOff)   before: terminated with 1 (Error) 0s ago

Remarks:
  /etc/manifests/web.yaml: spec.hostNetwrk: unknown field, ignored

Timeline:
  03:04:05  taken up
  03:04:05  Normal Pulled spec.containers{app}: Image is present
  03:04:06  start app (new pod)
  03:05:36  Warning BackOff (x7): held back
"""


@pytest.mark.parametrize("wanted", ["web", "default/web", "uid-1", "uid"])
def test_explain_a_pod(served: Served, capsys: pytest.CaptureFixture[str], wanted: str) -> None:
    assert run(ask.explain, wanted, root=served.root) == 0
    assert capsys.readouterr().out == EXPLAINED


def test_explain_as_json(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ask.explain, "web", "-o", "json", root=served.root) == 0
    assert json.loads(capsys.readouterr().out)["uid"] == "uid-1"


def test_a_pod_and_its_successor_are_both_explained(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ask.explain, "db", root=served.root) == 0
    out = capsys.readouterr().out
    assert out.count("Pod default/db (") == 2
    assert "Stage terminating (removed) for 1m40s" in out
    assert "Waits for:\n  nothing\n" in out


def test_plugins_are_listed_with_what_is_wrong_with_them() -> None:
    gpu = Plugin(PluginType.DRA, "gpu.example.com", "/r/gpu.sock", "/p/dra.sock", ("v1.DRAPlugin",), WALL)
    known = plugins_document(Plugins({"/r/gpu.sock": gpu}, {"/r/a.sock": "GetInfo: it hangs"}))
    assert list(ask.plugin_lines(known, WALL + 65)) == [
        "  /r/a.sock: GetInfo: it hangs",
        "  DRAPlugin gpu.example.com: registered 1m5s ago, /p/dra.sock",
    ]


def test_explain_the_node(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    served.world.runtime.publish(RuntimeReady(answer_error="no socket", since=WALL))
    assert run(ask.explain, "node", root=served.root) == 0
    assert capsys.readouterr().out.splitlines() == [
        "Node local (192.0.2.1)",
        "Agent started 0s ago",
        "Container runtime unknown: not ready, restarts seen 0",
        "",
        "Waits for:",
        "  container runtime: for 1m40s, owned by runtime status",
        "    why   container runtime status check may not have completed yet: no socket",
        "    next  ask again",
        "",
        "Manifests that cannot be used:",
        "  /etc/manifests/bad.yaml: spec.containers: Required value",
        "",
        "Remarks:",
        '  /etc/kubelet.yaml: maxPod: unknown field, ignored; did you mean "maxPods"?',
        "  /etc/manifests/web.yaml: spec.hostNetwrk: unknown field, ignored",
        "",
        "Timeline:",
        "  03:04:05  Normal Starting: Starting kubelet.",
    ]


@pytest.mark.parametrize(
    ("wanted", "output"),
    [
        ("wep", 'Error: no pod "wep" on this node; did you mean default/web?\n'),
        ("other/web", 'Error: no pod "other/web" on this node; did you mean default/web?\n'),
        ("zzz", 'Error: no pod "zzz" on this node; pykubelet pods lists them\n'),
        ("", 'Error: no pod "" on this node; pykubelet pods lists them\n'),
    ],
)
def test_a_pod_that_is_not_there(served: Served, capsys: pytest.CaptureFixture[str], wanted: str, output: str) -> None:
    assert run(ask.explain, wanted, root=served.root) == 1
    assert capsys.readouterr().err == output


def test_a_word_that_fits_several_pods_is_not_guessed() -> None:
    known = [{"namespace": n, "name": "web", "uid": n} for n in ("a", "b")]
    with pytest.raises(ask.AskError, match='"web" fits several pods: a/web, b/web'):
        ask.choose(known, "web", "local")
    assert ask.choose(known, "b/web", "local") == [known[1]]
    with pytest.raises(ask.AskError, match="there are none"):
        ask.choose([], "web", "local")


def test_a_pod_whose_manifest_cannot_be_used_is_shown_with_the_reason() -> None:
    problems = [{"origin": "/manifests/web.yaml", "field_path": "spec.containers", "reason": "Required value"}]
    for wanted in ("web", "web-local", "default/web"):
        with pytest.raises(
            ask.AskError, match=r"cannot be used: /manifests/web\.yaml: spec\.containers: Required value"
        ):
            ask.choose([], wanted, "local", problems)


def test_the_name_in_the_manifest_will_do() -> None:
    known = [{"namespace": "default", "name": name, "uid": name} for name in ("web-local", "db", "db-local")]
    assert ask.choose(known, "web", "local") == [known[0]]
    assert ask.choose(known, "default/web", "local") == [known[0]]
    assert ask.choose(known, "db", "local") == [known[1]]


@pytest.mark.parametrize("stale", [True, False], ids=["stale socket", "no socket"])
def test_without_an_agent_the_error_names_that(tmp_path: Path, capsys: pytest.CaptureFixture[str], stale: bool) -> None:
    if stale:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(tmp_path / "pykubelet.sock"))
    assert run(ask.pods, root=tmp_path) == 1
    assert capsys.readouterr().err.startswith("Error: the agent is not running: nothing listens at ")


@pytest.mark.parametrize(
    ("answer", "output"),
    [
        (b"", "cannot ask the agent at {path}: no response came"),
        (b"SSH-2.0-x\r\n", "cannot ask the agent at {path}: the response is not HTTP/1.1"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf",
            "cannot ask the agent at {path}: the connection ended in the middle of a response",
        ),
        (b"HTTP/1.1 500 x\r\n\r\nboom\n", "the agent at {path} answered 500: boom"),
        (b"HTTP/1.1 200 OK\r\n\r\nhello", "the agent at {path} gave an answer that is not JSON"),
        (b"HTTP/1.1 403 x\r\n\r\n", "permission denied at {path}: only root may ask the agent"),
    ],
)
def test_strange_answers_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], answer: bytes, output: str
) -> None:
    path = tmp_path / "x.sock"
    with answering(path, answer):
        assert ask.pods(["--socket", str(path)]) == 1
    assert output.format(path=path) in capsys.readouterr().err


def test_an_agent_that_does_not_answer_is_not_waited_for_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ask, "TIMEOUT_S", 0.05)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "pykubelet.sock"))
        server.listen()
        assert run(ask.pods, root=tmp_path) == 1
    assert "did not answer within 0.05 s" in capsys.readouterr().err


@pytest.mark.integration
def test_another_user_is_refused() -> None:
    code = (
        "import os, sys; from pykubelet.app import ask; "
        "options = ask._parser('pods', '').parse_args(['--root-dir', sys.argv[1]]); os.setuid(65534); "
        "sys.exit(ask._answered(options, ask._show_pods))"
    )
    with tempfile.TemporaryDirectory(prefix="pyk-ask-") as root, Served(Path(root), make_world()):
        os.chmod(root, 0o755)
        for mode in (0o600, 0o666):
            os.chmod(f"{root}/pykubelet.sock", mode)
            done = subprocess.run([sys.executable, "-c", code, root], capture_output=True, text=True, check=False)
            assert (done.returncode, done.stdout) == (1, "")
            assert done.stderr.startswith("Error: permission denied at ")


def test_a_reader_that_leaves_early_is_no_error(served: Served) -> None:
    command = [sys.executable, "-m", "pykubelet.app.cli", "pods", "-o", "json", "--root-dir", str(served.root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_asking_imports_nothing_heavy() -> None:
    heavy = ("http", "ssl", "msgspec", "asyncio", "grpc")
    code = f"import sys; from pykubelet.app import ask; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("amount", "unit", "sign", "text"),
    [
        (None, "bytes", "", "?"),
        (0, "bytes", "+", "+0"),
        (1000, "bytes", "", "1000"),
        (25036132352, "bytes", "", "23.3Gi"),
        (-24159, "bytes", "+", "-23.6Ki"),
        (2**50, "bytes", "", "1024.0Ti"),
        (31155, "count", "", "31155"),
        (1250, "basis points", "", "12.5%"),
    ],
)
def test_amounts(amount: float | None, unit: str, sign: str, text: str) -> None:
    assert render_amount(amount, unit, sign) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(-3, "0s"), (42.9, "42s"), (185, "3m5s"), (7620, "2h7m"), (4 * 86400 + 3 * 3600, "4d3h")]
)
def test_ages(seconds: float, text: str) -> None:
    assert ask.render_age(seconds) == text


def test_what_containers_wrote_does_nothing_to_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = make_world()
    hostile = Wait("hook", Owner.POD_WORKER, WALL, detail="\x1b]52;c;aGk=\x07 \x9b2J\r")
    [web, *_] = world.inputs.lifecycles.get().pods.values()
    known = PodDiagnostics((hostile,), (TimelineEntry(WALL, "stated \x1b[31m"),))
    world.workers.answer_with(lambda: Diagnostics({web.ref.uid: known}))
    with Served(tmp_path, world):
        assert run(ask.explain, web.pod.metadata.uid, root=tmp_path) == 0
        shown = capsys.readouterr().out
        assert r"\x1b]52;c;aGk=\x07 \x9b2J\x0d" in shown and r"stated \x1b[31m" in shown
        assert not any((ord(letter) < 32 and letter != "\n") or 127 <= ord(letter) < 160 for letter in shown)
        assert run(ask.pods, root=tmp_path) == 0
        assert "\x1b" not in capsys.readouterr().out
