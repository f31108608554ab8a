"""A log over WebSocket: each piece is a message, binary or in Base64.

Owns: the subprotocols, the messages, and the end. What the client sends is ignored, except for pings and its Close frame.
Source: RFC 6455. Subprotocols: those that the API server has for streams of one direction.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib

from pykubelet.base.kit.supervise import Supervisor
from pykubelet.net.http.server import Answer, Request, Response, ServedConnection, Takeover, text
from pykubelet.net.websocket.frames import BINARY, NORMAL, TEXT, WebSocketReader, close_frame, head
from pykubelet.net.websocket.handshake import offered, upgrade_response
from pykubelet_local_api.streams.transport import BodyChunks

_BASE64 = "base64.binary.k8s.io"
_PROTOCOLS = ("", "binary.k8s.io", _BASE64)
#: The subprotocol in which browsers send a token. It is not a protocol to speak.
TOKEN_PROTOCOL = "base64url.bearer.authorization.k8s.io."
#: The most bytes of the log in one message. A multiple of three, so that Base64 has no padding in between.
MESSAGE_BYTES = 48 * 1024
_PIECE = 32 * 1024


def log_protocol(request: Request) -> str | Response:
    """The subprotocol for a log, or the answer that refuses those that the client offers."""
    wanted = [name for name in offered(request) if not name.startswith(TOKEN_PROTOCOL)] or [""]
    chosen = next((name for name in wanted if name in _PROTOCOLS), None)
    if chosen is None:
        return text(403, f"requested protocol(s) are not supported: [{' '.join(wanted)[:200]}]")
    return chosen


def serve_log(request: Request, protocol: str, chunks: BodyChunks) -> Answer:
    """Answer with the WebSocket on which the log is sent. Closes `chunks` at its end."""
    accepted = upgrade_response(request, protocol)
    if isinstance(accepted, Response):
        chunks.close()
        return accepted

    async def talk(client: ServedConnection) -> None:
        client.writer.write(accepted + _message(b"", protocol))
        try:
            async with Supervisor("log-socket") as supervisor:
                leaving = supervisor.start_child("log-socket-client", _listen(client))
                sending = supervisor.start_child("log-socket-log", _send(client, chunks, protocol))
                await asyncio.wait((leaving, sending), return_when=asyncio.FIRST_COMPLETED)
                with contextlib.suppress(OSError):  # the client, or the agent, has disconnected
                    await (sending if sending.done() else leaving)
        finally:
            chunks.close()

    return Takeover(talk)


async def _send(client: ServedConnection, chunks: BodyChunks, protocol: str) -> None:
    try:
        async for chunk in chunks:
            for at in range(0, len(chunk), MESSAGE_BYTES):
                client.writer.write(_message(chunk[at : at + MESSAGE_BYTES], protocol))
                await client.writer.drain()
    finally:
        client.writer.write(close_frame(NORMAL))
    await client.writer.drain()


async def _listen(client: ServedConnection) -> None:
    """Read until the client has left or wants to."""
    reader = WebSocketReader()
    while data := await client.reader.read(_PIECE):
        found = reader.feed(data)
        if found.close_frame:
            client.writer.write(found.close_frame)
            return
        if found.pong and not client.writer.transport.get_write_buffer_size():
            client.writer.write(found.pong)


def _message(data: bytes, protocol: str) -> bytes:
    if protocol == _BASE64:
        payload = base64.b64encode(data)
        return head(TEXT, len(payload)) + payload
    return head(BINARY, len(data)) + data
