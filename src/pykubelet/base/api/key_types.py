"""The types of keys that certificates for pods may have. `edges/identity/make_keys.py` has the algorithm of each.

Source: the API reference, PodCertificateProjection.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pykubelet.base.kit.values import Value


class KeyType(Value):
    """`is_slow`: making one takes up to some seconds of CPU time, not milliseconds."""

    is_slow: bool = False


KEY_TYPES: Final[Mapping[str, KeyType]] = {
    "ECDSAP256": KeyType(),
    "ECDSAP384": KeyType(),
    "ECDSAP521": KeyType(),
    "ED25519": KeyType(),
    "RSA3072": KeyType(is_slow=True),
    "RSA4096": KeyType(is_slow=True),
}
