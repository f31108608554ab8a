"""WebSocket streams that end at the node: `v5.channel.k8s.io`, and port-forward through a tunnel, with real containers."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.agent import Agent, make_container, make_pod
from support.api import NodeApi, WebSocket

from pykubelet.net.websocket import spdy

pytestmark = pytest.mark.integration
POD = "web-node"
V5 = "v5.channel.k8s.io"
TUNNEL = "SPDY/3.1+portforward.k8s.io"
SETTINGS = {"authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}}}
MIB = 1 << 20


@pytest.fixture(scope="module")
def api(agent: Agent) -> NodeApi:
    echo = "mkdir -p /tmp/www; head -c 300000 /dev/zero > /tmp/www/file; exec httpd -f -p 8080 -h /tmp/www"
    agent.put(
        make_pod(
            "web",
            make_container("talk", script="trap 'exit 0' TERM; while :; do sleep 0.1; done"),
            make_container("cat", stdin=True, command=["cat"]),
            make_container("www", script=echo, readinessProbe={"tcpSocket": {"port": 8080}, "periodSeconds": 1}),
        )
    )
    with asyncio.Runner() as runner:
        runner.run(agent.wait_running("web"))
    return NodeApi(agent.port).wait_listening()


def run(api: NodeApi, script: str, more: str = "") -> WebSocket:
    path = f"/exec/default/{POD}/talk?command=sh&command=-c&command={script.replace(' ', '+')}"
    return api.stream(f"{path}&output=1&error=1{more}", V5)


def test_input_to_its_end_output_errors_and_the_exit_code(api: NodeApi) -> None:
    data = os.urandom(3 * MIB)
    with run(api, "sha256sum; echo oops >%262; exit 7", "&input=1") as stream:
        assert f"Sec-WebSocket-Protocol: {V5}" in stream.head
        for at in range(0, len(data), 32768):
            stream.send(0, data[at : at + 32768])
        stream.end(0)
        output = stream.all()
    assert output[1] == f"{hashlib.sha256(data).hexdigest()}  -\n".encode() and output[2] == b"oops\n"
    result = json.loads(output[3])
    assert result["reason"] == "NonZeroExitCode"
    assert result["details"]["causes"] == [{"reason": "ExitCode", "message": "7"}]


def test_a_success_is_reported(api: NodeApi) -> None:
    with run(api, "true") as stream:
        frames = list(stream.frames())
    assert frames[0] == (1, b"")
    assert json.loads(frames[-1][1])["status"] == "Success"


def test_much_output_at_the_clients_pace(agent: Agent, api: NodeApi) -> None:
    """A client that does not read costs no memory, and gets all of it when it does."""
    with run(api, f"head -c {64 * MIB} /dev/zero") as stream:
        before = resident(agent)
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            assert resident(agent) < before + 8 * MIB
            time.sleep(0.05)
        assert len(stream.all()[1]) == 64 * MIB


def test_a_command_that_does_not_read_costs_no_memory(agent: Agent, api: NodeApi) -> None:
    with run(api, "sleep 1; wc -c", "&input=1") as stream:
        before = resident(agent)
        for _ in range(40 * 32):
            stream.send(0, bytes(32768))
            assert resident(agent) < before + 8 * MIB
        stream.end(0)
        assert stream.all()[1] == b"%d\n" % (40 * MIB)


def test_a_terminal_and_its_size(api: NodeApi) -> None:
    script = "while+sleep+0.05;+do+stty+size;+done"
    with api.stream(
        f"/exec/default/{POD}/talk?command=sh&command=-c&command={script}&input=1&output=1&tty=1", V5
    ) as stream:
        stream.send(4, b'{"Width":123,"Height":45}')
        output = b""
        for _, data in stream.frames():
            output += data
            if b"45 123\r\n" in output:
                return
    raise AssertionError(output)


def test_attach(api: NodeApi) -> None:
    with api.stream(f"/attach/default/{POD}/cat?input=1&output=1", V5) as stream:
        stream.send(0, b"ping\n")
        assert next((c, d) for c, d in stream.frames() if d) == (1, b"ping\n")


def test_pings_are_answered_and_a_flood_of_them_is_not(api: NodeApi) -> None:
    with run(api, "sleep 1000", "&input=1") as stream:
        stream.send_frame(9, b"are you there?")
        assert next(frame for frame in stream.raw_frames() if frame[0] == 10) == (10, b"are you there?")
        with contextlib.suppress(OSError):
            stream.send_raw(b"\x89\x80\0\0\0\0" * 500_000)
        with contextlib.suppress(OSError):
            assert [payload[:2] for opcode, payload in stream.raw_frames() if opcode == 8] == [b"\x03\xf0"]
    assert api.ask("/healthz") == (200, "ok")


def test_nonsense_is_refused(api: NodeApi) -> None:
    with run(api, "sleep 1000", "&input=1") as stream:
        stream.send_raw(b"\x82\x05hello")
        assert [payload[:2] for opcode, payload in stream.raw_frames() if opcode == 8] == [b"\x03\xea"]


def test_port_forward_through_a_tunnel(api: NodeApi) -> None:
    with api.stream(f"/portForward/default/{POD}", TUNNEL) as stream:
        assert f"Sec-WebSocket-Protocol: {TUNNEL}" in stream.head
        opener, reader = spdy.StreamOpener(), spdy.SpdyFrameReader()
        for request in range(20):
            for kind, number in (("error", 4 * request + 1), ("data", 4 * request + 3)):
                headers = {"streamtype": kind, "port": "8080", "requestid": str(request)}
                stream.send_frame(2, opener.open(number, headers))
            asked = b"GET /file HTTP/1.0\r\n\r\n"
            stream.send_frame(2, spdy.data_head(4 * request + 3, len(asked)) + asked)
        got: dict[int, int] = {}
        finished: set[int] = set()
        for frame in spdy_frames(stream, reader):
            if isinstance(frame, spdy.Data):
                got[frame.stream] = got.get(frame.stream, 0) + len(frame.data)
            if isinstance(frame, spdy.StreamFinished) and frame.stream % 4 == 3:
                finished.add(frame.stream)
                if len(finished) == 20:
                    break
    assert len(got) == 20 and all(size > 300_000 for size in got.values())


def test_a_forward_that_fails_does_not_end_the_others(api: NodeApi) -> None:
    """The first to a port on which nothing listens, the next, on the same connection, to one that is served."""
    with api.stream(f"/portForward/default/{POD}", TUNNEL) as stream:
        opener, reader = spdy.StreamOpener(), spdy.SpdyFrameReader()
        output = {1: b"", 3: b"", 5: b"", 7: b""}
        for request, port in enumerate(("9", "8080")):
            for kind, number in (("error", 4 * request + 1), ("data", 4 * request + 3)):
                headers = {"streamtype": kind, "port": port, "requestid": str(request)}
                stream.send_frame(2, opener.open(number, headers))
            asked = b"GET /file HTTP/1.0\r\n\r\n"
            stream.send_frame(2, spdy.data_head(4 * request + 3, len(asked)) + asked)
            end = 4 * request + (1 if port == "9" else 3)
            for frame in spdy_frames(stream, reader):
                if isinstance(frame, spdy.Data):
                    output[frame.stream] += frame.data
                if isinstance(frame, spdy.StreamFinished | spdy.Reset) and frame.stream == end:
                    break  # containerd 2 resets the error stream after its message
    assert b"refused" in output[1] and output[3] == b""
    assert len(output[7]) > 300_000 and output[5] == b""


def spdy_frames(stream: WebSocket, reader: spdy.SpdyFrameReader) -> Iterator[spdy.Frame]:
    for opcode, payload in stream.raw_frames():
        if opcode == 2:
            yield from reader.feed(payload)


def test_they_are_counted(api: NodeApi) -> None:
    with run(api, "true") as stream:
        stream.all()
    _, text = api.ask("/metrics")
    counts = dict(re.findall(r'kubelet_websocket_streaming_requests_total\{subresource="(\w+)"\} (\d+)', text))
    assert set(counts) == {"exec", "attach", "portforward"}


def resident(agent: Agent) -> int:
    assert agent.process is not None
    return int(Path(f"/proc/{agent.process.pid}/statm").read_text().split()[1]) * 4096
