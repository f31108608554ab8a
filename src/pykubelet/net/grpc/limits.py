"""Limits of an HTTP/2 client: the memory and event loop time that one server may use.

Each user of `Channel` defines its own.
"""

from __future__ import annotations

from pykubelet.base.kit.values import Value

_NO_LIMIT = 1 << 62
#: A server in Go closes connections on which pings come more often than every five minutes.
SILENCE_S = 330.0


class Http2Limits(Value):
    """Limits of one HTTP/2 connection. Exceeding one ends the connection with ENHANCE_YOUR_CALM.

    `header_list`: bytes of one header block, both as it arrives and decoded (32 more for each field, as RFC 9113 counts
    SETTINGS_MAX_HEADER_LIST_SIZE). `all_headers`: bytes of all header blocks as they arrive. `message`: bytes of one
    gRPC message. `stream_window`, `connection_window`: bytes of data that the server may send before they are read.
    `steps`: reads from the socket and frames, together. `empty_frames`: frames in a row that bring neither headers nor
    data. `answers`: SETTINGS and PING frames that are answered while the peer does not read the answers. `silence_s`: a peer
    that has sent nothing for this long while calls wait gets a PING. `ping_s`: if it sends nothing for this long after the
    PING, the connection counts as lost.
    """

    header_list: int
    message: int
    stream_window: int
    connection_window: int
    all_headers: int = _NO_LIMIT
    steps: int = _NO_LIMIT
    empty_frames: int = 10_000
    answers: int = 1_000
    silence_s: float = SILENCE_S
    ping_s: float = 20.0
