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
        # image.size: bytes; image.last_used, image.first_seen: seconds since 1970; image.names: tags and digests
        return images
