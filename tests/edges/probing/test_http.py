"""The HTTP probe against real servers on loopback, good and bad ones."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pykubelet.edges.probing.http import HttpProber
from pykubelet.edges.probing.http_target import MAX_BYTES, HttpTarget
from pykubelet.edges.probing.outcome import Outcome, ProbeVerdict
from pykubelet.net.http.hops import Headers, make_hop, redirect_hop

Reply = bytes | Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Answers each request with the reply of its path, or the one for all; keeps the requests."""

    def __init__(self, replies: dict[str, Reply] | Reply) -> None:
        self.replies = replies
        self.requests: list[bytes] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await reader.readuntil(b"\r\n\r\n")
            self.requests.append(request)
            path = request.split(b" ")[1].decode()
            reply = self.replies[path] if isinstance(self.replies, dict) else self.replies
            if isinstance(reply, bytes):
                writer.write(reply)
                await writer.drain()
            else:
                await reply(request, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    def lines(self, index: int = 0) -> list[str]:
        return self.requests[index].decode().removesuffix("\r\n\r\n").split("\r\n")


@asynccontextmanager
async def serving(
    replies: dict[str, Reply] | Reply, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[Server]:
    server = Server(replies)
    async with await asyncio.start_server(server.serve, host, 0, ssl=tls) as listener:
        server.port = listener.sockets[0].getsockname()[1]
        yield server


def ok(body: bytes = b"ok", status: str = "200 OK", extra: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{extra}\r\n".encode() + body


def redirect(location: str, status: str = "302 Found") -> bytes:
    return ok(b"", status, f"Location: {location}\r\n")


async def get(
    server: Server, path: str = "/", timeout_s: float = 20.0, scheme: str = "http", **more: tuple[tuple[str, str], ...]
) -> Outcome:
    target = HttpTarget(scheme, "127.0.0.1", server.port, path, more.get("headers", ()))
    return await HttpProber().probe(target, timeout_s)


async def test_the_request_is_the_references() -> None:
    async with serving(ok()) as server:
        outcome = await get(server, "/healthz?full=1&x=a b#part")
    assert outcome == Outcome(ProbeVerdict.SUCCESS, "ok")
    assert server.lines() == [
        "GET /healthz?full=1&x=a%20b HTTP/1.1",
        f"Host: 127.0.0.1:{server.port}",
        "User-Agent: kube-probe/1.37",
        "Accept: */*",
        "Connection: close",
    ]


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        ("", "/"),
        ("healthz", "/healthz"),
        ("/a b", "/a%20b"),
        ("/a%2Fb", "/a%2Fb"),
        ("/100%", "/100%25"),
        ("/ü", "/%C3%BC"),
        ("/a\r\nX: y", "/a%0D%0AX:%20y"),
        ("//[", "//%5B"),
        ("//[::1", "//%5B::1"),
        ("/" + "x" * 5000, "/" + "x" * 5000),
    ],
)
async def test_paths(path: str, sent: str) -> None:
    async with serving(ok()) as server:
        assert (await get(server, path)).verdict is ProbeVerdict.SUCCESS
    assert server.lines()[0] == f"GET {sent} HTTP/1.1"


@pytest.mark.parametrize("where", ["path", "headers"])
async def test_a_request_that_no_server_reads_is_not_sent(where: str) -> None:
    large, headers = "x" * MAX_BYTES, (("a", "b"),)
    target = {
        "path": HttpTarget("http", "127.0.0.1", 1, "/" + large, headers),
        "headers": HttpTarget("http", "127.0.0.1", 1, "/", (*headers, ("x", large))),
    }[where]
    outcome = await HttpProber().probe(target, 1.0)
    assert outcome.verdict is ProbeVerdict.FAILURE
    assert outcome.output.startswith("the request has 2621") and outcome.output.endswith("more than 262144")
    assert await HttpProber().fetch(target) == outcome.output


async def test_headers_of_the_user_win() -> None:
    headers = (
        ("host", "shop.example"),
        ("user-agent", "me/1"),
        ("x-token", "a"),
        ("X-Token", "b"),
        ("Accept", "text/plain"),
    )
    async with serving(ok()) as server:
        await get(server, headers=headers)
    assert server.lines()[1:] == [
        "Host: shop.example",
        "User-Agent: me/1",
        "Accept: text/plain",
        "X-Token: a",
        "X-Token: b",
        "Connection: close",
    ]


async def test_empty_accept_and_user_agent_are_left_out() -> None:
    async with serving(ok()) as server:
        await get(server, headers=(("Accept", ""), ("User-Agent", "")))
    assert server.lines()[1:] == [f"Host: 127.0.0.1:{server.port}", "Connection: close"]


async def test_a_header_cannot_smuggle_another_one() -> None:
    async with serving(ok()) as server:
        outcome = await get(server, headers=(("x-a", "b\r\nX-Evil: 1"),))
    assert outcome.verdict is ProbeVerdict.FAILURE
    assert outcome.output.endswith('net/http: invalid header field value for "X-A"')
    assert server.requests == []


@pytest.mark.parametrize("status", ["200 OK", "204 No Content", "299", "201 Created"])
async def test_good_statuses(status: str) -> None:
    async with serving(f"HTTP/1.1 {status}\r\n\r\n".encode()) as server:
        assert (await get(server)).verdict is ProbeVerdict.SUCCESS


@pytest.mark.parametrize("status", [400, 404, 500, 503, 999])
async def test_bad_statuses_fail_without_the_body(status: int) -> None:
    async with serving(ok(b"secret", f"{status} Bad")) as server:
        outcome = await get(server)
    assert outcome == Outcome(ProbeVerdict.FAILURE, f"HTTP probe failed with statuscode: {status}")


async def test_a_body_may_come_in_chunks_or_until_the_end_or_byte_by_byte() -> None:
    async def slowly(_request: bytes, writer: asyncio.StreamWriter) -> None:
        for byte in b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=1\r\nabc\r\n2\r\nde\r\n0\r\n\r\n":
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)

    replies: dict[str, Reply] = {
        "/chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
        "/end": b"HTTP/1.0 200 OK\r\n\r\nabcde",
        "/slow": slowly,
        "/continue": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcde",
    }
    async with serving(replies) as server:
        for path in replies:
            assert await get(server, path) == Outcome(ProbeVerdict.SUCCESS, "abcde"), path


async def test_of_a_large_body_10_kib_are_read_and_no_more_waited_for() -> None:
    async def endless(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"x" * 1000)
            await writer.drain()

    replies: dict[str, Reply] = {
        "/endless": endless,
        "/long": ok(b"y" * 50_000),
        "/chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFF\r\n" + b"z" * 0xFFFF,
    }
    async with serving(replies) as server:
        for path in replies:
            outcome = await get(server, path)
            assert outcome.verdict is ProbeVerdict.SUCCESS
            assert len(outcome.output) == 10 << 10


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temp", "308 Perm"])
async def test_redirects_on_the_same_host_are_followed(status: str) -> None:
    async with serving({"/": redirect("/there?x=1", status), "/there?x=1": ok(b"arrived")}) as server:
        outcome = await get(server, headers=(("X-Token", "a"), ("Host", "shop.example")))
    assert outcome == Outcome(ProbeVerdict.SUCCESS, "arrived")
    assert "X-Token: a" in server.lines(1)
    assert "Host: shop.example" in server.lines(1)


async def test_an_absolute_redirect_to_another_port_of_the_host_is_followed() -> None:
    async with serving(ok(b"other port")) as second:
        first_reply = redirect(f"http://127.0.0.1:{second.port}/x")
        async with serving(first_reply) as first:
            outcome = await get(first, headers=(("Host", "shop.example"),))
    assert outcome == Outcome(ProbeVerdict.SUCCESS, "other port")
    assert second.lines()[1] == f"Host: 127.0.0.1:{second.port}"


async def test_a_redirect_to_another_host_is_a_warning() -> None:
    async with serving(ok(b"moved", "302 Found", "Location: http://elsewhere.example/\r\n")) as server:
        outcome = await get(server)
    assert outcome == Outcome(ProbeVerdict.WARNING, "Probe terminated redirects, Response body: moved")


@pytest.mark.parametrize("status", ["304 Not Modified", "302 Found", "300 Choices"])
async def test_a_3xx_that_leads_nowhere_is_a_warning(status: str) -> None:
    async with serving(f"HTTP/1.1 {status}\r\n\r\n".encode()) as server:
        assert (await get(server)).verdict is ProbeVerdict.WARNING


async def test_redirects_in_a_circle_end_after_ten() -> None:
    async with serving(redirect("/")) as server:
        outcome = await get(server)
    assert outcome.verdict is ProbeVerdict.FAILURE
    assert outcome.output.endswith(": stopped after 10 redirects")
    assert len(server.requests) == 10


async def test_a_closed_port_fails_with_the_references_words() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        outcome = await HttpProber().probe(HttpTarget("http", "127.0.0.1", port, "/x"), 1.0)
    reason = f"dial tcp 127.0.0.1:{port}: connect: connection refused"
    assert outcome == Outcome(ProbeVerdict.FAILURE, f'Get "http://127.0.0.1:{port}/x": {reason}')


async def test_silence_runs_out_of_time() -> None:
    async def silence(_request: bytes, _writer: asyncio.StreamWriter) -> None:
        await asyncio.get_running_loop().create_future()

    async with serving(silence) as server:
        outcome = await get(server, timeout_s=1.0)
    assert outcome.verdict is ProbeVerdict.FAILURE
    reason = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
    assert outcome.output == f'Get "http://127.0.0.1:{server.port}/": {reason}'
    assert 0 <= outcome.late_s < 5


async def test_a_body_that_does_not_end_is_no_result() -> None:
    async def stuck(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
        await asyncio.get_running_loop().create_future()

    async with serving(stuck) as server:
        outcome = await get(server, timeout_s=1.0)
    assert outcome.verdict is ProbeVerdict.FAILURE
    assert outcome.error == "context deadline exceeded (Client.Timeout or context cancellation while reading body)"


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (b"", "EOF"),
        (b"HTTP/1.1 20", "unexpected EOF"),
        (b"SSH-2.0-x\r\n", 'net/http: HTTP/1.x transport connection broken: malformed HTTP response "SSH-2.0-x"'),
        (
            b"HTTP/1.1 2x0 OK\r\n\r\n",
            'net/http: HTTP/1.x transport connection broken: malformed HTTP status code "2x0"',
        ),
        (
            b"HTTP/2.0 200 OK\r\n\r\n",
            'net/http: HTTP/1.x transport connection broken: malformed HTTP version "HTTP/2.0"',
        ),
        (
            b"\x00\x01\x02\r\n\r\n",
            'net/http: HTTP/1.x transport connection broken: malformed HTTP response "\x00\x01\x02"',
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Length: no\r\n\r\n", 'bad Content-Length "no"'),
        (b"HTTP/1.1 200 OK\r\nContent-Length: %s\r\n\r\n" % (b"9" * 5000), f'bad Content-Length "{"9" * 512}"'),
    ],
)
async def test_rubbish_fails(reply: bytes, message: str) -> None:
    async with serving(reply) as server:
        outcome = await get(server)
    assert outcome == Outcome(ProbeVerdict.FAILURE, f'Get "http://127.0.0.1:{server.port}/": {message}')


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nha",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nha",
    ],
)
async def test_a_body_cut_short_is_no_result(reply: bytes) -> None:
    async with serving(reply) as server:
        outcome = await get(server)
    assert outcome.verdict is ProbeVerdict.FAILURE
    assert outcome.error in ("unexpected EOF", "invalid byte in chunk length")


async def test_a_head_without_end_is_given_up() -> None:
    async def endless(_request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"X-Long: " + b"x" * 50_000 + b"\r\n")
            await writer.drain()

    async with serving(endless) as server:
        outcome = await get(server, timeout_s=60)
    assert outcome.output.endswith("net/http: server response headers exceeded 65536 bytes; aborted")


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 6 + ok(), "net/http: too many 1xx informational responses"),
        (
            b"HTTP/1.1 103 Early Hints\r\nLink: " + b"x" * 20_000 + b"\r\n\r\n",
            "net/http: server response headers exceeded 65536 bytes; aborted",
        ),
        (
            b"HTTP/1.1 200 OK\r\n" + b"a:\r\n" * 1001 + b"\r\n",
            "net/http: server response has more than 1000 header fields; aborted",
        ),
        (redirect("/" + "x" * 5000), "a Location header of more than 4096 bytes"),
    ],
    ids=["interim answers", "large interim answers", "many fields", "a long Location"],
)
async def test_an_answer_with_too_much_before_its_body_fails(reply: bytes, message: str) -> None:
    if reply.startswith(b"HTTP/1.1 103"):
        reply = reply * 4 + ok()
    async with serving(reply) as server:
        outcome = await get(server)
    assert outcome == Outcome(ProbeVerdict.FAILURE, f'Get "http://127.0.0.1:{server.port}/": {message}')


async def test_five_interim_answers_are_passed_over() -> None:
    async with serving(b"HTTP/1.1 100 Continue\r\n\r\n" * 5 + ok()) as server:
        assert await get(server) == Outcome(ProbeVerdict.SUCCESS, "ok")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"1;" + b"x" * 4000, "chunked encoding contains too much non-data"),
        (b"-1", "invalid byte in chunk length"),
        (b"0x1", "invalid byte in chunk length"),
        (b"1_0", "invalid byte in chunk length"),
        (b"1" * 17, "invalid byte in chunk length"),
        (b"1;" + b"x" * 5000, "http: chunk line too long"),
    ],
)
async def test_chunks_with_more_around_them_than_in_them_are_refused(line: bytes, problem: str) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with serving(head + (line + b"\r\nx\r\n") * 10 + b"0\r\n\r\n") as server:
        outcome = await get(server)
    assert (outcome.verdict, outcome.error) == (ProbeVerdict.FAILURE, problem)


async def test_small_chunks_are_read() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with serving(head + b"1\r\nx\r\n" * 9000 + b"0\r\n\r\n") as server:
        assert await get(server) == Outcome(ProbeVerdict.SUCCESS, "x" * 9000)


async def test_what_is_shown_of_a_bad_answer_is_short() -> None:
    async with serving(b"\xff" * 60_000 + b"\r\n\r\n") as server:
        outcome = await get(server)
    assert outcome.verdict is ProbeVerdict.FAILURE and "malformed HTTP response" in outcome.output
    assert len(outcome.output) < 4096


async def test_interim_answers_without_end_fail() -> None:
    async def endless(_request: bytes, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            await writer.drain()

    async with serving(endless) as server, asyncio.timeout(60):
        outcome = await get(server, timeout_s=600.0)
    assert outcome.output.endswith(": net/http: too many 1xx informational responses")


# Hooks: redirects to other hosts


SECRETS = (("Authorization", "Bearer secret"), ("Cookie", "a=b"), ("Proxy-Authorization", "Basic c2VjcmV0"))


def followed(first: str, *locations: str) -> str:
    """The last request of a chain of redirects, by what it carries."""
    headers: Headers = (*SECRETS, ("X-Own", "1"), ("Host", "shop.example"))
    start = last = make_hop(first, headers, "agent")
    for location in locations:
        after = redirect_hop(start, last, location, headers, "agent")
        assert after is not None
        last, headers = after
    return last.request.decode()


@pytest.mark.parametrize(
    ("first", "locations"),
    [
        ("http://one.example/", ["/there"]),
        ("http://one.example/", ["http://one.example:8080/there"]),
        ("http://one.example/", ["https://one.example/there"]),
        ("http://one.example/", ["http://sub.one.example/there"]),
        ("https://one.example/", ["//one.example/there"]),
    ],
)
def test_credentials_stay_with_the_host(first: str, locations: list[str]) -> None:
    request = followed(first, *locations)
    assert all(f"{name}: {value}\r\n" in request for name, value in SECRETS)


@pytest.mark.parametrize(
    ("first", "locations"),
    [
        ("http://one.example/", ["http://two.example/there"]),
        ("http://one.example/", ["//two.example/there"]),
        ("http://one.example/", ["http://badone.example/there"]),
        ("http://sub.one.example/", ["http://one.example/there"]),
        ("https://one.example/", ["http://one.example/there"]),
        ("http://127.0.0.1/", ["http://127.0.0.2/there"]),
        ("http://one.example/", ["http://two.example/", "http://one.example/there"]),
        ("https://one.example/", ["http://one.example/", "https://one.example/there"]),
    ],
)
def test_credentials_go_nowhere_else_and_do_not_come_back(first: str, locations: list[str]) -> None:
    request = followed(first, *locations)
    assert not any(value in request for _, value in SECRETS)
    assert "X-Own: 1\r\n" in request


@pytest.mark.parametrize(
    ("location", "host"),
    [("/there", "shop.example"), ("//two.example/there", "two.example"), ("http://two.example/", "two.example")],
)
def test_the_host_of_the_user_is_for_relative_redirects(location: str, host: str) -> None:
    assert f"Host: {host}\r\n" in followed("http://one.example/", location)


def test_a_referer_has_no_password_and_nothing_of_https_for_http() -> None:
    assert "Referer: http://one.example/x\r\n" in followed("http://u:p@one.example/x", "/there")
    assert "Referer:" not in followed("https://one.example/x", "http://one.example/there")


async def test_a_hook_takes_no_credentials_to_another_host() -> None:
    async with serving(ok(), host="127.0.0.2") as other, serving(b"") as first:
        first.replies = redirect(f"http://127.0.0.2:{other.port}/", "307 Temporary Redirect")
        target = HttpTarget("http", "127.0.0.1", first.port, "/", (*SECRETS, ("X-Own", "1")))
        assert await HttpProber().fetch(target) == ""
    assert "Authorization: Bearer secret" in first.lines()
    assert "X-Own: 1" in other.lines()
    assert not any("secret" in line or "Cookie" in line for line in other.lines())


async def test_a_connection_that_is_reset_fails() -> None:
    async def reset(_request: bytes, writer: asyncio.StreamWriter) -> None:
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        writer.transport.abort()

    async with serving(reset) as server:
        outcome = await get(server)
    assert outcome.verdict is ProbeVerdict.FAILURE
    assert outcome.output.endswith("read: connection reset by peer")


async def test_ipv6() -> None:
    async with serving(ok(), "::1") as server:
        outcome = await HttpProber().probe(HttpTarget("http", "::1", server.port, "/"), 1.0)
    assert outcome.verdict is ProbeVerdict.SUCCESS
    assert server.lines()[1] == f"Host: [::1]:{server.port}"


async def test_a_name_is_looked_up() -> None:
    async with serving(ok()) as server:
        outcome = await HttpProber().probe(HttpTarget("http", "localhost", server.port, "/"), 2.0)
    assert outcome.verdict is ProbeVerdict.SUCCESS
    assert server.lines()[1] == f"Host: localhost:{server.port}"


@pytest.fixture(scope="module")
def self_signed(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    folder: Path = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    subject = ["-subj", "/CN=expired.example", "-days", "1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:1024", "-nodes", "-keyout", str(key), "-out", str(cert)]
    subprocess.run([*command, *subject], check=True, capture_output=True)
    settings = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    settings.set_ciphers("DEFAULT@SECLEVEL=0")
    settings.load_cert_chain(cert, key)
    return settings


async def test_https_does_not_verify(self_signed: ssl.SSLContext) -> None:
    async with serving(ok(b"tls"), tls=self_signed) as server:
        outcome = await get(server, scheme="https")
        await asyncio.sleep(0.05)
    assert outcome == Outcome(ProbeVerdict.SUCCESS, "tls")


async def test_http_answered_where_https_was_asked() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        outcome = await HttpProber().probe(HttpTarget("https", "127.0.0.1", port, "/"), 20.0)
        await asyncio.sleep(0.05)
    message = "http: server gave HTTP response to HTTPS client"
    assert outcome == Outcome(ProbeVerdict.FAILURE, f'Get "https://127.0.0.1:{port}/": {message}')


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_many_at_once_leave_no_descriptor_behind() -> None:
    before = open_descriptors()
    async with serving(ok()) as server:
        outcomes = await asyncio.gather(*(get(server, timeout_s=60) for _ in range(200)))
    assert {outcome.verdict for outcome in outcomes} == {ProbeVerdict.SUCCESS}
    for _ in range(3000):
        if open_descriptors() <= before + 2:
            break
        await asyncio.sleep(0.01)
    assert open_descriptors() <= before + 2


def hold_up_the_loop(seconds: float) -> None:
    time.sleep(seconds)


async def test_an_agent_that_was_delayed_itself_reports_it() -> None:
    async def silence(_request: bytes, _writer: asyncio.StreamWriter) -> None:
        await asyncio.get_running_loop().create_future()

    async with serving(silence) as server:
        asyncio.get_running_loop().call_later(0.05, hold_up_the_loop, 2.0)
        outcome = await get(server, timeout_s=0.2)
    assert outcome.verdict is ProbeVerdict.FAILURE
    assert outcome.late_s > 0.4
