"""The HTTP probe over HTTP/2 against a server made of the h2 library, on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived, StreamEnded
from h2.exceptions import ProtocolError

from pykubelet.edges.probing.http import BODY_LIMIT, HttpProber
from pykubelet.edges.probing.http_target import HttpTarget
from pykubelet.edges.probing.outcome import Outcome, ProbeVerdict

Headers = list[tuple[str, str]]


class Server:
    """Answers a request with the headers and body of its path; keeps the requests."""

    def __init__(self, answers: dict[str, tuple[Headers, bytes]]) -> None:
        self.answers = answers
        self.requests: list[dict[str, str]] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        connection.initiate_connection()
        try:
            while True:
                writer.write(connection.data_to_send())
                await writer.drain()
                if not (data := await reader.read(65536)):
                    break
                for event in connection.receive_data(data):
                    if isinstance(event, RequestReceived):
                        self.requests.append({str(name): str(value) for name, value in event.headers})
                    if isinstance(event, StreamEnded):
                        self.answer(connection, event.stream_id)
        except (ProtocolError, ConnectionError):
            pass  # the client has left
        finally:
            writer.close()

    def answer(self, connection: H2Connection, stream: int) -> None:
        headers, body = self.answers[self.requests[-1][":path"]]
        if self.requests[-1][":path"] == "/early":
            connection.send_headers(stream, [(":status", "103"), ("link", "</a>")])
        connection.send_headers(stream, headers, end_stream=not body)
        window = min(len(body), connection.local_flow_control_window(stream))
        for at in range(0, window, 16384):
            connection.send_data(stream, body[at : min(at + 16384, window)], end_stream=at + 16384 >= len(body))


@asynccontextmanager
async def serving(answers: dict[str, tuple[Headers, bytes]]) -> AsyncIterator[Server]:
    server = Server(answers)
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listener:
        server.port = listener.sockets[0].getsockname()[1]
        yield server


async def get(
    port: int, path: str = "/", headers: tuple[tuple[str, str], ...] = (), timeout_s: float = 20.0
) -> Outcome:
    return await HttpProber().probe(HttpTarget("http", "127.0.0.1", port, path, headers, is_http2=True), timeout_s)


async def test_the_request_is_that_of_http_1_in_another_form() -> None:
    async with serving({"/ready?full=1": ([(":status", "200")], b"fine")}) as server:
        outcome = await get(server.port, "/ready?full=1", (("X-Key", "ä"), ("Host", "a.test"), ("Connection", "x")))
    assert outcome == Outcome(ProbeVerdict.SUCCESS, "fine")
    assert server.requests == [
        {
            ":method": "GET",
            ":scheme": "http",
            ":authority": "a.test",
            ":path": "/ready?full=1",
            "user-agent": "kube-probe/1.37",
            "accept": "*/*",
            "x-key": "ä",
        }
    ]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/early", Outcome(ProbeVerdict.SUCCESS, "late")),
        ("/empty", Outcome(ProbeVerdict.SUCCESS, "")),
        ("/moved", Outcome(ProbeVerdict.SUCCESS, "late")),
        ("/busy", Outcome(ProbeVerdict.FAILURE, "HTTP probe failed with statuscode: 503")),
    ],
)
async def test_the_status_decides_as_over_http_1(path: str, expected: Outcome) -> None:
    answers: dict[str, tuple[Headers, bytes]] = {
        "/early": ([(":status", "200")], b"late"),
        "/empty": ([(":status", "204")], b""),
        "/moved": ([(":status", "302"), ("location", "/early")], b""),
        "/busy": ([(":status", "503")], b"busy"),
    }
    async with serving(answers) as server:
        outcome = await get(server.port, path)
    assert (outcome.verdict, outcome.output) == (expected.verdict, expected.output)


async def test_of_a_large_body_only_the_start_is_read() -> None:
    async with serving({"/": ([(":status", "200")], b"x" * (1 << 20))}) as server:
        outcome = await get(server.port)
    assert (outcome.verdict, len(outcome.output)) == (ProbeVerdict.SUCCESS, BODY_LIMIT)


async def test_a_server_of_http_1_fails_the_probe_with_a_message() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
        outcome = await get(listener.sockets[0].getsockname()[1])
    assert outcome.verdict is ProbeVerdict.FAILURE
    assert outcome.output.endswith("note that the frame header looked like an HTTP/1.1 header")


async def test_no_request_is_sent_with_tls_or_with_more_headers_than_a_frame_holds() -> None:
    async with serving({"/": ([(":status", "302"), ("location", "https://127.0.0.1/")], b"")}) as server:
        tls = await get(server.port)
        large = await get(server.port, headers=(("X-Large", "x" * 20_000),))
    assert tls.output.endswith('unsupported protocol scheme "https"')
    assert large.output.endswith("bytes of headers, more than 16384 over HTTP/2")
    assert len(server.requests) == 1
