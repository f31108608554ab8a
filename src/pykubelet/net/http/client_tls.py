"""The TLS context of clients, which encodes names of servers without the tables of the codec `idna`: half a MiB of memory."""

from __future__ import annotations

import ssl
from typing import Any


class ClientTls(ssl.SSLContext):
    """A context as `ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)`: it verifies the server and its name."""

    def __new__(cls) -> ClientTls:
        """Create one without authorities yet."""
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: Any = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """As the base class. Event loops only take text as a name, which it encodes; bytes stay as they are."""
        if isinstance(server_hostname, str) and server_hostname.isascii():
            server_hostname = server_hostname.encode()
        return super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
