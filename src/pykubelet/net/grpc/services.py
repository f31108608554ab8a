"""What a gRPC server serves, and within which limits."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

from pykubelet.base.kit.values import Value, field

#: Both take the request message, and return the answer or the answers. They raise RpcError for a status other than OK.
Method = Callable[[bytes], Awaitable[bytes]]
StreamMethod = Callable[[bytes], AsyncGenerator[bytes, None]]
MAX_CONNECTIONS = 16
MAX_CALLS = 16
MAX_REQUEST_BYTES = 64 << 10
#: The most seconds that a connection stays without a call, or with an answer that the client does not read.
IDLE_S = 300.0


class Services(Value):
    """Methods by their paths, `/package.Service/Method`. `streams`: those that answer with several messages."""

    methods: Mapping[str, Method]
    streams: Mapping[str, StreamMethod] = field(default_factory=dict)

    def refusal(self, path: str) -> str:
        """Why a path that is not served is refused, in the words of grpc-go: clients read them to learn what a server can do."""
        service, _, method = path.removeprefix("/").rpartition("/")
        is_known = any(known.startswith(f"/{service}/") for known in (*self.methods, *self.streams))
        return f"unknown method {method} for service {service}" if is_known else f"unknown service {service}"


class RpcLimits(Value):
    """`connections`: of all clients. `idle_s`: the most seconds that a connection stays without a call, or with an answer that the
    client does not read. `calls`: in progress at a time on one connection. `request`: bytes of a message. `stalled_s`: a stream whose
    client does not take a message in so many seconds is ended with RESOURCE_EXHAUSTED; None: it stays as long as its connection.
    """

    connections: int = MAX_CONNECTIONS
    idle_s: float = IDLE_S
    calls: int = MAX_CALLS
    request: int = MAX_REQUEST_BYTES
    stalled_s: float | None = None
