"""The TLS contexts of clients, which encode names of servers without the tables of the codec `idna`: half a MiB of memory."""

from __future__ import annotations

import ssl
from typing import Any, Self

from pykubelet.net.http.checked_tls import CheckedTls


class ClientTls(ssl.SSLContext):
    """A context as `ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)`: it verifies the server and its name."""

    def __new__(cls) -> Self:
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


class UnverifiedTls(CheckedTls, ClientTls):
    """For servers that are not trusted, such as those in pods: any certificate, and no key exchange that costs much CPU."""

    def __new__(cls) -> Self:
        """Create one that accepts short keys, too, which are the server's own choice."""
        made = super().__new__(cls)
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
        # with DHE, a server of TLS 1.2 would choose a prime number of any size
        made.set_ciphers("DEFAULT:!kDHE:!kDHEPSK:!aDSS@SECLEVEL=0")
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        return made
