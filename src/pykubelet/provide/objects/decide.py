"""Retry delays of requests, and the text of trust bundles and certificate chains. Pure; the caller passes random numbers between 0 and 1.

Rules:
- A token is replaced at 80 % of its lifetime or after 24 hours, whichever comes first, and up to 10 s earlier, so that
  tokens that were requested together are not replaced together.
- A failed request is repeated after a delay that doubles. The delay has a random factor of 0.5 to 1.5, and is not shorter
  than the server's Retry-After.
- A claim or volume that is missing or not bound yet is read again, and so is a VolumeAttachment that is not attached: at first
  soon, later after a fifth of the time that it has been so. The binding of a claim is therefore noticed late by a fifth of what it took.
- A refusal (403) right after a pod was bound is retried: the server's authorizer may not know yet that the pod is on this
  node.
Source: KEP-1205 (bound service account tokens), KEP-279 (node authorizer).
"""

from __future__ import annotations

from collections.abc import Iterable

from pykubelet.base.api.storage import PersistentVolume, PersistentVolumeClaim, VolumeAttachment
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.model.content import Found, Present


def retry_delay_s(failures: int, first_s: float, cap_s: float, chance: float, asked_s: float | None = None) -> float:
    """The delay in seconds after a number of failures in a row (from 1 on). `asked_s`: the server's Retry-After."""
    return max(BackoffPolicy(first_s, cap_s).delay_s(failures) * (0.5 + chance), asked_s or 0.0)


def unsettled_delay_s(waited_s: float, first_s: float, cap_s: float, chance: float) -> float:
    """The seconds until an object is read again that has not been settled for `waited_s`."""
    return min(max(first_s, waited_s / 5), cap_s) * (0.75 + chance / 2)


def is_settled(found: Found | None) -> bool:
    """Whether an object that is read periodically can be used as it is: it exists, and a claim and its volume are bound.

    A VolumeAttachment is attached, and not being deleted.
    """
    value = found.value if isinstance(found, Present) else None
    match value:
        case PersistentVolumeClaim(status=status, spec=spec):
            return status is not None and status.phase == "Bound" and bool(spec.volumeName)
        case PersistentVolume(spec=volume):
            return volume.claimRef is not None and bool(volume.claimRef.uid)
        case VolumeAttachment(status=attachment, metadata=metadata):
            return attachment is not None and attachment.attached and not metadata.deletionTimestamp
    return value is not None


def pem_blocks(text: str) -> list[str]:
    """The PEM blocks of a text as base64, without headers and what is between the blocks."""
    blocks: list[str] = []
    lines: list[str] | None = None
    for line in (line.strip() for line in text.splitlines()):
        if line.startswith("-----BEGIN ") and line.endswith("-----"):
            lines = []
        elif line.startswith("-----END ") and lines is not None:
            blocks.append("".join(lines))
            lines = None
        elif lines is not None and ":" not in line:
            lines.append(line)
    return blocks


def trust_anchors(bundles: Iterable[str]) -> list[str]:
    """The distinct PEM blocks of all bundles, as base64 without headers, sorted."""
    return sorted({block for text in bundles for block in pem_blocks(text)})


def clean_chain(text: str) -> str:
    """A certificate chain in PEM without headers and what is between the blocks; the same text if it has neither."""
    clean = pem_text(pem_blocks(text))
    return text if clean == text else clean


def pem_text(anchors: Iterable[str]) -> str:
    """Certificates in PEM format from base64 texts."""
    parts: list[str] = []
    for anchor in anchors:
        parts.append("-----BEGIN CERTIFICATE-----")
        parts.extend(anchor[at : at + 64] for at in range(0, len(anchor), 64))
        parts.append("-----END CERTIFICATE-----")
    return "".join(part + "\n" for part in parts)
