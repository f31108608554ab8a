"""What HTTP probes and lifecycle hooks get from containers: each answer costs the agent a moment, and nothing stays."""

from __future__ import annotations

import socket

import pytest
from hostile.servers import Script, mutated, repeating, sending, serving
from support.cost import check_cost

from pykubelet.edges.probing.grpc_health import probe_grpc
from pykubelet.edges.probing.http import HttpProber
from pykubelet.edges.probing.http_target import HttpTarget
from pykubelet.edges.probing.outcome import Outcome

OUTPUT_CHARACTERS = 16 << 10
TIMEOUT_S = 0.5
OK = b"HTTP/1.1 200 OK\r\n"
GOOD = OK + b"Content-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n0\r\n\r\n"

ANSWERS: dict[str, Script] = {
    "interim answers without end": repeating(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "interim answers with large heads": repeating(b"", b"HTTP/1.1 103 Early\r\nLink: " + b"x" * 60000 + b"\r\n\r\n"),
    "a status line without end": repeating(b"HTTP/1.1 200 ", b"x"),
    "a status line of a mebibyte": sending(b"HTTP/1.1 500 " + b"\xff" * (1 << 20) + b"\r\n\r\n"),
    "a status of 5,000 digits": sending(b"HTTP/1.1 " + b"9" * 5000 + b" x\r\n\r\n"),
    "a header without end": repeating(OK + b"a: ", b"x"),
    "headers without end": repeating(OK, b"a:\r\n"),
    "100,000 short headers": sending(OK + b"a:\r\n" * 100_000 + b"\r\n"),
    "the same header of different names": sending(OK + b"".join(b"a%d: b\r\n" % n for n in range(60_000)) + b"\r\n"),
    "folded headers": sending(OK + b"a: b\r\n" + b" c\r\n" * 50_000 + b"\r\n"),
    "a length of 5,000 digits": sending(OK + b"Content-Length: " + b"1" * 5000 + b"\r\n\r\n"),
    "a body without end": repeating(OK + b"\r\n", b"x"),
    "a body of line ends": repeating(OK + b"\r\n", b"\r\n"),
    "a body that is no text": repeating(OK + b"\r\n", b"\xff\xfe\x00\x1b"),
    "chunks of one byte": repeating(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    "chunks of many digits": repeating(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"0"),
    "chunk extensions": repeating(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1;" + b"a=b;" * 500 + b"\r\nx\r\n"),
    "trailers without end": repeating(OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"a: b\r\n"),
    "a redirect of a mebibyte": sending(b"HTTP/1.1 302 F\r\nLocation: /" + b"%41" * 340_000 + b"\r\n\r\n"),
    "a redirect to itself": sending(b"HTTP/1.1 302 F\r\nLocation: /\r\nContent-Length: 0\r\n\r\n"),
    "a redirect to brackets": sending(b"HTTP/1.1 302 F\r\nLocation: //[" + b"[" * 60000 + b"\r\n\r\n"),
    "nothing at all": sending(b""),
    "TLS alerts": repeating(b"", b"\x15\x03\x01\x00\x02\x02\x28"),
}


async def probe(port: int, scheme: str = "http") -> Outcome:
    outcome = await HttpProber().probe(HttpTarget(scheme, "127.0.0.1", port), TIMEOUT_S)
    assert len(outcome.output) <= OUTPUT_CHARACTERS
    return outcome


@pytest.mark.parametrize("name", ANSWERS)
def test_no_answer_to_a_probe_costs_much(name: str) -> None:
    with serving(ANSWERS[name]) as port:
        check_cost(name, lambda: probe(port))


HANDSHAKES: dict[str, Script] = {
    "alerts without end": repeating(b"", b"\x15\x03\x03\x00\x02\x01\x5a"),
    "empty records without end": repeating(b"", b"\x16\x03\x03\x00\x00"),
    "a message of sixteen mebibytes": repeating(b"", b"\x16\x03\x03\x40\x00\x02\xff\xff\xff" + b"x" * 16380),
    "messages of one byte": repeating(b"", b"\x16\x03\x03\x00\x01\x00"),
    "plain text without end": repeating(b"HTTP/1.1 400 Bad Request\r\n\r\n", b"x"),
    "nothing at all": sending(b""),
}


@pytest.mark.parametrize("name", HANDSHAKES)
def test_no_answer_to_a_client_hello_costs_much(name: str) -> None:
    with serving(HANDSHAKES[name]) as port:
        check_cost(name, lambda: probe(port, "https"))


@pytest.mark.parametrize("name", HANDSHAKES)
def test_no_answer_to_the_client_hello_of_a_grpc_probe_costs_much(name: str) -> None:
    with serving(HANDSHAKES[name]) as port:
        check_cost(name, lambda: probe_grpc("127.0.0.1", port, "", TIMEOUT_S, is_tls=True))


def test_answers_that_differ_each_time_do_not_pile_up() -> None:
    """Caches of what probes are answered are bounded in bytes, not only in number."""
    numbers = iter(range(1_000_000))

    def script(client: socket.socket) -> None:
        number = next(numbers)
        sending(b"HTTP/1.1 %d " % (500 + number % 100) + b"%d" % number * 9000 + b"\r\n\r\n")(client)

    async def many() -> None:
        for _ in range(100):
            await probe(port)

    with serving(script) as port:
        check_cost("status lines that differ", many)


def test_mutated_answers_cost_no_more() -> None:
    numbers = iter(range(1_000_000))

    def script(client: socket.socket) -> None:
        sending(mutated(next(numbers), GOOD))(client)

    async def many() -> None:
        for _ in range(300):
            await probe(port)

    with serving(script) as port:
        check_cost("300 mutated answers", many)
