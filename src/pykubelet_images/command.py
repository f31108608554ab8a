"""The command of this package, which the distribution's entry point names. Cheap to import."""

from __future__ import annotations

from pykubelet.base.kit.commands import Command

IMAGES = Command(
    "images", "adopt NAME...", "use images of Docker on the same containerd in pods", "pykubelet_images.program"
)
