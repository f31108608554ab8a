"""exec and attach over SPDY: each stream of the process is a stream of the connection, with its name in the header `streamtype`. Pure.

Rules:
- The process starts when the client has opened all streams that were requested, and a terminal's sizes since version 3.
- A stream that was not requested is accepted, its output ends at once and its input is dropped, as other runtimes do it. One with an
  unknown name, or with the name of another one, is refused.
- The end of a process is the end of stdout and stderr, then the result, then GOAWAY.
Source: Kubernetes' `remotecommand` protocols `v4.channel.k8s.io` to `channel.k8s.io`.
"""

from __future__ import annotations

from pykubelet.net.websocket import spdy
from pykubelet.net.websocket.spdy_server import CANCEL, REFUSED, ServedFrameReader, StreamReplier, go_away, reset
from pykubelet_cri_docker.streaming.backend import StreamSet
from pykubelet_cri_docker.streaming.channels import Received, SizeReader, TerminalSize
from pykubelet_cri_docker.streaming.status import StreamResult

V4, V3, V2, V1 = "v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"
PROTOCOLS = (V4, V3, V2, V1)
STREAM_TYPE = "streamtype"
_ERROR, _STDIN, _STDOUT, _STDERR, _RESIZE = _NAMES = ("error", "stdin", "stdout", "stderr", "resize")
_INPUTS, _OUTPUTS = (_STDIN, _RESIZE), (_STDOUT, _STDERR)


class SpdyChannels:
    """One exec or attach over SPDY. `protocol`: one of PROTOCOLS."""

    def __init__(self, wanted: StreamSet, protocol: str) -> None:
        self._protocol = protocol
        asked = {_ERROR: True, _STDIN: wanted.stdin, _STDOUT: wanted.stdout, _STDERR: wanted.stderr}
        asked[_RESIZE] = wanted.tty and protocol in (V4, V3)
        self._wanted = {name for name in _NAMES if asked[name]}
        self._names: dict[int, str] = {}
        #: The streams that are open in the direction of the client, and in that of the process.
        self._outward: dict[str, int] = {}
        self._inward: dict[str, int] = {}
        self._reader = ServedFrameReader()
        self._replier = StreamReplier()
        self._sizes = SizeReader()

    @property
    def is_open(self) -> bool:
        """Whether the client has opened all streams that were requested."""
        return self._wanted <= set(self._names.values())

    def start(self) -> bytes:
        """Nothing: the client begins."""
        return b""

    def feed(self, data: bytes) -> Received:
        """Translate SPDY frames of the client."""
        stdin: list[bytes] = []
        answers: list[bytes] = []
        had_input = _STDIN in self._inward
        size: TerminalSize | None = None
        is_over = False
        for frame in self._reader.feed(data):
            match frame:
                case spdy.Data():
                    name = self._names.get(frame.stream)
                    if name == _STDIN and _STDIN in self._inward:
                        stdin.append(frame.data)
                    elif name == _RESIZE:
                        size = self._sizes.feed(frame.data) or size
                case spdy.Opened():
                    answers.append(self._accept(frame))
                    had_input = had_input or _STDIN in self._inward
                case spdy.StreamFinished():
                    self._inward.pop(self._names.get(frame.stream, ""), None)
                case spdy.Reset():
                    name = self._names.get(frame.stream, "")
                    self._inward.pop(name, None)
                    self._outward.pop(name, None)
                case spdy.Ping() if frame.number % 2:
                    answers.append(spdy.pong(frame.number))
                case spdy.GoneAway() | spdy.Broken():
                    is_over = True
        return Received(stdin, had_input and _STDIN not in self._inward, size, b"".join(answers), is_over)

    def _accept(self, opened: spdy.Opened) -> bytes:
        """The answer to a new stream."""
        name, stream = opened.headers.get(STREAM_TYPE, ""), opened.stream
        if name not in _NAMES or name in self._names.values():
            return reset(stream, REFUSED)
        self._names[stream] = name
        answer = self._replier.accept(stream)
        if name not in self._wanted:
            return answer + (spdy.data_head(stream, 0, last=True) if name in _OUTPUTS else b"")
        if name in _INPUTS:
            self._inward[name] = stream
        else:
            self._outward[name] = stream
        return answer

    def output(self, data: bytes, *, is_stderr: bool) -> bytes:
        """The frame with some output."""
        stream = self._outward.get(_STDERR if is_stderr else _STDOUT)
        return spdy.data_head(stream, len(data)) + data if stream is not None and data else b""

    def finish(self, status: StreamResult) -> bytes:
        """The end of the output, the result, and the end of the connection."""
        frames = [spdy.data_head(self._outward[name], 0, last=True) for name in _OUTPUTS if name in self._outward]
        if (stream := self._outward.get(_ERROR)) is not None:
            result = status.encoded(as_json=self._protocol == V4)
            frames.append(spdy.data_head(stream, len(result), last=True) + result)
        frames += [reset(stream, CANCEL) for stream in self._inward.values()]
        frames.append(go_away(max(self._names, default=0)))
        return b"".join(frames)
