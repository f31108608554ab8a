"""Both forms of an ECDSA signature of P-256: of OpenSSL (DER), and of JWS (RFC 7518, section 3.4: both numbers with 32 bytes each)."""

from __future__ import annotations

HALF = 32


def as_der(signature: bytes) -> bytes:
    """Both numbers of a signature as DER: a SEQUENCE of two INTEGERs."""
    numbers = b"".join(_integer(half) for half in (signature[:HALF], signature[HALF:]))
    return bytes((0x30, len(numbers))) + numbers


def joined(der: bytes) -> bytes:
    """Both numbers of a signature that OpenSSL has made, with 32 bytes each."""
    at, halves = 2, []
    for _ in range(2):
        length = der[at + 1]
        halves.append(der[at + 2 : at + 2 + length].lstrip(b"\0").rjust(HALF, b"\0"))
        at += 2 + length
    return b"".join(halves)


def _integer(half: bytes) -> bytes:
    digits = half.lstrip(b"\0") or b"\0"
    if digits[0] & 0x80:  # without it, the number would be negative
        digits = b"\0" + digits
    return bytes((0x02, len(digits))) + digits
