"""What rooms are told of every legal configuration."""

from __future__ import annotations

import pytest

from pykubelet.act.images.model import VerificationPolicy
from pykubelet.app.room_settings import image_settings
from pykubelet.base.config.combine import File, FlagInput, combine

HEADER = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"


@pytest.mark.parametrize("gates", ["{KubeletEnsureSecretPulledImages: false}", "{AllBeta: false}"])
def test_without_the_gate_no_image_is_verified(gates: str) -> None:
    file = File("/k.yaml", f"{HEADER}featureGates: {gates}\n".encode())
    settings = image_settings(combine(file, (), FlagInput(), None))
    assert not settings.ensure_secret_pulled
    assert settings.verification is VerificationPolicy.NEVER_VERIFY
