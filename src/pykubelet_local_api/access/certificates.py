"""X.509 certificates: made for a subject, and read. Keys are elliptic curve keys (P-256).

Every certificate has the identifiers of its key and of its issuer's, which strict clients require (Python 3.13 and later).
Source: RFC 5280; the certificates of a cluster are described in "PKI certificates and requirements".
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import ClassVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import NameOID

from pykubelet.base.kit.values import RedactedValue
from pykubelet_local_api.access.usages import DAY_S, EXTENDED_USAGES, KEY_USAGES, Validity

#: Certificates are backdated, because clocks differ a little.
BACKDATED_S = 3600.0
LEAF_S = 365 * DAY_S
AUTHORITY_S = 3650 * DAY_S
CLIENT_USAGES = ("digital signature", "client auth")
SERVER_USAGES = ("digital signature", "server auth")


class KeyPair(RedactedValue):
    """A certificate and its key, both in PEM."""

    hidden: ClassVar = ("key",)
    certificate: bytes
    key: bytes


class Authority(RedactedValue):
    """A certificate authority. `pem`: its certificate."""

    hidden: ClassVar = ("key",)
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def pem(self) -> bytes:
        """The certificate in PEM, which clients trust."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def sign(
        self,
        public: CertificatePublicKeyTypes,
        subject: x509.Name,
        names: Sequence[x509.GeneralName],
        usages: Iterable[str],
        valid: Validity,
    ) -> bytes:
        """A certificate in PEM. `usages`: as in signing requests; all must be known. It ends no later than the authority's own."""
        wanted = list(usages)
        bits = {KEY_USAGES[usage] for usage in wanted if usage in KEY_USAGES}
        extended = sorted({EXTENDED_USAGES[usage] for usage in wanted if usage in EXTENDED_USAGES})
        end = min(moment(valid.not_after), self.certificate.not_valid_after_utc)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.certificate.subject)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(moment(valid.not_before))
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
        )
        if bits:  # without any, the extension would make the certificate invalid
            builder = builder.add_extension(key_usage(bits), critical=True)
        if extended:
            oids = [x509.ObjectIdentifier(oid) for oid in extended]
            builder = builder.add_extension(x509.ExtendedKeyUsage(oids), critical=False)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def client(self, name: str, organizations: Sequence[str], now: float) -> KeyPair:
        """A client certificate: the user `name` in the groups `organizations`."""
        key = ec.generate_private_key(ec.SECP256R1())
        valid = Validity(now - BACKDATED_S, now + LEAF_S)
        return KeyPair(
            self.sign(key.public_key(), subject_of(name, organizations), (), CLIENT_USAGES, valid), key_pem(key)
        )

    def server(self, hosts: Iterable[str], addresses: Iterable[str], now: float) -> KeyPair:
        """A serving certificate for these names."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [*map(x509.DNSName, hosts), *(x509.IPAddress(ipaddress.ip_address(found)) for found in addresses)]
        valid = Validity(now - BACKDATED_S, now + LEAF_S)
        subject = subject_of("kube-apiserver", ())
        return KeyPair(self.sign(key.public_key(), subject, names, SERVER_USAGES, valid), key_pem(key))


def new_authority(key: ec.EllipticCurvePrivateKey, now: float) -> Authority:
    """An authority with a certificate that it signed itself."""
    name = subject_of("kubernetes", ())
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(moment(now - BACKDATED_S))
        .not_valid_after(moment(now + AUTHORITY_S))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(key_usage({"digital_signature", "key_cert_sign", "crl_sign"}), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return Authority(key, builder.sign(key, hashes.SHA256()))


def new_key() -> ec.EllipticCurvePrivateKey:
    """A new private key."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A private key in PEM (SEC 1)."""
    form, encryption = serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, form, encryption)


def load_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """A private key of P-256. Raises ValueError if it is none."""
    key = serialization.load_pem_private_key(pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ValueError("not a key of the curve P-256")
    return key


def load_authority(pem: bytes, key: bytes) -> Authority:
    """The authority in PEM. Raises ValueError if it cannot be read."""
    return Authority(load_key(key), x509.load_pem_x509_certificate(pem))


def load_pair(pair: KeyPair) -> x509.Certificate:
    """The certificate. Raises ValueError if one of both cannot be read, or the key is another one's."""
    certificate = x509.load_pem_x509_certificate(pair.certificate)
    if certificate.public_key() != load_key(pair.key).public_key():
        raise ValueError("the key is not that of the certificate")
    return certificate


def names_in(certificate: x509.Certificate) -> frozenset[str]:
    """The DNS names and addresses that a certificate is for."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    addresses = (str(address) for address in names.get_values_for_type(x509.IPAddress))
    return frozenset((*names.get_values_for_type(x509.DNSName), *addresses))


def is_due(certificate: x509.Certificate, now: float) -> bool:
    """Whether less than a third of its life is left, or it is not valid yet: the clock was set back."""
    start, end = unchanged_between(certificate)
    return now < start or now > end


def unchanged_between(certificate: x509.Certificate) -> tuple[float, float]:
    """From when to when a certificate is not due: wall seconds."""
    start, end = certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()
    return start, end - (end - start) / 3


def subject_of(name: str, organizations: Iterable[str]) -> x509.Name:
    """The subject: the user's name, and groups."""
    groups = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in organizations]
    return x509.Name([*groups, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def key_usage(bits: set[str]) -> x509.KeyUsage:
    """The extension with these bits."""
    known = {name: name in bits for name in dict.fromkeys(KEY_USAGES.values())}
    if not known["key_agreement"]:  # the two say something about a key agreement only
        known |= {"encipher_only": False, "decipher_only": False}
    return x509.KeyUsage(**known)


def moment(seconds: float) -> datetime:
    """Wall seconds as a date, to whole seconds."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=max(0, int(seconds)))
