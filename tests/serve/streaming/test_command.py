"""exec and attach: what one side sends is what the other one receives, as sequence diagrams."""

from __future__ import annotations

import json
import zlib

import pytest
from net.websocket.bytes_of import control, data, masked, messages, reply, reset

from pykubelet.net.websocket import spdy
from pykubelet.serve.streaming.bridge import Step
from pykubelet.serve.streaming.command import MAX_RESULT, RemoteCommand

#: In the order they are opened in.
RESULT, STDIN, STDOUT, STDERR = 1, 3, 5, 7
EXITED = b'{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}'
CLOSED = (0x88, b"\x03\xe8")


def opened(command: RemoteCommand) -> list[str]:
    """What the streams are that the runtime is asked to open."""
    _, output = command.start()
    unpacker = zlib.decompressobj(zdict=spdy.DICTIONARY)
    names = []
    while output:
        size = 8 + int.from_bytes(output[4:8], "big")
        names.append(unpacker.decompress(output[18:size])[4 + 4 + len("streamtype") + 4 :].decode())
        output = output[size:]
    return names


def running() -> RemoteCommand:
    command = RemoteCommand(stdin=True, stdout=True, stderr=True, tty=False)
    command.start()
    command.from_runtime(reply(RESULT, STDIN, STDOUT, STDERR))
    return command


def output(step: Step) -> bytes:
    return b"".join(step.onward)


def close_message(command: RemoteCommand, error: str = "") -> dict[str, object]:
    result, end = messages(command.close_message(error))
    assert end == CLOSED
    assert result[0] == 0x82 and result[1][:1] == b"\x03"
    return dict(json.loads(result[1][1:]))


def test_the_streams_that_were_asked_for_are_opened() -> None:
    assert opened(RemoteCommand(stdin=True, stdout=True, stderr=True, tty=False)) == [
        "error",
        "stdin",
        "stdout",
        "stderr",
    ]
    assert opened(RemoteCommand(stdin=True, stdout=True, stderr=False, tty=True)) == [
        "error",
        "stdin",
        "stdout",
        "resize",
    ]
    assert opened(RemoteCommand(stdin=True, stdout=False, stderr=False, tty=False)) == ["error", "stdin"]


@pytest.mark.parametrize(("stdout", "stderr", "channel"), [(True, True, 1), (False, True, 2), (False, False, 3)])
def test_the_client_hears_at_once_that_it_is_heard(stdout: bool, stderr: bool, channel: int) -> None:
    command = RemoteCommand(stdin=True, stdout=stdout, stderr=stderr, tty=False)
    assert messages(command.start()[0]) == [(0x82, bytes((channel,)))]


def test_it_is_open_when_the_runtime_has_agreed_to_every_stream() -> None:
    command = RemoteCommand(stdin=False, stdout=True, stderr=False, tty=False)
    command.start()
    command.from_runtime(reply(1))
    assert not command.is_open
    command.from_runtime(reply(3))
    assert command.is_open


def test_input_goes_on_until_its_end() -> None:
    command = running()
    assert output(command.from_client(masked(2, b"\0hello"))) == data(STDIN, b"hello")
    assert output(command.from_client(masked(2, b"\xff\0"))) == data(STDIN, b"", last=True)
    assert output(command.from_client(masked(2, b"\0more") + masked(2, b"\xff\0"))) == b""


def test_a_message_in_fragments_is_of_one_channel() -> None:
    command = running()
    first = masked(2, b"", final=False) + masked(0, b"\0he", final=False)
    assert output(command.from_client(first)) == data(STDIN, b"he")
    assert output(command.from_client(masked(0, b"llo"))) == data(STDIN, b"llo")
    assert output(command.from_client(masked(2, b"\x09he", final=False) + masked(0, b"\0llo"))) == b""


def test_what_is_for_no_channel_that_was_asked_for_is_dropped() -> None:
    command = RemoteCommand(stdin=False, stdout=True, stderr=False, tty=False)
    for message in (b"", b"\0x", b"\1x", b"\3x", b"\4x", b"\x63x", b"\xff", b"\xff\0", b"\xff\1", b"\xff\xff"):
        step = command.from_client(masked(2, message))
        assert (output(step), step.ended) == (b"", False)


def test_the_size_of_the_terminal_goes_on_as_it_is() -> None:
    command = RemoteCommand(stdin=True, stdout=True, stderr=False, tty=True)
    command.start()
    size = b'{"Width":80,"Height":24}'
    assert output(command.from_client(masked(2, b"\4" + size))) == data(7, size)


def test_output_errors_and_the_exit_code() -> None:
    command = running()
    step = command.from_runtime(data(STDOUT, b"out") + data(STDERR, b"err"))
    assert messages(output(step)) == [(0x82, b"\1out"), (0x82, b"\2err")]
    step = command.from_runtime(data(RESULT, EXITED[:20]) + data(RESULT, EXITED[20:], last=True))
    assert (output(step), step.ended) == (b"", False)
    step = command.from_runtime(data(STDOUT, b"late", last=True) + data(STDERR, b"", last=True))
    assert messages(output(step)) == [(0x82, b"\1late")] and step.ended
    assert close_message(command) == json.loads(EXITED)


def test_no_words_at_the_end_are_a_success() -> None:
    command = running()
    ends = b"".join(data(stream, b"", last=True) for stream in (RESULT, STDOUT, STDERR))
    assert command.from_runtime(ends).ended
    assert close_message(command) == {"metadata": {}, "status": "Success"}


def test_a_result_counts_though_the_rest_is_cut_off() -> None:
    command = running()
    command.from_runtime(data(RESULT, EXITED))
    assert command.from_runtime(reset(RESULT) + reset(STDOUT) + reset(STDERR) + reset(STDIN)).ended
    assert close_message(command, "the runtime has ended the connection") == json.loads(EXITED)


def test_input_that_the_runtime_does_not_want_is_dropped() -> None:
    command = running()
    assert not command.from_runtime(reset(STDIN)).ended
    assert output(command.from_client(masked(2, b"\0x"))) == b""


@pytest.mark.parametrize(
    ("from_runtime", "why"),
    [
        (b"", "the runtime has ended the connection"),
        (reset(RESULT), "the runtime ends without a result"),
        (data(RESULT, bytes(MAX_RESULT + 1)), "the runtime's result is too long"),
        (b"\x80\x04\x00\x02\x00\x00\x00\x04", "the runtime does not speak SPDY/3.1: another version of SPDY"),
    ],
)
def test_a_runtime_that_fails_is_a_failure(from_runtime: bytes, why: str) -> None:
    command = running()
    ended = command.from_runtime(from_runtime).ended
    assert ended == bool(from_runtime)
    status = close_message(command, "" if ended else "the runtime has ended the connection")
    assert (status["status"], status["reason"], status["code"]) == ("Failure", "InternalError", 500)
    assert status["message"] == f"Internal error occurred: {why}"


def test_a_stream_that_the_runtime_refuses_is_a_failure() -> None:
    command = RemoteCommand(stdin=True, stdout=True, stderr=False, tty=False)
    command.start()
    assert command.from_runtime(reply(RESULT) + reset(STDIN)).ended
    assert close_message(command)["message"] == "Internal error occurred: the runtime refuses the stream stdin"


def test_pings_of_both_sides_are_answered() -> None:
    command = running()
    assert messages(command.from_client(masked(9, b"x")).back) == [(0x8A, b"x")]
    assert command.from_runtime(control(6, b"\0\0\0\2")).back == control(6, b"\0\0\0\2")
    assert command.from_runtime(control(6, b"\0\0\0\1")).back == b""


def test_a_client_that_closes_gets_a_close_frame_and_nothing_else() -> None:
    command = running()
    assert command.from_client(masked(8, b"\x03\xe8")).ended
    assert messages(command.close_message("")) == [CLOSED]
