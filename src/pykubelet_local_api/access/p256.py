"""Signatures of the curve P-256 (ECDSA with SHA-256), by the OpenSSL that Python's `ssl` has loaded already.

`cryptography` has an OpenSSL of its own, which takes 12 MiB of memory in a process that signs and verifies tokens and nothing else.
It is used where the other one is not found: in a Python whose OpenSSL is linked statically.
"""

from __future__ import annotations

import _ssl
import ctypes
from typing import Any, Protocol

from pykubelet_local_api.access.signature_forms import HALF, as_der, joined

#: A public key of the curve as DER (SubjectPublicKeyInfo): this, then both coordinates.
SPKI_HEAD = bytes.fromhex("3059301306072a8648ce3d020106082a8648ce3d030107034200" + "04")
_LONGEST_DER = 80


class P256Key(Protocol):
    """A private key of the curve. `public`: its public key as DER."""

    public: bytes

    def sign(self, data: bytes) -> bytes:
        """The signature."""

    def verify(self, data: bytes, signature: bytes) -> bool:
        """Whether this key has signed the data."""


def load_p256(pem: bytes) -> P256Key:
    """A private key in PEM. Raises ValueError if it is none of P-256."""
    if _LIBRARY is None:
        from pykubelet_local_api.access.p256_library import LibraryKey

        return LibraryKey(pem)
    return OpensslKey(_LIBRARY, pem)


class OpensslKey:
    """A key of the loaded OpenSSL. Freed with this object."""

    def __init__(self, library: Any, pem: bytes) -> None:
        self._library = library
        self._key: int | None = None
        source = library.BIO_new_mem_buf(pem, len(pem))
        try:
            # the last argument is the password: without one, OpenSSL would ask on the terminal
            self._key = library.PEM_read_bio_PrivateKey(source, None, None, b"")
        finally:
            library.BIO_free(source)
            library.ERR_clear_error()
        if not self._key:
            raise ValueError("not a private key in PEM")
        self.public = self._public()
        if not self.public.startswith(SPKI_HEAD) or len(self.public) != len(SPKI_HEAD) + 2 * HALF:
            raise ValueError("not a key of the curve P-256")

    def __del__(self) -> None:
        if self._key:
            self._library.EVP_PKEY_free(self._key)

    def _public(self) -> bytes:
        length = self._library.i2d_PUBKEY(self._key, None)
        if length <= 0:
            return b""
        text = ctypes.create_string_buffer(length)
        self._library.i2d_PUBKEY(self._key, ctypes.byref(ctypes.cast(text, ctypes.c_void_p)))
        return text.raw

    def sign(self, data: bytes) -> bytes:
        """The signature."""
        library, length = self._library, ctypes.c_size_t(_LONGEST_DER)
        der = ctypes.create_string_buffer(_LONGEST_DER)
        context = library.EVP_MD_CTX_new()
        try:
            if (
                library.EVP_DigestSignInit(context, None, library.EVP_sha256(), None, self._key) != 1
                or library.EVP_DigestSign(context, der, ctypes.byref(length), data, len(data)) != 1
            ):
                raise RuntimeError("OpenSSL cannot sign")
        finally:
            library.EVP_MD_CTX_free(context)
            library.ERR_clear_error()
        return joined(der.raw[: length.value])

    def verify(self, data: bytes, signature: bytes) -> bool:
        """Whether this key has signed the data."""
        if len(signature) != 2 * HALF:
            return False
        library, der = self._library, as_der(signature)
        context = library.EVP_MD_CTX_new()
        try:
            return bool(
                library.EVP_DigestVerifyInit(context, None, library.EVP_sha256(), None, self._key) == 1
                and library.EVP_DigestVerify(context, der, len(der), data, len(data)) == 1
            )
        finally:
            library.EVP_MD_CTX_free(context)
            library.ERR_clear_error()


def _loaded_openssl() -> Any | None:
    """The OpenSSL of the module `_ssl`; None if it cannot be called from outside, or is older than 1.1.1."""
    pointer, size, text, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_int
    functions: dict[str, tuple[Any, list[Any]]] = {
        "BIO_new_mem_buf": (pointer, [text, number]),
        "BIO_free": (number, [pointer]),
        "PEM_read_bio_PrivateKey": (pointer, [pointer, pointer, pointer, text]),
        "EVP_PKEY_free": (None, [pointer]),
        "i2d_PUBKEY": (number, [pointer, pointer]),
        "EVP_MD_CTX_new": (pointer, []),
        "EVP_MD_CTX_free": (None, [pointer]),
        "EVP_sha256": (pointer, []),
        "EVP_DigestSignInit": (number, [pointer, pointer, pointer, pointer, pointer]),
        "EVP_DigestSign": (number, [pointer, text, pointer, text, size]),
        "EVP_DigestVerifyInit": (number, [pointer, pointer, pointer, pointer, pointer]),
        "EVP_DigestVerify": (number, [pointer, text, size, text, size]),
        "ERR_clear_error": (None, []),
    }
    try:
        library = ctypes.CDLL(_ssl.__file__)
        for name, (result, arguments) in functions.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (AttributeError, OSError, TypeError):
        return None
    return library


_LIBRARY = _loaded_openssl()
