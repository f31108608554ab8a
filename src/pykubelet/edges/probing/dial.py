"""TCP connections to containers as bare sockets, because a single exchange needs no asyncio transport.

Owns: connecting and closing. IP addresses need no resolver. Names are resolved in separate threads, so that a name server
that does not answer delays nothing else.

The sockets are closed without SO_LINGER. The reference asks the kernel to linger for one second, so that `close` waits until
the peer has acknowledged. Here, a pod that drops the packet would block the event loop, and with it all other probes, for
that second. For the peer there is no difference.
"""

from __future__ import annotations

import errno
import itertools
import os
import socket
import ssl
import struct
from functools import cache, lru_cache
from math import inf

from pykubelet.base.kit.flight import Done, Failed, SingleFlight, Uncertain
from pykubelet.base.kit.readiness import until, wait_ready
from pykubelet.edges.host.fs.errors import reason_of
from pykubelet.net.http.client_tls import UnverifiedTls

RESOLVER_DEADLINE_S = 30.0
#: No name of the DNS is longer (RFC 1035).
MAX_HOST = 255
_ABORT = struct.pack("ii", 1, 0)
_flight = SingleFlight("resolve", workers=4)
_numbers = itertools.count(1)


class DialError(Exception):
    """No connection. The message is like the reference's: `dial tcp 10.0.0.1:80: connect: connection refused`."""


def join_host_port(host: str, port: int) -> str:
    """Join host and port: `10.0.0.1:80` or `[fd00::1]:80`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def literal_family(host: str) -> socket.AddressFamily | None:
    """The family of an IP address; None for a name."""
    return _known_family(host) if len(host) <= MAX_HOST else None


@lru_cache(maxsize=4096)  # and not of hosts as long as a pod may write them
def _known_family(host: str) -> socket.AddressFamily | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.inet_pton(family, host.partition("%")[0])
    except OSError:
        return None
    return family


async def dial(host: str, port: int, deadline: float = inf) -> socket.socket:
    """Connect, and return a non-blocking socket. Raises DialError, and Overdue at the `deadline` (event loop time)."""
    family = literal_family(host)
    if family is not None and "%" not in host:
        return await _connect(family, (host, port), (host, port), deadline)
    problem = f"dial tcp: lookup {host}: no such host"
    async with until(deadline):
        found = await _resolve(host, port)
    for family, address in found:
        try:
            return await _connect(family, address, (str(address[0]), port), deadline)
        except DialError as error:
            problem = str(error)
    raise DialError(problem)


async def _connect(
    family: socket.AddressFamily, address: tuple[str, int], shown: tuple[str, int], deadline: float
) -> socket.socket:
    """Connect to one address. `shown`: host and port for error messages."""
    try:
        connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    except OSError as error:
        raise _dial_error(shown, "socket", error) from error
    try:
        code = connection.connect_ex(address)
        if code == errno.EINPROGRESS:
            code = connection.connect_ex(address)  # a pod on this machine has answered by now
        while code == errno.EALREADY:
            await wait_ready(connection.fileno(), writable=True, deadline=deadline)
            code = connection.connect_ex(address)
        if code not in (0, errno.EISCONN):
            raise OSError(code, os.strerror(code))
    except OSError as error:
        connection.close()
        raise _dial_error(shown, "connect", error) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _dial_error(shown: tuple[str, int], call: str, error: OSError) -> DialError:
    reason = str(error) if error.errno is None else reason_of(error.errno)
    return DialError(f"dial tcp {join_host_port(*shown)}: {call}: {reason}")


async def _resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
    def look_up() -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [(entry[0], entry[4]) for entry in found]  # type: ignore[misc]

    # Each look-up has its own key, so that two probes of one name do not wait for each other.
    outcome = await _flight.run(f"{host}#{next(_numbers)}", look_up, RESOLVER_DEADLINE_S)
    match outcome:
        case Done():
            return outcome.value
        case Failed():
            raise DialError(f"dial tcp: lookup {host}: no such host") from outcome.error
        case Uncertain():
            raise DialError(f"dial tcp: lookup {host}: i/o timeout")


@cache
def unverified_tls(*protocols: str) -> ssl.SSLContext:
    """Settings of TLS with any certificate, because the server is the probed container. `protocols`: those offered by ALPN."""
    settings = UnverifiedTls()
    if protocols:
        settings.set_alpn_protocols(protocols)
    return settings


def abort(connection: socket.socket) -> None:
    """Close with RST. The peer did not answer, so the kernel should not keep state that waits for it."""
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
    except OSError:
        pass  # the connection has ended already
    connection.close()
