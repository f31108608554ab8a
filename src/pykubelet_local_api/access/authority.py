"""The files of access: certificate authority, serving and client certificates, kubeconfig files. Blocks.

`prepare` makes what is missing and renews what is due; it is called at the start, once a day, and when the machine's names
or addresses change. Everything but the authority is replaced if it is damaged. An authority that was in use and cannot be
read is refused, because a new one would make every certificate of the old one invalid.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from pykubelet.base.kit.values import Value
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
    unchanged_between,
)
from pykubelet_local_api.access.files import AccessError, make_folder, read_file, write_file
from pykubelet_local_api.access.kubeconfig import kubeconfig, parse_kubeconfig
from pykubelet_local_api.access.place import TOKEN_KEY, AccessFiles, ApiPlace, files_in
from pykubelet_local_api.access.rbac import MASTERS

#: Names of the API server that clients in pods use, and those on the machine.
HOSTS = (
    "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost",
)  # fmt: skip
LOOPBACK = ("127.0.0.1", "::1")
_HOST = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")


class Prepared(Value):
    """The files, and how long nothing has to be done about them: wall seconds."""

    files: AccessFiles
    valid_from: float
    due_at: float


def prepare(place: ApiPlace, now: float) -> Prepared:
    """Make and renew all files. Raises AccessError."""
    folder = place.folder
    make_folder(folder)
    authority = open_authority(folder, now)
    wanted = server_names(place)
    hosts = [name for name in wanted if not _is_address(name)]
    addresses = [name for name in wanted if _is_address(name)]
    user = f"system:node:{place.node_name}"
    files = files_in(folder)

    def is_for_others(certificate: x509.Certificate) -> bool:
        return names_in(certificate) != frozenset(wanted)

    def agent_client() -> KeyPair:
        return authority.client(AGENT_CLIENT, (), now)

    used = [
        authority.certificate,
        _keep_pair(files.server, authority, lambda: authority.server(hosts, addresses, now), now, is_for_others),
        _keep_pair(files.agent_client, authority, agent_client, now, _has_groups),
        _keep_pair(files.own_client, authority, lambda: authority.client("local-api", (MASTERS,), now), now),
        _keep_kubeconfig(files.admin_kubeconfig, place.url, authority, "admin", (MASTERS,), now),
        _keep_kubeconfig(files.kubelet_kubeconfig, place.url, authority, user, ("system:nodes",), now),
    ]
    if read_file(folder / TOKEN_KEY) is None:
        write_file(folder / TOKEN_KEY, key_pem(new_key()))
    starts, ends = zip(*map(unchanged_between, used), strict=True)
    return Prepared(files_in(folder), max(starts), min(ends))


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
) -> x509.Certificate:
    """Make or renew a certificate and its key, and return it. An interruption between both files leaves a pair that does not match."""
    certificate, key = (read_file(path) or b"" for path in files)
    if _is_current(KeyPair(certificate, key), authority, now, is_wrong):
        return x509.load_pem_x509_certificate(certificate)
    pair = make()
    write_file(files[1], pair.key)
    write_file(files[0], pair.certificate)
    return x509.load_pem_x509_certificate(pair.certificate)


def _keep_kubeconfig(
    path: Path, url: str, authority: Authority, user: str, groups: Iterable[str], now: float
) -> x509.Certificate:
    try:
        server, trusted, pair = parse_kubeconfig(read_file(path) or b"")
    except ValueError:
        server, trusted, pair = "", b"", KeyPair(b"", b"")
    if (
        server == url
        and trusted == authority.pem
        and _is_current(pair, authority, now, lambda found: _name(found) != user)
    ):
        return x509.load_pem_x509_certificate(pair.certificate)
    pair = authority.client(user, tuple(groups), now)
    write_file(path, kubeconfig(url, authority.pem, user, pair))
    return x509.load_pem_x509_certificate(pair.certificate)


def _has_groups(certificate: x509.Certificate) -> bool:
    return bool(certificate.subject.get_attributes_for_oid(x509.NameOID.ORGANIZATION_NAME))


def _name(certificate: x509.Certificate) -> str:
    return str(certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)


def _is_address(text: str) -> bool:
    try:
        return "%" not in text and ipaddress.ip_address(text).version > 0  # a zone cannot be in a certificate
    except ValueError:
        return False
