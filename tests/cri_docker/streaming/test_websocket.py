"""exec over a WebSocket, by the bytes, and through the agent's own relay."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest
from cri_docker.streaming.doubles import ALL, PLAYED, TERMINAL, Local, command, connect, serving
from cri_docker.streaming.test_port_forward import WEBSOCKET
from net.websocket.bytes_of import masked, messages

from pykubelet.net.http.server import HEAD_BYTES, Answer, HttpServer, Request, ServedConnection
from pykubelet.serve.streaming.command import RemoteCommand
from pykubelet.serve.streaming.relay import serve_websocket
from pykubelet_cri_docker.streaming.backend import StreamSet

pytestmark = pytest.mark.virtual_time
V5 = "v5.channel.k8s.io"


@pytest.mark.parametrize("protocol", [V5, "v4.channel.k8s.io", "channel.k8s.io", ""])
async def test_input_output_and_the_result(protocol: str) -> None:
    backend = Local()
    async with serving(backend) as server:
        offer = {"Sec-WebSocket-Protocol": f"unknown, {protocol}"} if protocol else {}
        head, reader, writer = await connect(server.exec_url(PLAYED), WEBSOCKET | offer)
        assert (
            (f"Sec-WebSocket-Protocol: {protocol}\r\n" in head) if protocol else ("Sec-WebSocket-Protocol" not in head)
        )
        writer.write(
            masked(2, b"\0hel") + masked(2, b"\0lo") + masked(2, b"\1not for the server") + masked(2, b"\xff\0")
        )
        await asyncio.sleep(1)
        assert backend.played.written == b"hello" and backend.played.has_ended_input is (protocol == V5)
        backend.played.say(b"out")
        backend.played.say(b"err", is_stderr=True)
        backend.played.end(7)
        await asyncio.sleep(1)
        writer.write(masked(8, b"\x03\xe8"))
        *output, result, end = messages(await reader.read())
        assert output == [(0x82, b"\1"), (0x82, b"\1out"), (0x82, b"\2err")] and end == (0x88, b"\x03\xe8")
        text = result[1].removeprefix(b"\3")
        if protocol in (V5, "v4.channel.k8s.io"):
            assert json.loads(text)["details"]["causes"] == [{"reason": "ExitCode", "message": "7"}]
        else:
            assert text == b"command terminated with non-zero exit code: exit status 7"
        writer.close()


async def test_a_command_without_input_starts_though_the_client_sends_nothing() -> None:
    backend = Local()
    async with serving(backend) as server:
        _, reader, writer = await connect(server.exec_url(command(streams=StreamSet(stdout=True))), WEBSOCKET)
        backend.played.say(b"out")
        began = asyncio.get_running_loop().time()
        async with asyncio.timeout(1):
            assert await reader.readexactly(9) == b"\x82\1\1" + b"\x82\4\1out"
        assert asyncio.get_running_loop().time() - began < 0.1
        writer.close()


async def test_base64_and_the_size_of_a_terminal() -> None:
    backend = Local()
    async with serving(backend) as server:
        offer = {"Sec-WebSocket-Protocol": "v4.base64.channel.k8s.io"}
        _, reader, writer = await connect(server.exec_url(command(streams=TERMINAL)), WEBSOCKET | offer)
        data = bytes(range(256)) * 1000
        writer.write(masked(1, b"0" + base64.b64encode(data)))
        writer.write(masked(1, b"4" + base64.b64encode(b'{"Width":80,"Height":24}')))
        await asyncio.sleep(1)
        assert backend.played.written == data and backend.played.sizes == [(80, 24)]
        backend.played.say(b"out")
        await asyncio.sleep(1)
        writer.write(masked(1, b"0no base64!"))
        found = messages(await reader.read())
        assert found == [(0x81, b"1"), (0x81, b"1" + base64.b64encode(b"out")), (0x88, b"\x03\xf0invalid base64")]
        assert backend.played.closed.is_set()
        writer.close()


async def test_through_the_relay_of_the_agent() -> None:
    backend = Local()
    async with serving(backend) as server:

        async def relay(request: Request, _: ServedConnection) -> Answer:
            bridge = RemoteCommand(stdin=True, stdout=True, stderr=True, tty=False)
            return await serve_websocket(request, server.exec_url(PLAYED), bridge, 600.0)

        agent = HttpServer(relay)
        async with await asyncio.start_server(agent.serve, "127.0.0.1", 0, limit=HEAD_BYTES) as listener:
            url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/exec"
            _, reader, writer = await connect(url, WEBSOCKET | {"Sec-WebSocket-Protocol": V5})
            writer.write(masked(2, b"\0hello") + masked(2, b"\xff\0"))
            await asyncio.sleep(1)
            assert backend.played.written == b"hello" and backend.played.has_ended_input
            backend.played.say(b"out")
            backend.played.end(3)
            await asyncio.sleep(1)
            writer.write(masked(8, b"\x03\xe8"))
            *output, (_, result), _ = messages(await reader.read())
            assert output == [(0x82, b"\1"), (0x82, b"\1out")]
            assert json.loads(result[1:])["details"]["causes"] == [{"reason": "ExitCode", "message": "3"}]
            writer.close()
            agent.close()
            await asyncio.sleep(1)


async def test_a_violation_ends_the_process() -> None:
    backend = Local()
    async with serving(backend) as server:
        _, reader, writer = await connect(server.exec_url(command(streams=ALL)), WEBSOCKET)
        writer.write(b"\x82\x05hello")
        assert messages(await reader.read())[-1][1][:2] == b"\x03\xea"
        assert backend.played.closed.is_set() or not backend.executed
        writer.close()
