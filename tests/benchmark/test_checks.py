"""What was not measured, or did not happen, is an error of the benchmark and never a good figure."""

from __future__ import annotations

import socket
import threading

import pytest

from bench.agent import checked
from bench.runtime import BenchError
from bench.server import stream

UPGRADED = b"HTTP/1.1 101 Switching Protocols\r\n\r\n"


def answered_with(answer: bytes) -> int:
    """The bytes that `stream` reads from a server that answers so, and then closes the connection."""
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with theirs:
            theirs.recv(4096)
            theirs.sendall(answer)

    server = threading.Thread(target=serve)
    server.start()
    try:
        with ours:
            return stream(ours, "/exec/default/pod/main")
    finally:
        server.join()


def test_a_command_that_succeeds_is_counted() -> None:
    answer = UPGRADED + b'output\x03{"metadata":{},"status":"Success"}'
    assert answered_with(answer) == len(answer)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", "no stream: .*403"),
        (UPGRADED + b"output", "ends without success"),
        (UPGRADED + b'\x03{"status":"Failure","reason":"NonZeroExitCode"}', "ends without success"),
        (b"", "ends without success"),
    ],
)
def test_a_command_that_is_refused_or_fails_is_no_fast_one(answer: bytes, message: str) -> None:
    with pytest.raises(BenchError, match=message):
        answered_with(answer)


def test_memory_or_cpu_time_of_nothing_is_not_measured() -> None:
    assert checked(0.5, "CPU time") == 0.5
    with pytest.raises(BenchError, match="CPU time reads as 0"):
        checked(0, "CPU time")
