from collections.abc import Sequence
from dataclasses import dataclass

from pykubelet.extension import Extension, Image


@dataclass(frozen=True)
class CostSettings:
    bytes_per_s: float = 50e6
    latency_s: float = 2.0
    keep: tuple[str, ...] = ()


class CostOfPulls(Extension):
    name, api, Settings = "cost-of-pulls", "1.0", CostSettings

    def rank_images_for_removal(self, images: Sequence[Image]) -> Sequence[Image] | None:
        now = max(map(_used, images), default=0.0) + 1
        return sorted(images, key=lambda image: (self._is_kept(image), self._value(image, now)))

    def _is_kept(self, image: Image) -> bool:
        return any(name.startswith(prefix) for name in image.names for prefix in self.settings.keep)

    def _value(self, image: Image, now: float) -> float:
        """Seconds of pulling for each second without use, for each byte."""
        pull_s = self.settings.latency_s + image.size / self.settings.bytes_per_s
        return pull_s / (now - _used(image)) / max(1, image.size)


def _used(image: Image) -> float:
    return image.last_used or image.first_seen
