"""When to ask again. Pure; the caller brings random numbers between 0 and 1.

Rules:
- A token is replaced at 80 % of its life or after 24 hours, whichever comes first, up to 10 s earlier so that tokens
  that were made together are not replaced together.
- A failed try is repeated after a delay that doubles, spread to both sides by half, and not before the server asks.
- A refusal (403) right after a pod was bound is a try that came too early: the server's view of which pods are on this
  node may be a moment behind.
Source: KEP-1205 (bound service account tokens), KEP-279 (node authorizer).
"""

from __future__ import annotations

from collections.abc import Iterable

from pykubelet.base.kit.backoff import BackoffPolicy


def retry_delay_s(failures: int, first_s: float, cap_s: float, chance: float, asked_s: float | None = None) -> float:
    """The pause after the `failures`-th failure (from 1 on)."""
    return max(BackoffPolicy(first_s, cap_s).delay_s(failures) * (0.5 + chance), asked_s or 0.0)


def trust_anchors(bundles: Iterable[str]) -> list[str]:
    """The distinct PEM blocks of all bundles, without what stands between them, in a stable order."""
    blocks: set[str] = set()
    for text in bundles:
        lines: list[str] | None = None
        for line in (line.strip() for line in text.splitlines()):
            if line.startswith("-----BEGIN ") and line.endswith("-----"):
                lines = []
            elif line.startswith("-----END ") and lines is not None:
                blocks.add("".join(lines))
                lines = None
            elif lines is not None and ":" not in line:
                lines.append(line)
    return sorted(blocks)


def pem_text(anchors: Iterable[str]) -> str:
    """Base64 texts as certificates in PEM."""
    parts: list[str] = []
    for anchor in anchors:
        parts.append("-----BEGIN CERTIFICATE-----")
        parts.extend(anchor[at : at + 64] for at in range(0, len(anchor), 64))
        parts.append("-----END CERTIFICATE-----")
    return "".join(part + "\n" for part in parts)
