"""What gRPC probes get from containers: frames, header blocks and messages, each of which costs the agent a moment."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest
from hostile.servers import Script, mutated, serving
from support.cost import check_cost

from pykubelet.base.kit.values import replace
from pykubelet.edges.probing.grpc_health import probe_grpc
from pykubelet.edges.probing.http import HttpProber
from pykubelet.edges.probing.http_target import HttpTarget
from pykubelet.edges.probing.outcome import Outcome, ProbeVerdict

OUTPUT_CHARACTERS = 16 << 10
TIMEOUT_S = 0.5
DATA, HEADERS, PRIORITY, RST, SETTINGS, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 2, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
#: ":status: 200" of the static table, and a literal "content-type: application/grpc".
HEAD = b"\x88\x5f\x10application/grpc"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def integer(value: int, bits: int, first: int = 0) -> bytes:
    """RFC 7541, section 5.1."""
    most = (1 << bits) - 1
    if value < most:
        return bytes([first | value])
    found, value = bytearray([first | most]), value - most
    while value >= 128:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def literal(name: bytes, value: bytes, *, indexed: bool = False) -> bytes:
    first = 0x40 if indexed else 0
    return bytes([first]) + integer(len(name), 7) + name + integer(len(value), 7) + value


def huffman(coded: bytes) -> bytes:
    """A header whose value is already coded."""
    return bytes([0]) + integer(1, 7) + b"x" + integer(len(coded), 7, 0x80) + coded


def block(payload: bytes, flags: int = 0, size: int = 16384) -> bytes:
    """A header block in frames, as a server sends a large one."""
    parts = [payload[at : at + size] for at in range(0, len(payload), size)] or [b""]
    frames = [frame(HEADERS, flags, 1, parts[0])] + [frame(CONTINUATION, 0, 1, part) for part in parts[1:]]
    last = frames[-1]
    frames[-1] = last[:4] + bytes([last[4] | END_HEADERS]) + last[5:]
    return b"".join(frames)


def message(payload: bytes) -> bytes:
    framed = b"\0" + struct.pack(">L", len(payload)) + payload
    return b"".join(frame(DATA, 0, 1, framed[at : at + 16384]) for at in range(0, len(framed), 16384))


TRAILERS = literal(b"grpc-status", b"0")
GOOD = frame(SETTINGS, 0, 0) + block(HEAD) + message(b"\x08\x01") + block(TRAILERS, END_STREAM)


def answering(answer: bytes, again: bytes = b"", most_bytes: int = 32 << 20) -> Script:
    """SETTINGS, then the answer once the request was sent, then `again` for as long as it is taken."""

    def script(client: socket.socket) -> None:
        client.sendall(frame(SETTINGS, 0, 0))
        client.recv(65536)
        client.sendall(frame(SETTINGS, ACK, 0))
        client.sendall(answer)  # not joined: a copy of it in this thread would count as the agent's
        if again:
            many = again * max(1, 65536 // len(again))
            for _ in range(most_bytes // len(many)):
                client.sendall(many)
        else:
            while client.recv(65536):
                pass

    return script


#: Symbols of thirty bits, the longest there are.
BOMB = b"\xff\xff\xff\xf0" * (1 << 18)
DYNAMIC = literal(b"a", b"x" * 4000, indexed=True) + b"\xbe" * 16000

ANSWERS: dict[str, Script] = {
    "a good answer": answering(GOOD),
    "a Huffman string of a mebibyte": answering(block(HEAD + huffman(BOMB)) + GOOD),
    "a Huffman string in the trailers": answering(
        block(HEAD) + message(b"\x08\x01") + block(TRAILERS + huffman(BOMB), END_STREAM)
    ),
    "one large entry named 16,000 times": answering(block(HEAD + DYNAMIC) + GOOD),
    "a header block without end": answering(
        frame(HEADERS, 0, 1, HEAD), frame(CONTINUATION, 0, 1, b"\x00\x01a\x01b" * 999)
    ),
    "empty CONTINUATION frames": answering(frame(HEADERS, 0, 1, HEAD), frame(CONTINUATION, 0, 1)),
    "200,000 headers of two bytes": answering(block(HEAD + b"\x88" * 200_000) + GOOD),
    "SETTINGS without end": answering(b"", frame(SETTINGS, 0, 0, b"\0\x03\0\0\0\x64" * 10)),
    "SETTINGS of 2,700 values": answering(b"", frame(SETTINGS, 0, 0, b"\0\x04\0\0\xff\xff" * 2700)),
    "PING without end": answering(b"", frame(PING, 0, 0, b"12345678")),
    "WINDOW_UPDATE without end": answering(b"", frame(WINDOW, 0, 0, b"\0\0\0\1")),
    "PRIORITY without end": answering(b"", frame(PRIORITY, 0, 3, b"\0\0\0\0\1")),
    "frames of unknown kinds": answering(b"", frame(77, 0, 0)),
    "RST_STREAM of other streams": answering(b"", frame(RST, 0, 99, b"\0\0\0\0")),
    "empty DATA without end": answering(block(HEAD), frame(DATA, 0, 1)),
    "DATA of one byte": answering(block(HEAD), frame(DATA, 0, 1, b"\0")),
    "GOAWAY without end": answering(b"", frame(GOAWAY, 0, 0, b"\x7f\xff\xff\xff\0\0\0\0" + b"x" * 500)),
    "a message of 16 MiB": answering(block(HEAD) + message(b"\x10\x01" * (8 << 20)) + block(TRAILERS, END_STREAM)),
    "a message of 60,000 fields": answering(block(HEAD) + message(b"\x10\x01" * 30_000) + block(TRAILERS, END_STREAM)),
    "a status of 5,000 digits": answering(block(HEAD) + block(literal(b"grpc-status", b"1" * 5000), END_STREAM)),
    "a message of the status of a mebibyte": answering(
        block(HEAD + literal(b"grpc-status", b"2") + literal(b"grpc-message", b"%C3%A4" * (1 << 17)), END_STREAM)
    ),
    "a head that is no HTTP/2": answering(b"HTTP/1.1 200 OK\r\n\r\n" * 1000),
    "a frame of 16 MiB": answering(b"\xff\xff\xff\x00\x00\x00\x00\x00\x01", b"x" * 65536),
}


async def probe(port: int, timeout_s: float = TIMEOUT_S) -> Outcome:
    outcome = await probe_grpc("127.0.0.1", port, "", timeout_s)
    assert len(outcome.output) <= OUTPUT_CHARACTERS
    return outcome


def test_the_good_answer_is_good() -> None:
    with serving(ANSWERS["a good answer"]) as port:
        outcome = asyncio.run(probe(port, 60))
    assert outcome.verdict is ProbeVerdict.SUCCESS


@pytest.mark.parametrize("name", ANSWERS)
def test_no_answer_to_a_probe_costs_much(name: str) -> None:
    with serving(ANSWERS[name]) as port:
        check_cost(name, lambda: probe(port))


@pytest.mark.parametrize("name", ANSWERS)
def test_no_answer_to_an_http_probe_over_http_2_costs_much(name: str) -> None:
    target = HttpTarget("http", "127.0.0.1", 0, is_http2=True)
    with serving(ANSWERS[name]) as port:
        check_cost(name, lambda: HttpProber().probe(replace(target, port=port), TIMEOUT_S))


def test_mutated_answers_cost_no_more() -> None:
    numbers = iter(range(1_000_000))

    def script(client: socket.socket) -> None:
        client.recv(65536)
        client.sendall(mutated(next(numbers), GOOD))

    async def many() -> None:
        for _ in range(10):
            await asyncio.gather(*(probe(port, 0.1) for _ in range(10)))

    with serving(script) as port:
        check_cost("100 mutated answers", many)
