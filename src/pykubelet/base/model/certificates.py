"""Certificates of pods, and the states of which the metric `kubelet_podcertificate_states` has a count.

Source: KEP-4317 (pod certificates).
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from pykubelet.base.kit.values import RedactedValue

#: A refresh is overdue so many seconds after it was due.
OVERDUE_S = 600.0


class PodCertificate(RedactedValue):
    """A private key, and the certificate chain for it, both in PEM. `refresh_at`, `not_after`: wall seconds."""

    hidden: ClassVar = ("key",)
    key: str
    chain: str
    refresh_at: float
    not_after: float


class CertificateStage(StrEnum):
    """What became of a request for a certificate."""

    NOT_YET_ISSUED = "not_yet_issued"
    DENIED = "denied"
    FAILED = "failed"
    FRESH = "fresh"
    OVERDUE_FOR_REFRESH = "overdue_for_refresh"
    EXPIRED = "expired"


def stage_at(certificate: PodCertificate, wall: float) -> CertificateStage:
    """The stage of a certificate that was issued, at a time in wall seconds."""
    if wall > certificate.not_after:
        return CertificateStage.EXPIRED
    if wall > certificate.refresh_at + OVERDUE_S:
        return CertificateStage.OVERDUE_FOR_REFRESH
    return CertificateStage.FRESH
