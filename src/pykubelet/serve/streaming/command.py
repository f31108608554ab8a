"""exec and attach: translates between the channels of `v5.channel.k8s.io` and the runtime's SPDY streams. Pure.

Rules:
- A message begins with its channel: 0 stdin, 1 stdout, 2 stderr, 3 the result, 4 the terminal's size. 255 closes the
  channel in its next byte: the stream is half-closed, and the command reads the end of its input.
- Each channel is a SPDY stream with its name in the header `streamtype`. All streams are opened at once.
- Data for a channel that was not requested, or that has ended, is dropped.
- The command has ended when the result, stdout and stderr have. The result is the runtime's; without one it is a success.
Source: KEP-4006; the Kubernetes documentation of `v4.channel.k8s.io`.
"""

from __future__ import annotations

from collections.abc import Iterator

from pykubelet.base.api.codec import encode
from pykubelet.net.websocket import frames, spdy
from pykubelet.serve.streaming.bridge import Step

PROTOCOL = "v5.channel.k8s.io"
MAX_RESULT = 64 * 1024
STDIN, STDOUT, STDERR, RESULT, RESIZE, END = 0, 1, 2, 3, 4, 255
_NAMES = {RESULT: "error", STDIN: "stdin", STDOUT: "stdout", STDERR: "stderr", RESIZE: "resize"}
_SUCCESS = {"metadata": {}, "status": "Success"}


class RemoteCommand:
    """One exec or attach, with the streams that are requested from the runtime."""

    protocol = PROTOCOL
    runtime_protocol = "v4.channel.k8s.io"

    def __init__(self, *, stdin: bool, stdout: bool, stderr: bool, tty: bool) -> None:
        asked = {RESULT: True, STDIN: stdin, STDOUT: stdout, STDERR: stderr, RESIZE: tty}
        channels = [channel for channel in _NAMES if asked[channel]]
        self._channels = {2 * place + 1: channel for place, channel in enumerate(channels)}
        streams = {channel: stream for stream, channel in self._channels.items()}
        self._unanswered = set(self._channels)
        self._inputs = {channel: streams[channel] for channel in (STDIN, RESIZE) if channel in streams}
        self._outputs = {streams[channel] for channel in (RESULT, STDOUT, STDERR) if channel in streams}
        self._from_client = frames.WebSocketReader()
        self._from_runtime = spdy.SpdyFrameReader()
        self._channel: int | None = None
        self._result = bytearray()
        self._error = ""
        self._close_frame = b""

    @property
    def is_open(self) -> bool:
        """Whether the runtime has accepted all streams."""
        return not self._unanswered

    def start(self) -> tuple[bytes, bytes]:
        """An empty message of the first output channel for the client, and the frames that open all streams."""
        opener = spdy.StreamOpener()
        opened = [opener.open(stream, {"streamtype": _NAMES[channel]}) for stream, channel in self._channels.items()]
        first = min(self._channels[stream] for stream in self._outputs)
        return frames.head(frames.BINARY, 1) + bytes((first,)), b"".join(opened)

    def from_client(self, data: bytes) -> Step:
        """Translate WebSocket frames of the client to SPDY frames for the runtime."""
        received = self._from_client.feed(data)
        onward: list[bytes] = []
        for piece in received.pieces:
            content = piece.data
            if piece.first:
                self._channel = None
            if self._channel is None:
                if not content:
                    continue
                self._channel, content = content[0], content[1:]
            if self._channel == END:
                onward += self._end_channels(content)
            elif content and (stream := self._inputs.get(self._channel)) is not None:
                onward += (spdy.data_head(stream, len(content)), content)
        self._close_frame = self._close_frame or received.close_frame
        return Step(onward, received.pong, bool(self._close_frame))

    def _end_channels(self, names: bytes) -> Iterator[bytes]:
        for channel in names[:1]:
            stream = self._inputs.pop(channel, None)
            if stream is not None:
                yield spdy.data_head(stream, 0, last=True)

    def from_runtime(self, data: bytes) -> Step:
        """Translate SPDY frames of the runtime to WebSocket frames for the client."""
        onward: list[bytes] = []
        back = b""
        for frame in self._from_runtime.feed(data):
            match frame:
                case spdy.Data():
                    onward += self._take_input(frame)
                case spdy.Replied():
                    self._unanswered.discard(frame.stream)
                case spdy.StreamFinished():
                    self._outputs.discard(frame.stream)
                case spdy.Reset():
                    self._forget(frame.stream)
                case spdy.Ping():
                    if frame.number % 2 == 0:
                        back = spdy.pong(frame.number)
                case spdy.Broken():
                    self._error = f"the runtime does not speak SPDY/3.1: {frame.reason}"
        return Step(onward, back, not self._outputs or bool(self._error))

    def _take_input(self, frame: spdy.Data) -> tuple[bytes, ...]:
        """The result for the client."""
        if frame.stream not in self._outputs:
            return ()
        channel = self._channels[frame.stream]
        if channel != RESULT:
            return frames.head(frames.BINARY, len(frame.data) + 1) + bytes((channel,)), frame.data
        self._result += frame.data
        if len(self._result) > MAX_RESULT:
            self._result.clear()
            self._error = "the runtime's result is too long"
        return ()

    def _forget(self, stream: int) -> None:
        channel = self._channels.get(stream)
        if channel is None:
            return
        if stream in self._unanswered:
            self._error = f"the runtime refuses the stream {_NAMES[channel]}"
        elif channel == RESULT and stream in self._outputs and not self._result:
            self._error = "the runtime ends without a result"
        self._outputs.discard(stream)
        self._inputs.pop(channel, None)

    def close_message(self, error: str) -> bytes:
        """The result and the Close frame; only the Close frame if the client has sent one."""
        if self._close_frame:
            return self._close_frame
        has_result = not any(self._channels[stream] == RESULT for stream in self._outputs)
        error = self._error or ("" if has_result else error)
        result = bytes(self._result) or encode(_failure(error) if error else _SUCCESS)
        message = frames.head(frames.BINARY, len(result) + 1) + bytes((RESULT,)) + result
        return message + frames.close_frame(frames.NORMAL)


def _failure(error: str) -> dict[str, object]:
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"Internal error occurred: {error}",
        "reason": "InternalError",
        "details": {"causes": [{"message": error}]},
        "code": 500,
    }
