"""An API server that proves who it is and wants a token, both of which a test may change."""

from __future__ import annotations

import ssl
from pathlib import Path

from support.api_server import FakeApiServer
from support.pki import Authority


class Secured:
    """An API server with TLS and a token; `trusted` and `token` are the files that the agent's kubeconfig names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.trusted, self.token = folder / "ca.pem", folder / "token"
        self.server = FakeApiServer(tls=self.tls)
        first = self.authority("first")
        self.prove(first)
        self.trust(first)
        self.give_token("one")
        self.server.token = "one"

    def authority(self, name: str) -> Authority:
        return Authority(self._folder / name, name)

    def prove(self, authority: Authority) -> None:
        """With another certificate, for connections that are made from now on."""
        signed = authority.sign("server", "/CN=server")
        self.tls.load_cert_chain(signed.cert, signed.key)

    def trust(self, authority: Authority) -> None:
        self._replace(self.trusted, authority.cert.read_text())

    def give_token(self, token: str) -> None:
        self._replace(self.token, token)

    def _replace(self, path: Path, text: str) -> None:
        part = path.with_suffix(".part")
        part.write_text(text)
        part.replace(path)
