"""TLS bootstrap: the access of a node that has no certificate yet.

Owns: the choice between `--kubeconfig` and `--bootstrap-kubeconfig` at start, the client of a node without a certificate,
and the kubeconfig that is written for other programs. That kubeconfig refers to the store's current file, so it stays valid
when certificates are renewed.

Source: the Kubernetes documentation "TLS bootstrapping".
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Any, ClassVar

from pykubelet.base.kit.cells import Cell
from pykubelet.base.kit.flight import Done, SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import RedactedValue, Value, replace
from pykubelet.base.model.credentials import Credentials
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import make_dirs, read_bytes, write_atomic
from pykubelet.edges.kubeapi.client import ApiClient
from pykubelet.edges.kubeapi.kubeconfig import ClusterAccess, KubeconfigError, Pem, load_access

log = Log("identity")
_LIMIT = 1 << 20
_DISK_DEADLINE_S, _RETRY_S = 10.0, 10.0


class ApiAccess(Value):
    """How to reach the API server as the node, and with the bootstrap kubeconfig.

    `bootstrap`: None if there is no usable bootstrap kubeconfig. `writes`: the kubeconfig must still be written.
    """

    access: ClusterAccess
    bootstrap: ClusterAccess | None = None
    writes: bool = False


class FirstPair(RedactedValue):
    """A certificate and its key in PEM, with which the node reaches the API server while its store is empty.

    `embedded`: the kubeconfig contains them, and does not refer to files.
    """

    hidden: ClassVar = ("key",)
    certificate: bytes = b""
    key: bytes = b""
    embedded: bool = False

    @property
    def pem(self) -> bytes:
        """Both, as the store has them."""
        return b"\n".join(part.strip() for part in (self.certificate, self.key) if part)


class BootstrapClient:
    """The client of the bootstrap kubeconfig at `path`. The file is read for each use, because its token may be replaced.

    `access`: the content at start. If the file is gone or cannot be read, the last access stays in use.
    """

    def __init__(self, path: str, access: ClusterAccess, connect: Callable[[ClusterAccess], ApiClient]) -> None:
        self._path = path
        self._access = access
        self._connect = connect
        self._client = connect(access)

    def read(self) -> ClusterAccess:
        """Read the current access. Blocks."""
        try:
            return load_access(self._path)
        except KubeconfigError:
            return self._access

    async def client(self, access: ClusterAccess) -> ApiClient:
        """A client for the access that `read` returned. If the access has changed, the previous client is closed."""
        if access != self._access:
            await self._client.close()
            self._access, self._client = access, self._connect(access)
        return self._client

    async def close(self) -> None:
        """Close the connections of the client."""
        await self._client.close()


def choose_access(kubeconfig: str, bootstrap: str, current: str) -> ApiAccess:
    """The access from `--kubeconfig`, else from `--bootstrap-kubeconfig`. `current`: the store's current file.

    Raises KubeconfigError if neither can be used.
    """
    try:
        access = load_access(kubeconfig)
    except KubeconfigError:
        if not bootstrap:
            raise
        bootstrap_client = load_access(bootstrap)
        return ApiAccess(_as_node(bootstrap_client, kubeconfig, current), bootstrap_client, writes=True)
    if not bootstrap:
        return ApiAccess(access)
    try:
        return ApiAccess(access, load_access(bootstrap))
    except KubeconfigError:
        return ApiAccess(access)  # the bootstrap kubeconfig is often removed after the first start


def _as_node(bootstrap_client: ClusterAccess, kubeconfig: str, current: str) -> ClusterAccess:
    """The access to the same server with the certificate that will be issued."""
    return replace(
        bootstrap_client,
        client_cert=Pem(current),
        client_key=Pem(current),
        token="",
        token_file="",
        basic=None,
        plugin=None,
        headers=(),
        origin=kubeconfig,
    )


def first_pair(access: ClusterAccess) -> FirstPair:
    """The certificate and key in the kubeconfig or in the files that it names; empty if they cannot be read."""
    pems = access.client_cert, access.client_key
    try:
        certificate, key = (pem.data or (read_bytes(pem.file, _LIMIT) if pem.file else b"") for pem in pems)
    except HostError:
        return FirstPair()
    return FirstPair(certificate, key, all(pem.data for pem in pems))


async def write_when_issued(
    path: str, access: ClusterAccess, credentials: Cell[Credentials], flight: SingleFlight
) -> None:
    """Write the kubeconfig once there is a certificate. Other programs wait for this file as the end of the bootstrap."""
    await credentials.wait_for(lambda now: _expiry(now) is not None)
    while True:
        outcome = await flight.run(f"kubeconfig:{path}", lambda: write_kubeconfig(path, access), _DISK_DEADLINE_S)
        if isinstance(outcome, Done):
            log.info("the kubeconfig is written", file=path)
            return
        log.warning("the kubeconfig cannot be written", file=path, error=getattr(outcome, "error", "no answer"))
        await asyncio.sleep(_RETRY_S)


def _expiry(credentials: Credentials) -> float | None:
    state = credentials.certificates.get("client")
    return state.expires_at if state is not None else None


def write_kubeconfig(path: str, access: ClusterAccess) -> None:
    """Write a kubeconfig for an access with certificate and key files. Raises HostError."""
    import yaml

    make_dirs(path.rpartition("/")[0] or "/")
    write_atomic(path, yaml.safe_dump(render_kubeconfig(access), sort_keys=False).encode(), 0o600, durable=True)


def render_kubeconfig(access: ClusterAccess) -> dict[str, Any]:
    """The document of the kubeconfig, with the kubelet's names of cluster, user and context. Pure."""
    cluster: dict[str, Any] = {"server": access.server}
    if access.ca.data:
        cluster["certificate-authority-data"] = base64.b64encode(access.ca.data).decode()
    elif access.ca.file:
        cluster["certificate-authority"] = access.ca.file
    if access.insecure:
        cluster["insecure-skip-tls-verify"] = True
    if access.server_name:
        cluster["tls-server-name"] = access.server_name
    if access.proxy:
        cluster["proxy-url"] = access.proxy
    user = {"client-certificate": access.client_cert.file, "client-key": access.client_key.file}
    context = {"cluster": "default-cluster", "namespace": "default", "user": "default-auth"}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "default-cluster", "cluster": cluster}],
        "users": [{"name": "default-auth", "user": user}],
        "contexts": [{"name": "default-context", "context": context}],
        "current-context": "default-context",
    }
