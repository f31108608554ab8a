"""How a manifest URL is read: redirects, credentials, a proxy, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import pytest

from pykubelet.edges.host.services.httpget import HttpAnswer, HttpError, http_get


class Server:
    """Answers by path, and keeps what it was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def fields(self, number: int = -1) -> Mapping[str, str]:
        return dict(line.split(": ", 1) for line in self.requests[number].split("\r\n")[1:] if line)

    def redirect(self, path: str, location: str, status: str = "302 Found") -> None:
        self.answers[path] = f"HTTP/1.1 {status}\r\nLocation: {location}\r\nContent-Length: 9\r\n\r\n".encode()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.requests.append(request)
        target = request.split(" ", 2)[1]
        writer.write(self.answers.get(target, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))
        await writer.drain()
        writer.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    async with await asyncio.start_server(made.serve, "127.0.0.1", 0) as listener:
        made.port = listener.sockets[0].getsockname()[1]
        yield made


OK = HttpAnswer(200, "OK", b"ok")


async def test_a_request_is_small_and_the_last_of_its_connection(server: Server) -> None:
    assert await http_get(f"{server.url}/pods x?a=b c#d", {"X-Node": ("a", "b"), "User-Agent": ("me",)}) == OK
    assert server.requests == [
        "GET /pods%20x?a=b%20c HTTP/1.1\r\n"
        f"Host: 127.0.0.1:{server.port}\r\nUser-Agent: me\r\nAccept: */*\r\nAccept-Encoding: identity\r\n"
        "X-Node: a\r\nX-Node: b\r\nConnection: close\r\n\r\n"
    ]


@pytest.mark.parametrize(
    ("location", "target"), [("/b", "/b"), ("c?d", "/a/c?d"), ("/\xe9 x", "/%C3%A9%20x"), ("//127.0.0.1:{}/e", "/e")]
)
@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
async def test_redirects_are_followed(server: Server, status: str, location: str, target: str) -> None:
    server.redirect("/a/a", location.format(server.port), status)
    assert await http_get(f"{server.url}/a/a") == OK
    assert [request.split(" ", 2)[1] for request in server.requests] == ["/a/a", target]


async def test_credentials_of_the_url_stay_with_its_host(server: Server) -> None:
    server.redirect("/a", "/b")
    server.redirect("/b", f"http://localhost:{server.port}/c")
    url = server.url.replace("//", "//me:p%40ss@")
    assert await http_get(f"{url}/a") == OK
    assert [server.fields(number).get("Authorization") for number in range(3)] == ["Basic bWU6cEBzcw=="] * 2 + [None]
    assert not any("p%40ss" in request for request in server.requests)


async def test_a_header_of_the_caller_goes_before_the_credentials_of_the_url(server: Server) -> None:
    url = server.url.replace("//", "//me:pass@")
    assert await http_get(url, {"authorization": ("Bearer x",)}) == OK
    assert server.fields()["Authorization"] == "Bearer x"


async def test_a_proxy_of_the_environment_is_used(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", server.url.replace("//", "//proxy:login@"))
    monkeypatch.delenv("no_proxy", raising=False)
    assert await http_get("http://manifests.example/pods?x") == HttpAnswer(200, "OK", b"ok")
    assert server.requests[0].startswith("GET http://manifests.example/pods?x HTTP/1.1\r\n")
    assert server.fields()["Host"] == "manifests.example"
    assert server.fields()["Proxy-Authorization"] == "Basic cHJveHk6bG9naW4="


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 302 Found\r\nLocation: /a\r\n\r\n", "stopped after 10 redirects"),
        (b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n", "no HTTP URL"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nok", "Content-Length"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok", "in the middle of a response"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok", "in the middle of a response"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1001, "larger than 1000 bytes"),
        (b"SSH-2.0-x\r\n", "not HTTP/1.1"),
        (b"", "no response came"),
    ],
)
async def test_an_unusable_answer_has_a_reason(server: Server, answer: bytes, why: str) -> None:
    server.answers["/a"] = answer
    with pytest.raises(HttpError, match=why) as failed:
        await http_get(f"{server.url}/a", limit=1000)
    assert str(failed.value).startswith(f"{server.url}/a: ")


@pytest.mark.parametrize("url", ["ftp://node/x", "http:///x", "http://[", "http://node:99999999/", "", "//node/x"])
async def test_a_url_that_is_none_of_http_is_refused(url: str) -> None:
    with pytest.raises(HttpError):
        await http_get(url)


@pytest.mark.parametrize("header", [("X Y", "z"), ("X", "a\r\nHost: b")])
async def test_a_header_that_cannot_be_sent_is_refused(server: Server, header: tuple[str, str]) -> None:
    with pytest.raises(HttpError, match="invalid header field"):
        await http_get(server.url, {header[0]: (header[1],)})
    assert server.requests == []
