"""The hash that tells whether a container's definition changed. Pure.

It is what the reference kubelet (1.31 and later) computes, so that containers made by it are kept as they are when this
agent takes the node over, and the other way round: FNV-1a (32 bits) over the Go dump `([]uint8)[123 34 ...]` of the bytes
of the JSON object `{"image":...,"name":...}`. The reference's own test value is among our tests. Nothing else of the
definition counts.
"""

from __future__ import annotations

import json
from functools import lru_cache

from pykubelet.act.runtime.render.context import AnyContainer

_OFFSET = 0x811C9DC5
_PRIME = 0x01000193
# Go escapes these inside JSON strings, Python does not.
_GO_ESCAPES = str.maketrans(
    {char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}  # all others are escaped alike
)


def container_hash(container: AnyContainer) -> str:
    """Lower-case hexadecimal without leading zeros, as in the annotation `io.kubernetes.container.hash`."""
    return _hash(container.image, container.name)


@lru_cache(maxsize=4096)
def _hash(image: str, name: str) -> str:
    text = json.dumps({"image": image, "name": name}, separators=(",", ":"), ensure_ascii=False)
    dump = "([]uint8)[" + " ".join(map(str, text.translate(_GO_ESCAPES).encode())) + "]"
    value = _OFFSET
    for byte in dump.encode():
        value = ((value ^ byte) * _PRIME) & 0xFFFFFFFF
    return f"{value:x}"
