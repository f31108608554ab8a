"""Hooks: what each kind of handler does, and the words of those that fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from act.pods.scenes import REF, container, pod
from act.runtime.hands import Hands, hands
from support.logs import logging_restored

from pykubelet.act.runtime.lifecycle.hooks import PROBLEM_LIMIT, words_for_log
from pykubelet.act.runtime.lifecycle.metrics import HTTP_FALLBACKS, SLEEPS_CUT_SHORT
from pykubelet.act.runtime.lifecycle.stop import StopTarget
from pykubelet.base.kit.log import set_up_logging
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.lifecycle import StartError
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.errors import CriCode
from pykubelet.testing.cri.fake_handles import RuntimeFault
from pykubelet.testing.cri.fake_state import FakeContainer

pytestmark = pytest.mark.virtual_time

LONG = {"command": ["sh", "-c", "sleep 1000"]}
FOR = 'for Container "app" in Pod "web_shop(uid-1)" failed - error: '


@dataclass
class PlainServer:
    """Speaks HTTP without TLS; one who tries TLS gets a plain 400, as servers do."""

    port: int = 0
    status: str = "200 OK"
    headers: str = ""
    requests: list[list[str]] = field(default_factory=list)
    handshakes: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.read(1)
        if first == b"\x16":
            self.handshakes += 1
            writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\nClient sent TLS")
        else:
            request = first + await reader.readuntil(b"\r\n\r\n")
            self.requests.append(request.decode().removesuffix("\r\n\r\n").split("\r\n"))
            writer.write(f"HTTP/1.1 {self.status}\r\nContent-Length: 0\r\n{self.headers}\r\n".encode())
        await writer.drain()
        writer.close()


@asynccontextmanager
async def serving(**how: str) -> AsyncIterator[PlainServer]:
    server = PlainServer(**how)  # type: ignore[arg-type]
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listener:
        server.port = listener.sockets[0].getsockname()[1]
        yield server


async def after_start(h: Hands, **handler: Any) -> str:
    """What a postStart hook came to: the message of its failure, or an empty string."""
    app = container("app", lifecycle={"postStart": handler}, ports=[{"name": "web", "containerPort": 1}], **LONG)
    of = pod(app)
    outcome = await h.start(of, app, await h.sandbox(of))
    if isinstance(outcome, StartError):
        assert outcome.reason == "PostStartHookError"
        return outcome.message
    return ""


def http(server: PlainServer, **more: Any) -> dict[str, Any]:
    return {"httpGet": {"host": "127.0.0.1", "port": server.port, "path": "/hello", **more}}


async def test_an_http_hook_asks_as_the_reference_does(tmp_path: Path) -> None:
    async with hands(tmp_path) as h, serving() as server:
        headers = [{"name": "X-Who", "value": "me"}]
        assert await after_start(h, **http(server, httpHeaders=headers)) == ""
        [request] = server.requests
        assert request[0] == "GET /hello HTTP/1.1"
        assert {"User-Agent: kube-lifecycle/1.37", "X-Who: me"} <= set(request)
        assert h.reasons() == ["Created", "Started"]


@pytest.mark.parametrize("status", ["404 Not Found", "500 Internal Server Error"])
async def test_any_status_is_an_answer(status: str, tmp_path: Path) -> None:
    async with hands(tmp_path) as h, serving(status=status) as server:
        assert await after_start(h, **http(server)) == ""


async def test_redirects_are_followed_to_any_host(tmp_path: Path) -> None:
    async with hands(tmp_path) as h, serving() as end:
        async with serving(status="302 Found", headers=f"Location: http://localhost:{end.port}/end\r\n") as server:
            assert await after_start(h, **http(server)) == ""
        assert end.requests[0][0] == "GET /end HTTP/1.1"


async def test_no_server_listens(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        async with serving() as server:
            closed = http(server)
        message = await after_start(h, **closed)
        where = f"127.0.0.1:{server.port}"
        assert message == (
            f"HTTP lifecycle hook (/hello) {FOR}"
            f'Get "http://{where}/hello": dial tcp {where}: connect: connection refused'
        )


async def test_a_port_that_is_not_declared(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        message = await after_start(h, httpGet={"host": "127.0.0.1", "port": "metrics", "path": "/"})
        assert message == f'HTTP lifecycle hook (/) {FOR}container has no port named "metrics"'


async def test_https_falls_back_to_http_and_reports_it(tmp_path: Path) -> None:
    async with hands(tmp_path) as h, serving() as server:
        headers = [{"name": "Authorization", "value": "secret"}, {"name": "X-Who", "value": "me"}]
        counted = HTTP_FALLBACKS.value()
        assert await after_start(h, **http(server, scheme="HTTPS", httpHeaders=headers)) == ""
        [request] = server.requests
        assert server.handshakes == 1
        assert HTTP_FALLBACKS.value() == counted + 1
        assert "X-Who: me" in request
        assert not any(line.startswith("Authorization") for line in request), "not sent in the open"
        where = f"127.0.0.1:{server.port}"
        message = f"request to HTTPS lifecycle hook {where} got HTTP response, retry with HTTP succeeded"
        assert h.events()[-1] == ("LifecycleHTTPFallback", message, "")


async def test_a_fallback_that_fails_too_reports_the_first_problem(tmp_path: Path) -> None:
    async def hostile(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.read(1) == b"\x16":
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with hands(tmp_path) as h, await asyncio.start_server(hostile, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        handler = {"host": "127.0.0.1", "port": port, "path": "/x", "scheme": "HTTPS"}
        message = await after_start(h, httpGet=handler)
        assert message.endswith(f'Get "https://127.0.0.1:{port}/x": http: server gave HTTP response to HTTPS client')
        assert "LifecycleHTTPFallback" not in h.reasons()


async def test_a_command_that_fails(tmp_path: Path) -> None:
    async def fail(_: FakeContainer, __: list[str]) -> pb.ExecSyncResponse:
        return pb.ExecSyncResponse(stdout=b"trying; ", stderr=b'no "luck"\n', exit_code=3)

    async with hands(tmp_path) as h:
        h.fake.exec_handler = fail
        message = await after_start(h, exec={"command": ["try", "hard"]})
        assert message == (
            f"Exec lifecycle hook ([try hard]) {FOR}command 'try hard' exited with 3: no \"luck\"\n"
            ', message: "trying; no \\"luck\\"\\n"'
        )


async def test_of_a_long_output_a_part_is_reported(tmp_path: Path) -> None:
    async def fail(_: FakeContainer, __: list[str]) -> pb.ExecSyncResponse:
        return pb.ExecSyncResponse(stdout=b"\x01" * 1_000_000, stderr=b"\x02" * 1_000_000, exit_code=3)

    async with hands(tmp_path) as h:
        h.fake.exec_handler = fail
        message = await after_start(h, exec={"command": ["try", "x" * 100_000]})
        assert len(message) == PROBLEM_LIMIT


async def test_a_command_that_the_runtime_cannot_run(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        h.fake.inject(RuntimeFault("ExecSync", code=CriCode.UNKNOWN, message="no such file"))
        message = await after_start(h, exec={"command": ["nothing"]})
        assert message == (
            f'Exec lifecycle hook ([nothing]) {FOR}rpc error: code = Unknown desc = no such file, message: ""'
        )


async def test_a_tcp_hook_cannot_be_run(tmp_path: Path) -> None:
    async with hands(tmp_path) as h, serving() as server:
        message = await after_start(h, tcpSocket={"host": "127.0.0.1", "port": server.port})
        shown = f"&TCPSocketAction{{Port:{{0 {server.port} }},Host:127.0.0.1,}}"
        handler = f"&LifecycleHandler{{Exec:nil,HTTPGet:nil,TCPSocket:{shown},Sleep:nil,}}"
        assert message == f"Cannot run handler: invalid handler: {handler}"


async def test_a_failed_hook_ends_its_container_and_keeps_its_words_out_of_the_events(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        await after_start(h, exec={"command": ["sh", "-c", "echo secret; exit 1"]})
        assert h.events()[2:] == [
            ("FailedPostStartHook", "PostStartHook failed", "spec.containers{app}"),
            ("Killing", "FailedPostStartHook", "spec.containers{app}"),
        ]


async def test_the_log_has_the_exit_code_of_a_failed_hook_and_nothing_that_it_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with logging_restored():
        set_up_logging(0, json_format=True)
        async with hands(tmp_path) as h:
            message = await after_start(h, exec={"command": ["sh", "-c", "echo sec-ret; echo sec-ret >&2; exit 3"]})
    assert "sec-ret" in message
    logged = capsys.readouterr().err
    assert "failed: the command exited with 3" in logged
    assert "sec-ret" not in logged.replace("echo sec-ret", "")


@pytest.mark.parametrize("problem", ["Cannot run handler", f"Exec lifecycle hook ([x]) {FOR}rpc error: no such file"])
def test_other_problems_are_logged_as_they_are(problem: str) -> None:
    assert words_for_log(problem) == problem


async def test_sleep_takes_its_time(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        began = asyncio.get_running_loop().time()
        assert await after_start(h, sleep={"seconds": 1}) == ""
        assert asyncio.get_running_loop().time() - began >= 1


async def test_a_sleep_that_is_longer_than_the_grace_period_has_not_failed(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        app = container("app", lifecycle={"preStop": {"sleep": {"seconds": 60}}}, **LONG)
        of = pod(app)
        made = await h.started(of, app, await h.sandbox(of))
        counted = SLEEPS_CUT_SHORT.value()
        await h.stopper.stop_container(StopTarget(of, REF, "app", ContainerID(made)), 1)
        assert SLEEPS_CUT_SHORT.value() == counted + 1
        assert h.reasons() == ["Created", "Started", "Killing"]
        [stop] = h.fake.called("StopContainer")
        assert stop.request.timeout == 2
