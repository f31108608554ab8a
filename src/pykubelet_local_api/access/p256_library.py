"""Signatures of P-256 by `cryptography`, where the OpenSSL of Python's `ssl` cannot be called (`p256.py`)."""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from pykubelet_local_api.access.certificates import load_key
from pykubelet_local_api.access.signature_forms import HALF, as_der, joined

_ECDSA = ec.ECDSA(hashes.SHA256())


class LibraryKey:
    """A key of `cryptography`."""

    def __init__(self, pem: bytes) -> None:
        self._key = load_key(pem)
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        self.public = self._key.public_key().public_bytes(serialization.Encoding.DER, form)

    def sign(self, data: bytes) -> bytes:
        """The signature."""
        return joined(self._key.sign(data, _ECDSA))

    def verify(self, data: bytes, signature: bytes) -> bool:
        """Whether this key has signed the data."""
        if len(signature) != 2 * HALF:
            return False
        try:
            self._key.public_key().verify(as_der(signature), data, _ECDSA)
        except InvalidSignature:
            return False
        return True
