"""A signer of certificates for pods: it checks the proof of possession of a key, and issues a chain for it."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.x509.oid import NameOID
from support.agent import Json


class PodSigner:
    """An authority with a key of its own. Its certificates are valid for `life`."""

    def __init__(self, name: str = "example.com/mesh", life: timedelta = timedelta(days=1)) -> None:
        self.name = name
        self._life = life
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._own = self._certificate(self._subject, self._key.public_key(), is_authority=True)

    @property
    def root(self) -> str:
        """The certificate of the authority, in PEM."""
        return self._own.public_bytes(Encoding.PEM).decode()

    def status(self, request: Json) -> Json:
        """The status with which the request is answered. ValueError if the request proves nothing."""
        asked = x509.load_der_x509_csr(base64.b64decode(request["spec"]["stubPKCS10Request"]))
        if not asked.is_signature_valid or list(asked.subject) or list(asked.extensions):
            raise ValueError("not a stub request")
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, request["spec"]["podName"])])
        leaf = self._certificate(subject, asked.public_key())
        chain = leaf.public_bytes(Encoding.PEM) + self._own.public_bytes(Encoding.PEM)
        begin, end = leaf.not_valid_before_utc, leaf.not_valid_after_utc
        return {
            "conditions": [_condition("Issued", "Signed", "")],
            "certificateChain": chain.decode(),
            "notBefore": _text(begin),
            "beginRefreshAt": _text(begin + (end - begin) / 2),
            "notAfter": _text(end),
        }

    def _certificate(self, subject: x509.Name, key: Any, *, is_authority: bool = False) -> x509.Certificate:
        now = datetime.now(UTC).replace(microsecond=0)
        return (
            x509.CertificateBuilder(self._subject, subject, key, x509.random_serial_number(), now, now + self._life)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )


def refusal(kind: str, reason: str, message: str) -> Json:
    """The status of a request that is `Denied` or has `Failed`."""
    return {"conditions": [_condition(kind, reason, message)]}


def is_open(request: Json) -> bool:
    return not (request.get("status") or {}).get("conditions")


def pair_of(pem: bytes) -> tuple[bytes, list[bytes]]:
    """The public keys, as DER, of the private key at the beginning of a credential bundle, and of its certificates."""
    certificates = x509.load_pem_x509_certificates(pem)
    key = load_pem_private_key(pem[: pem.index(b"-----BEGIN CERTIFICATE")], None)
    return public_key(key.public_key()), [public_key(certificate.public_key()) for certificate in certificates]


def public_key(key: Any) -> bytes:
    return bytes(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))


def _condition(kind: str, reason: str, message: str) -> Json:
    now = _text(datetime.now(UTC))
    return {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": now}


def _text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
