"""Messages on numbered channels over a WebSocket, and the bytes of a tunnel. Pure.

A message begins with its channel: a byte, or with base64 a digit before encoded bytes. Of a message that arrives in pieces, each piece is
used at once. In version 5, a message of the channel END closes the channel in its next byte.
Source: Kubernetes' `channel.k8s.io` protocols, KEP-4006.
"""

from __future__ import annotations

import base64
import binascii

from pykubelet.base.kit.values import Value, field
from pykubelet.net.websocket import frames

V5, V4, V1 = "v5.channel.k8s.io", "v4.channel.k8s.io", "channel.k8s.io"
BASE64_V4, BASE64_V1 = "v4.base64.channel.k8s.io", "base64.channel.k8s.io"
END = 255
_GROUP = 4


class ReceivedMessages(Value):
    """Pieces of messages by channel, the channels that the client has ended, and what the protocol answers.

    `close_frame`: the last bytes to send, because the client has closed the connection or has violated the protocol.
    """

    pieces: list[tuple[int, bytes]] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    answer: bytes = b""
    close_frame: bytes = b""


class ChannelReader:
    """Decodes the messages of a client. `protocol`: one of the above; "" is that of `channel.k8s.io`."""

    def __init__(self, protocol: str) -> None:
        self._is_base64 = protocol in (BASE64_V4, BASE64_V1)
        self._has_end = protocol == V5
        self._frames = frames.WebSocketReader()
        self._channel: int | None = None
        self._encoded = b""

    def feed(self, data: bytes) -> ReceivedMessages:
        """Decode the next bytes, which may be split anywhere."""
        received = self._frames.feed(data)
        pieces: list[tuple[int, bytes]] = []
        ended: list[int] = []
        for piece in received.pieces:
            content = piece.data
            if piece.first:
                self._channel, self._encoded = None, b""
            if self._channel is None:
                if not content:
                    continue
                self._channel, content = content[0] - (ord("0") if self._is_base64 else 0), content[1:]
            if self._has_end and self._channel == END:
                ended += content[:1]
                continue
            try:
                content = self._decode(content)
            except binascii.Error:
                return ReceivedMessages(pieces, ended, b"", frames.close_frame(frames.POLICY, "invalid base64"))
            if content:
                pieces.append((self._channel, content))
        return ReceivedMessages(pieces, ended, received.pong, received.close_frame)

    def _decode(self, content: bytes) -> bytes:
        """The bytes of whole groups; the rest waits for the next piece."""
        if not self._is_base64:
            return content
        content = self._encoded + content
        whole = len(content) - len(content) % _GROUP
        self._encoded = content[whole:]
        return base64.b64decode(content[:whole], validate=True)


class ChannelWriter:
    """Encodes the messages of the server."""

    def __init__(self, protocol: str) -> None:
        self._is_base64 = protocol in (BASE64_V4, BASE64_V1)

    def message(self, channel: int, data: bytes) -> bytes:
        """The frame with a message."""
        if self._is_base64:
            content = b"%d" % channel + base64.b64encode(data)
            return frames.head(frames.TEXT, len(content)) + content
        return frames.head(frames.BINARY, len(data) + 1) + bytes((channel,)) + data
