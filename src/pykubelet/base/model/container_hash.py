"""The hash that detects a changed container definition. Pure.

It is the hash of the reference kubelet (1.31 and later), so containers keep running when this agent takes over the node
from it, or it from this agent: FNV-1a (32 bits) over the Go dump `([]uint8)[123 34 ...]` of the bytes of the JSON object
`{"image":...,"name":...}`. No other field of the definition counts. The tests contain the reference kubelet's test value.
"""

from __future__ import annotations

import json
from functools import lru_cache

from pykubelet.base.api.core import Container, EphemeralContainer
from pykubelet.base.kit.fnv import fnv1a_32

# Go escapes these characters in JSON strings, Python does not.
_GO_ESCAPES = str.maketrans(
    {char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}  # both escape all others in the same way
)


def container_hash(container: Container | EphemeralContainer) -> str:
    """The hash in lower-case hexadecimal without leading zeros, as in the annotation `io.kubernetes.container.hash`."""
    return _hash(container.image, container.name)


@lru_cache(maxsize=4096)
def _hash(image: str, name: str) -> str:
    text = json.dumps({"image": image, "name": name}, separators=(",", ":"), ensure_ascii=False)
    dump = "([]uint8)[" + " ".join(map(str, text.translate(_GO_ESCAPES).encode())) + "]"
    return f"{fnv1a_32(dump.encode()):x}"
