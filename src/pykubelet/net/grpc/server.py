"""A gRPC server on a unix socket, for plugins, monitoring agents and other programs on the machine.

Owns: the connections, their number, and how long one may stay without a call. If there are too many, the one that had no call
for longest is closed; one with a call in progress, such as a stream, only if all others have one too. Calls have one request, and
one answer or a stream of them. No compression or push. A connection is a `ServerConnection`; its module and `h2` are imported with
the first client, because most nodes have none.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from h2.errors import ErrorCodes

from pykubelet.base.kit.bucket import TokenBucket
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.durations import format_seconds
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.net.grpc.http2 import ConnectionFault
from pykubelet.net.grpc.services import RpcLimits, Services
from pykubelet.net.grpc.status import Code, RpcError

if TYPE_CHECKING:
    from pykubelet.net.grpc.server_connection import ServerConnection

log = Log("rpc")
#: The most seconds that a closed connection may take to send the rest.
CLOSE_S = 1.0
_DEFAULT_LIMITS = RpcLimits()


class CallLimit:
    """Limits calls to `qps` a second and `burst` at once; those beyond are refused, as the reference does."""

    def __init__(self, qps: float, burst: int, clock: Clock) -> None:
        self._bucket = TokenBucket(qps, burst)
        self._clock = clock

    def check(self) -> None:
        """Count a call. Raises RpcError (RESOURCE_EXHAUSTED) if it is beyond the limit."""
        if not self._bucket.take(self._clock.monotonic()):
            raise RpcError(Code.RESOURCE_EXHAUSTED, "rejected by rate limit")


class RpcServer:
    """Serves methods. Pass `serve` to `asyncio.start_unix_server`."""

    def __init__(self, services: Services, limits: RpcLimits = _DEFAULT_LIMITS) -> None:
        self._services = services
        self._limits = limits
        self._clients: set[ServerConnection] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client until either side ends the connection."""
        from pykubelet.net.grpc.server_connection import ServerConnection

        try:
            async with Supervisor("rpc-client") as supervisor:
                client = ServerConnection(self._services, reader, writer, supervisor, self._limits)
                self._add(client)
                try:
                    await client.run()
                except TimeoutError:
                    client.send_goaway(
                        ConnectionFault(ErrorCodes.NO_ERROR, f"no call within {format_seconds(self._limits.idle_s)}")
                    )
                except ConnectionFault as fault:
                    log.debug("a client's connection is closed", error=fault)
                    client.send_goaway(fault)
                finally:
                    self._clients.discard(client)
        except (OSError, asyncio.IncompleteReadError):
            return  # the client is gone
        finally:
            writer.close()
            asyncio.get_running_loop().call_later(CLOSE_S, writer.transport.abort)

    def _add(self, client: ServerConnection) -> None:
        if len(self._clients) >= self._limits.connections:
            oldest = min(self._clients, key=lambda known: (known.is_at_work, known.used_at))
            self._clients.discard(oldest)
            log.debug("a connection is closed to make place for a new one", limit=self._limits.connections)
            oldest.abort()
        self._clients.add(client)
