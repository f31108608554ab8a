"""Kubeconfigs of nodes, signed by a cluster's authority in this process: for many nodes at once.

A TLS bootstrap does the same through the API server, at the cost of a key, a request and an approval for each node.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_VALID = timedelta(days=30)
_SKEW = timedelta(minutes=5)


class Authority:
    """The authority that an API server trusts for its clients (`ca.crt`, `ca.key`). Raises OSError and ValueError."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self.pem = certificate.read_bytes()
        self._certificate = x509.load_pem_x509_certificate(self.pem)
        loaded = serialization.load_pem_private_key(key.read_bytes(), None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
            raise ValueError(f"{key}: neither an EC key nor an RSA key")
        self._key = loaded

    def sign(self, node: str, now: datetime) -> tuple[bytes, bytes]:
        """A client certificate of a node, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        group = x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:nodes")
        name = x509.NameAttribute(NameOID.COMMON_NAME, f"system:node:{node}")
        made = x509.CertificateBuilder(
            issuer_name=self._certificate.subject,
            subject_name=x509.Name([group, name]),
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - _SKEW,
            not_valid_after=now + _VALID,
        ).add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        pem = made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        return pem, key.private_bytes(serialization.Encoding.PEM, form, plain)


def write_kubeconfigs(authority: Authority, server: str, names: Iterable[str], folder: Path) -> int:
    """`<name>.kubeconfig` in the folder for each node; one that is there is kept. Returns how many were written."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    now, written = datetime.now(UTC), 0
    for name in names:
        path = folder / f"{name}.kubeconfig"
        if path.exists():
            continue
        certificate, key = authority.sign(name, now)
        part = path.with_suffix(".part")
        part.touch(0o600)
        part.write_text(json.dumps(_kubeconfig(server, authority.pem, certificate, key)))
        part.replace(path)
        written += 1
    return written


def _kubeconfig(server: str, authority: bytes, certificate: bytes, key: bytes) -> dict[str, object]:
    text = {name: base64.b64encode(data).decode() for name, data in (("c", certificate), ("k", key), ("a", authority))}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "cluster", "cluster": {"server": server, "certificate-authority-data": text["a"]}}],
        "users": [{"name": "node", "user": {"client-certificate-data": text["c"], "client-key-data": text["k"]}}],
        "contexts": [{"name": "node", "context": {"cluster": "cluster", "user": "node"}}],
        "current-context": "node",
    }
