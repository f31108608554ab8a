"""Signatures of P-256: the OpenSSL of `ssl` and `cryptography` give and accept the same ones."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from pykubelet_local_api.access import p256
from pykubelet_local_api.access.certificates import key_pem, new_key
from pykubelet_local_api.access.p256 import OpensslKey, P256Key, load_p256
from pykubelet_local_api.access.p256_library import LibraryKey
from pykubelet_local_api.access.signature_forms import HALF, as_der, joined

MADE = new_key()
PEM = key_pem(MADE)
DATA = b"some text"


def both() -> tuple[P256Key, P256Key]:
    found = load_p256(PEM)
    assert isinstance(found, OpensslKey), (
        "this Python's OpenSSL cannot be called: the memory that it spares is not spared"
    )
    return found, LibraryKey(PEM)


def test_each_verifies_what_the_other_has_signed() -> None:
    for signing in both():
        signature = signing.sign(DATA)
        assert len(signature) == 2 * HALF
        for verifying in both():
            assert verifying.verify(DATA, signature)
            assert not verifying.verify(DATA + b"x", signature)
            assert not verifying.verify(DATA, bytes(64))
            assert not verifying.verify(DATA, b"\xff" * 64)
            assert not verifying.verify(DATA, signature[1:])
            assert not verifying.verify(DATA, signature[:-1] + bytes((signature[-1] ^ 1,)))
            assert not LibraryKey(key_pem(new_key())).verify(DATA, signature)


def test_many_signatures_of_all_lengths() -> None:
    """Numbers that begin with zeros, or with a bit that needs another byte."""
    openssl, library = both()
    for number in range(300):
        data = str(number).encode()
        assert library.verify(data, openssl.sign(data))
        assert openssl.verify(data, library.sign(data))


def test_the_public_key() -> None:
    openssl, library = both()
    assert openssl.public == library.public


@given(st.binary(min_size=64, max_size=64))
def test_no_bytes_are_a_signature(signature: bytes) -> None:
    assert not both()[0].verify(DATA, signature)
    assert joined(as_der(signature)) == signature


def encrypted() -> bytes:
    return MADE.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"word")
    )


@pytest.mark.parametrize("kind", [OpensslKey, LibraryKey])
@pytest.mark.parametrize(
    "pem",
    [
        b"",
        b"\0\xff",
        b"x" * 300_000,
        PEM[: len(PEM) // 2],
        key_pem(ec.generate_private_key(ec.SECP384R1())),
        encrypted(),
    ],
)
def test_what_is_no_key_of_the_curve_is_refused(kind: type, pem: bytes) -> None:
    with pytest.raises((ValueError, TypeError)):
        kind(p256._LIBRARY, pem) if kind is OpensslKey else kind(pem)
