"""The files of access: certificate authority, serving and client certificates, kubeconfig files. Blocks.

`prepare` makes what is missing and renews what is due; it is called at the start, once a day, and when the machine's names
or addresses change. Everything but the authority is replaced if it is damaged. An authority that was in use and cannot be
read is refused, because a new one would make every certificate of the old one invalid.
"""

from __future__ import annotations

import ipaddress
import re
import ssl
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ClassVar

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from pykubelet.base.kit.values import RedactedValue, Value, replace
from pykubelet_local_api.access.bootstrap import AGENT_CLIENT
from pykubelet_local_api.access.certificates import (
    Authority,
    KeyPair,
    is_due,
    key_pem,
    load_key,
    load_pair,
    names_in,
    new_authority,
    new_key,
)
from pykubelet_local_api.access.files import AccessError, make_folder, read_file, write_file
from pykubelet_local_api.access.kubeconfig import kubeconfig, parse_kubeconfig
from pykubelet_local_api.access.rbac import MASTERS

#: Names of the API server that clients in pods use, and those on the machine.
HOSTS = (
    "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost",
)  # fmt: skip
LOOPBACK = ("127.0.0.1", "::1")
_HOST = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")


class ApiPlace(Value):
    """Where the API is served. `url`: of clients on this machine. `hosts` and `addresses`: further names of the server, such as
    the machine's, and the address of the Service `kubernetes`."""

    folder: Path
    url: str
    node_name: str
    hosts: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()


class AccessFiles(RedactedValue):
    """What `prepare` has made. `agent_client`: the certificate with which the API calls the agent; `own_client`: with which this
    program calls the API. `versions`: differ if a certificate that a running server has loaded was renewed."""

    hidden: ClassVar = ("authority",)
    authority: Authority
    authority_file: Path
    server: tuple[Path, Path]
    agent_client: tuple[Path, Path]
    own_client: tuple[Path, Path]
    admin_kubeconfig: Path
    kubelet_kubeconfig: Path
    versions: tuple[bytes | None, ...] = ()


def prepare(place: ApiPlace, now: float) -> AccessFiles:
    """Make and renew all files. Raises AccessError."""
    folder = place.folder
    make_folder(folder)
    authority = open_authority(folder, now)
    wanted = server_names(place)
    hosts = [name for name in wanted if not _is_address(name)]
    addresses = [name for name in wanted if _is_address(name)]
    user = f"system:node:{place.node_name}"
    files = AccessFiles(
        authority,
        folder / "ca.crt",
        (folder / "apiserver.crt", folder / "apiserver.key"),
        (folder / "apiserver-kubelet-client.crt", folder / "apiserver-kubelet-client.key"),
        own_client(folder),
        folder / "admin.kubeconfig",
        folder / "kubelet.kubeconfig",
    )

    def is_for_others(certificate: x509.Certificate) -> bool:
        return names_in(certificate) != frozenset(wanted)

    def agent_client() -> KeyPair:
        return authority.client(AGENT_CLIENT, (), now)

    _keep_pair(files.server, authority, lambda: authority.server(hosts, addresses, now), now, is_for_others)
    _keep_pair(files.agent_client, authority, agent_client, now, _has_groups)
    _keep_pair(files.own_client, authority, lambda: authority.client("local-api", (MASTERS,), now), now)
    _keep_kubeconfig(files.admin_kubeconfig, place.url, authority, "admin", (MASTERS,), now)
    _keep_kubeconfig(files.kubelet_kubeconfig, place.url, authority, user, ("system:nodes",), now)
    return replace(
        files,
        versions=(
            authority.pem,
            *(read_file(pair[0]) for pair in (files.server, files.agent_client, files.own_client)),
        ),
    )


def own_client(folder: Path) -> tuple[Path, Path]:
    """The files of the certificate with which this program is a client of the API."""
    return folder / "local-api-client.crt", folder / "local-api-client.key"


def server_names(place: ApiPlace) -> list[str]:
    """All names that the serving certificate is for. What cannot be in a certificate is left out."""
    names = dict.fromkeys((*HOSTS, *LOOPBACK))
    for address in place.addresses:
        if _is_address(address):
            names[str(ipaddress.ip_address(address))] = None
    for host in place.hosts:
        if len(host) <= 253 and _HOST.fullmatch(host.lower()):
            names[host.lower()] = None
    return list(names)


def open_authority(folder: Path, now: float) -> Authority:
    """The certificate authority in the folder; a new one if there is none. Raises AccessError."""
    key_file, certificate_file = folder / "ca.key", folder / "ca.crt"
    key_text, certificate_text = read_file(key_file), read_file(certificate_file)
    advice = (
        f"restore it from a backup, or remove {certificate_file} and {key_file}: a new authority is made then, "
        "and kubeconfig files and certificates of the old one are no longer accepted"
    )
    if certificate_text is None:  # written after the key: nothing was signed yet
        return _write_authority(folder, _key_or_new(key_text), now)
    if key_text is None:
        raise AccessError(f"{key_file} is missing: {advice}")
    try:
        key = load_key(key_text)
    except ValueError as error:
        raise AccessError(f"{key_file} is damaged ({error}): {advice}") from error
    try:
        certificate = load_pair(KeyPair(certificate_text, key_text))
    except ValueError:  # the key is what counts: a new certificate for it is trusted as the old one was
        return _write_authority(folder, key, now)
    if is_due(certificate, now):
        return _write_authority(folder, key, now)
    return Authority(key, certificate)


def server_context(files: AccessFiles) -> ssl.SSLContext:
    """The TLS context of the server. Clients may show a certificate of the authority. Raises AccessError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
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


def _key_or_new(text: bytes | None) -> EllipticCurvePrivateKey:
    try:
        return load_key(text or b"")
    except ValueError:
        return new_key()


def _write_authority(folder: Path, key: EllipticCurvePrivateKey, now: float) -> Authority:
    authority = new_authority(key, now)
    write_file(folder / "ca.key", key_pem(authority.key))
    write_file(folder / "ca.crt", authority.pem, 0o644)
    return authority


def _is_current(
    pair: KeyPair, authority: Authority, now: float, is_wrong: Callable[[x509.Certificate], bool] | None = None
) -> bool:
    try:
        certificate = load_pair(pair)
        certificate.verify_directly_issued_by(authority.certificate)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with it, it is replaced
        del error
        return False
    return not is_due(certificate, now) and not (is_wrong is not None and is_wrong(certificate))


def _keep_pair(
    files: tuple[Path, Path],
    authority: Authority,
    make: Callable[[], KeyPair],
    now: float,
    is_wrong: Callable[[x509.Certificate], bool] | None = None,
) -> None:
    """Make or renew a certificate and its key. An interruption between both files leaves a pair that does not match."""
    certificate, key = (read_file(path) or b"" for path in files)
    if _is_current(KeyPair(certificate, key), authority, now, is_wrong):
        return
    pair = make()
    write_file(files[1], pair.key)
    write_file(files[0], pair.certificate)


def _keep_kubeconfig(path: Path, url: str, authority: Authority, user: str, groups: Iterable[str], now: float) -> None:
    try:
        server, trusted, pair = parse_kubeconfig(read_file(path) or b"")
    except ValueError:
        server, trusted, pair = "", b"", KeyPair(b"", b"")
    if (
        server == url
        and trusted == authority.pem
        and _is_current(pair, authority, now, lambda found: _name(found) != user)
    ):
        return
    write_file(path, kubeconfig(url, authority.pem, user, authority.client(user, tuple(groups), now)))


def _has_groups(certificate: x509.Certificate) -> bool:
    return bool(certificate.subject.get_attributes_for_oid(x509.NameOID.ORGANIZATION_NAME))


def _name(certificate: x509.Certificate) -> str:
    return str(certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)


def _is_address(text: str) -> bool:
    try:
        return "%" not in text and ipaddress.ip_address(text).version > 0  # a zone cannot be in a certificate
    except ValueError:
        return False
