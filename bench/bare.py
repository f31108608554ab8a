"""`python -m bench.bare CERTIFICATE KEY CLIENT_CA`: a server that answers every request with the bytes from stdin, over TLS.

The agent cannot be faster: this is the same event loop and the same TLS in a process, with nothing to parse, to decide or to read. It
prints its port, and runs until it is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import uvloop
from testbed.certificates import issue

from bench import CHECKOUT


@contextlib.contextmanager
def bare_server(clients: Path, body: bytes) -> Iterator[int]:
    """The port of a server that answers with `body`. `clients`: the folder of the authority of its clients, which signs for it too."""
    own = issue(clients, "bare", "bare", addresses=("IP:127.0.0.1",))
    files = (own.with_suffix(".crt"), own.with_suffix(".key"), clients / "ca.crt")
    argv = [sys.executable, "-m", "bench.bare", *map(str, files)]
    with subprocess.Popen(argv, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            process.stdin.close()
            yield int(process.stdout.readline())
        finally:
            process.kill()


class _Same(asyncio.Protocol):
    """One connection. A request is small, and comes in one piece."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:  # noqa: ARG002
        self._transport.write(self._answer)


async def _serve(certificate: str, key: str, client_ca: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(client_ca)
    answer = sys.stdin.buffer.read()
    server = await asyncio.get_running_loop().create_server(lambda: _Same(answer), "127.0.0.1", 0, ssl=context)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(*sys.argv[1:]))
