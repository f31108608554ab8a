"""What the program knows of the files of access without reading a certificate: where they are, and the TLS contexts made of them.

`cryptography`, which reads and makes certificates, takes 12 MiB of memory. So the running program does not load it: `preparing.py` runs
what needs it in a short-lived process.
"""

from __future__ import annotations

import ssl
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pykubelet.base.kit.values import RedactedValue, Value
from pykubelet.net.http.checked_tls import CheckedTls
from pykubelet_local_api.access.files import AccessError, read_file

if TYPE_CHECKING:
    from pykubelet_local_api.access.certificates import Authority

#: The file of the key that signs tokens.
TOKEN_KEY = "sa.key"


class ApiPlace(Value):
    """Where the API is served. `url`: of clients on this machine. `hosts` and `addresses`: further names of the server, such as
    the machine's, and the address of the Service `kubernetes`."""

    folder: Path
    url: str
    node_name: str
    hosts: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()


class AuthorityPem:
    """A certificate authority in PEM. `pem`: its certificate."""

    def __init__(self, pem: bytes, key: bytes) -> None:
        self.pem = pem
        self._key = key

    @cached_property
    def loaded(self) -> Authority:
        """The authority that signs. The first use loads `cryptography`, for the rest of the program's life."""
        from pykubelet_local_api.access.certificates import load_authority

        return load_authority(self.pem, self._key)


class AccessFiles(RedactedValue):
    """The files, once `prepare` has made them. `agent_client`: the certificate with which the API calls the agent; `own_client`: with
    which this program calls the API. `versions`: differ if a certificate that a running server has loaded was renewed."""

    hidden: ClassVar = ("authority",)
    authority: AuthorityPem
    authority_file: Path
    server: tuple[Path, Path]
    agent_client: tuple[Path, Path]
    own_client: tuple[Path, Path]
    admin_kubeconfig: Path
    kubelet_kubeconfig: Path
    versions: tuple[bytes | None, ...] = ()


def files_in(folder: Path) -> AccessFiles:
    """The files in the folder. Blocks. Raises AccessError."""
    server = (folder / "apiserver.crt", folder / "apiserver.key")
    client = (folder / "apiserver-kubelet-client.crt", folder / "apiserver-kubelet-client.key")
    own, pem = own_client(folder), read_file(folder / "ca.crt") or b""
    return AccessFiles(
        AuthorityPem(pem, read_file(folder / "ca.key") or b""),
        folder / "ca.crt",
        server,
        client,
        own,
        folder / "admin.kubeconfig",
        folder / "kubelet.kubeconfig",
        (pem, *(read_file(pair[0]) for pair in (server, client, own))),
    )


def own_client(folder: Path) -> tuple[Path, Path]:
    """The files of the certificate with which this program is a client of the API."""
    return folder / "local-api-client.crt", folder / "local-api-client.key"


def server_context(files: AccessFiles) -> CheckedTls:
    """The TLS context of the server. Clients may show a certificate of the authority. Raises AccessError."""
    context = CheckedTls(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.num_tickets = 0  # Kubernetes' clients reuse connections, not sessions
    context.set_alpn_protocols(["http/1.1"])
    context.verify_mode = ssl.CERT_OPTIONAL
    load_files(context, files.authority.pem, files.server)
    return context


def load_files(context: ssl.SSLContext, authority: bytes, pair: tuple[Path, Path]) -> None:
    """Have new connections of a context use these files. Raises AccessError."""
    try:
        context.load_verify_locations(cadata=authority.decode())
        context.load_cert_chain(*pair)
    except OSError as error:  # ssl.SSLError is one
        raise AccessError(f"cannot use the certificate {pair[0]}: {error.strerror or error}") from error
