"""A program that creates a private key with a self-signed certificate or a signing request, or describes a certificate.

It reads a JSON question from standard input and writes a JSON answer to standard output:
- `{"kind": "self-signed", "name", "dns", "ips", "days"}` gives `{"key", "certificate"}` in PEM.
- `{"kind": "request", "name", "organizations", "dns", "ips", "key"?}` gives `{"key", "request", "public"}`: PEM, and the
  public key as DER in base64.
- `{"kind": "stubs", "types"}` gives `{"stubs": [{"key", "request"}]}`, one for each of the key types: the key in PEM (PKCS #8), and a
  signing request without a subject as DER in base64, which proves possession of the key (KEP-4317).
- `{"kind": "describe", "pem"}` gives `{"not_before", "not_after", "name", "organizations", "dns", "ips"}` of the first
  certificate; the last block must be its key.

Times are seconds since the epoch. `keys.py` runs it, so that the agent never loads `cryptography` into its memory.
"""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

#: Certificates are backdated, because the clocks of a cluster differ a little.
BACKDATED = datetime.timedelta(hours=1)
StubKey = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey
#: For each key type of a pod certificate (`base/api/key_types.py`) how a key is made, and the hash that it signs; None: its own.
STUB_KEYS: Mapping[str, tuple[Callable[[], StubKey], hashes.SHA256 | hashes.SHA384 | hashes.SHA512 | None]] = {
    "ECDSAP256": (lambda: ec.generate_private_key(ec.SECP256R1()), hashes.SHA256()),
    "ECDSAP384": (lambda: ec.generate_private_key(ec.SECP384R1()), hashes.SHA384()),
    "ECDSAP521": (lambda: ec.generate_private_key(ec.SECP521R1()), hashes.SHA512()),
    "ED25519": (ed25519.Ed25519PrivateKey.generate, None),
    "RSA3072": (lambda: rsa.generate_private_key(65537, 3072), hashes.SHA256()),
    "RSA4096": (lambda: rsa.generate_private_key(65537, 4096), hashes.SHA256()),
}


def names_of(question: dict[str, Any]) -> x509.SubjectAlternativeName | None:
    """The subjectAltName extension for `dns` and `ips` of the question; None if both are empty."""
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in question.get("dns", ())]
    names += [x509.IPAddress(ipaddress.ip_address(ip)) for ip in question.get("ips", ())]
    return x509.SubjectAlternativeName(names) if names else None


def subject_of(question: dict[str, Any]) -> x509.Name:
    """The subject: `organizations` and the common name `name`."""
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, name) for name in question.get("organizations", ())]
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, question["name"])])


def self_signed(question: dict[str, Any], key: ec.EllipticCurvePrivateKey) -> bytes:
    """A self-signed serving certificate in PEM, valid for `days`."""
    now = datetime.datetime.now(datetime.UTC)  # noqa: TID251 - a program of its own
    subject = subject_of(question)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + datetime.timedelta(days=question["days"]))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    )
    names = names_of(question)
    if names is not None:
        builder = builder.add_extension(names, critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def signing_request(question: dict[str, Any], key: ec.EllipticCurvePrivateKey) -> bytes:
    """A certificate signing request in PEM."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject_of(question))
    names = names_of(question)
    if names is not None:
        builder = builder.add_extension(names, critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def stub(key_type: str) -> dict[str, str]:
    """A new key of this type, and a signing request that is signed by it and contains nothing else."""
    make, digest = STUB_KEYS[key_type]
    key = make()
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, digest)
    form, encryption = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return {
        "key": key.private_bytes(serialization.Encoding.PEM, form, encryption).decode(),
        "request": base64.b64encode(request.public_bytes(serialization.Encoding.DER)).decode(),
    }


def key_of(question: dict[str, Any]) -> ec.EllipticCurvePrivateKey:
    """The key in the question, else a new one."""
    given = question.get("key")
    if not given:
        return ec.generate_private_key(ec.SECP256R1())
    key = serialization.load_pem_private_key(given.encode(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("the private key is not an elliptic curve key")
    return key


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """The answer to one question; the module's docstring describes both. Raises ValueError or KeyError for a bad question."""
    if question["kind"] == "describe":
        return description(question["pem"].encode())
    if question["kind"] == "stubs":
        return {"stubs": [stub(key_type) for key_type in question["types"]]}
    key = key_of(question)
    encoding, encryption = serialization.Encoding.PEM, serialization.NoEncryption()
    pem = key.private_bytes(encoding, serialization.PrivateFormat.TraditionalOpenSSL, encryption).decode()
    if question["kind"] == "self-signed":
        return {"key": pem, "certificate": self_signed(question, key).decode()}
    public = base64.b64encode(public_der(key.public_key())).decode()
    return {"key": pem, "request": signing_request(question, key).decode(), "public": public}


def public_der(key: Any) -> bytes:
    """A public key as SubjectPublicKeyInfo in DER."""
    der: bytes = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return der


def description(pem: bytes) -> dict[str, Any]:
    """Describe the first certificate in `pem`. Raises ValueError if the last key in `pem` is not its key."""
    certificate = x509.load_pem_x509_certificates(pem)[0]
    key: Any = serialization.load_pem_private_key(pem[pem.rindex(b"-----BEGIN ") :], password=None)
    if public_der(key.public_key()) != public_der(certificate.public_key()):
        raise ValueError("the private key does not belong to the certificate")
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        names = x509.SubjectAlternativeName([])
    subject = certificate.subject
    return {
        "not_before": certificate.not_valid_before_utc.timestamp(),
        "not_after": certificate.not_valid_after_utc.timestamp(),
        "name": next((str(part.value) for part in subject.get_attributes_for_oid(NameOID.COMMON_NAME)), ""),
        "organizations": [str(part.value) for part in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)],
        "dns": names.get_values_for_type(x509.DNSName),
        "ips": [str(ip) for ip in names.get_values_for_type(x509.IPAddress)],
    }


if __name__ == "__main__":
    json.dump(answer(json.load(sys.stdin)), sys.stdout)
