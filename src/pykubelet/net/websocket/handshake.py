"""The WebSocket handshake: the subprotocols that a request offers, and the head of the answer. Pure.

Source: RFC 6455, section 4; KEP-4006.
"""

from __future__ import annotations

import base64
import hashlib

from pykubelet.net.http.server import Request, Response, text
from pykubelet.net.http.wire import render_head

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def offered(request: Request) -> list[str]:
    """The subprotocols that a WebSocket request offers, the preferred one first; none for other requests."""
    if not request.is_upgrade or request.headers["upgrade"].lower() != "websocket":
        return []
    return [word.strip() for word in request.headers.get("sec-websocket-protocol", "").split(",")]


def upgrade_response(request: Request, protocol: str) -> bytes | Response:
    """The head of the answer that accepts `protocol` ("": none was offered), or the answer that refuses the WebSocket."""
    if request.headers.get("sec-websocket-version", "").strip() != "13":
        return Response(400, b"unsupported WebSocket version", headers={"Sec-WebSocket-Version": "13"})
    key = request.headers.get("sec-websocket-key", "").strip()
    if not key:
        return text(400, "a WebSocket request needs a key")
    proof = hashlib.sha1(key.encode("latin-1") + _GUID, usedforsecurity=False).digest()
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Accept": base64.b64encode(proof).decode(),
    }
    if protocol:
        headers["Sec-WebSocket-Protocol"] = protocol
    return render_head(101, headers)
