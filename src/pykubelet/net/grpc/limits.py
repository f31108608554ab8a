"""How much one server may make a client hold in memory, and do on the event loop.

Two profiles: the container runtime is trusted and sends much; the server of a gRPC probe is the container itself.
"""

from __future__ import annotations

from pykubelet.base.kit.values import Value

_NO_LIMIT = 1 << 62
#: A server in Go closes connections on which pings come more often than every five minutes.
SILENCE_S = 330.0


class Limits(Value):
    """Limits of one HTTP/2 connection. What exceeds one ends the connection with ENHANCE_YOUR_CALM.

    `header_list`: bytes of one header block, both as it arrives and decoded (32 more for each field, as RFC 9113 counts
    SETTINGS_MAX_HEADER_LIST_SIZE). `all_headers`: bytes of all header blocks as they arrive. `message`: bytes of one
    gRPC message. `stream_window`, `connection_window`: bytes of data that are sent before we have read them.
    `steps`: reads from the socket and frames, together. `empty_frames`: frames in a row that bring neither headers nor
    data. `answers`: SETTINGS and PING frames that are answered while the peer does not read what it is sent.
    `silence_s`, `ping_s`: a peer that has sent nothing for so long while calls wait is sent a PING; one that sends nothing
    for so long after it is lost.
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


#: 16 MiB is what the kubelet accepts from a runtime.
RUNTIME = Limits(header_list=256 << 10, message=16 << 20, stream_window=17 << 20, connection_window=64 << 20)
#: An answer of `grpc.health.v1.Health/Check` is two bytes, in about five frames. Together these limits keep what a probe
#: costs below 50 ms of CPU and 1 MiB, whatever its server sends.
PROBE = Limits(
    header_list=8 << 10,
    message=32 << 10,
    stream_window=65535,
    connection_window=65535,
    all_headers=16 << 10,
    steps=500,
    empty_frames=500,
)
