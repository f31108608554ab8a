"""exec and attach over a WebSocket: channel 0 is stdin, 1 stdout, 2 stderr, 3 the result, 4 the terminal's size. Pure.

Only version 5 can end stdin; in earlier ones it ends with the connection. Messages for a channel that was not requested are dropped.
Source: Kubernetes' `channel.k8s.io` protocols, KEP-4006.
"""

from __future__ import annotations

from pykubelet.net.websocket import frames
from pykubelet_cri_docker.streaming.backend import StreamSet
from pykubelet_cri_docker.streaming.channels import Received, SizeReader, TerminalSize
from pykubelet_cri_docker.streaming.status import StreamResult
from pykubelet_cri_docker.streaming.websocket_messages import (
    BASE64_V1,
    BASE64_V4,
    V1,
    V4,
    V5,
    ChannelReader,
    ChannelWriter,
)

PROTOCOLS = (V5, V4, BASE64_V4, V1, BASE64_V1, "")
STDIN, STDOUT, STDERR, RESULT, RESIZE = range(5)


class WebSocketChannels:
    """One exec or attach over a WebSocket. `protocol`: one of PROTOCOLS."""

    is_open = True

    def __init__(self, wanted: StreamSet, protocol: str) -> None:
        self._reads_stdin = wanted.stdin
        self._outputs = {STDOUT: wanted.stdout, STDERR: wanted.stderr, RESULT: True}
        self._as_json = protocol in (V5, V4, BASE64_V4)
        self._reader = ChannelReader(protocol)
        self._writer = ChannelWriter(protocol)
        self._sizes = SizeReader()
        self._close_frame = b""

    def start(self) -> bytes:
        """An empty message of the first channel with output, which clients take as the beginning."""
        return self._writer.message(next(channel for channel, is_open in self._outputs.items() if is_open), b"")

    def feed(self, data: bytes) -> Received:
        """Translate WebSocket frames of the client."""
        received = self._reader.feed(data)
        stdin: list[bytes] = []
        size: TerminalSize | None = None
        for channel, content in received.pieces:
            if channel == STDIN and self._reads_stdin:
                stdin.append(content)
            elif channel == RESIZE:
                size = self._sizes.feed(content) or size
        has_ended = self._reads_stdin and STDIN in received.ended
        if has_ended:
            self._reads_stdin = False
        answer = received.answer
        if received.close_frame and not self._close_frame:
            answer += received.close_frame
            self._close_frame = received.close_frame
        return Received(stdin, has_ended, size, answer, bool(self._close_frame))

    def output(self, data: bytes, *, is_stderr: bool) -> bytes:
        """The message with some output."""
        channel = STDERR if is_stderr else STDOUT
        return self._writer.message(channel, data) if self._outputs[channel] and data else b""

    def finish(self, status: StreamResult) -> bytes:
        """The result and the Close frame."""
        if self._close_frame:
            return b""
        self._close_frame = frames.close_frame(frames.NORMAL)
        result = status.encoded(as_json=self._as_json)
        return (self._writer.message(RESULT, result) if result else b"") + self._close_frame
