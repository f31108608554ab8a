"""Which images go, and when. Pure.

Rules:
1. In use: any container, running or not, was made from it, or a pod mounts it as a volume. Such images, pinned and
   protected ones never go.
2. An image is as old as the agent knows it: of one that was there before, a pod may just be about to be made.
3. By age: unused for longer than `max_age_s`, but not before the agent itself has run that long.
4. By space: at `high_percent` of the file system, down to `low_percent`; the longest unused first, then the longest
   known. Not those used since this round began, nor those known for less than `min_age_s`.

Times are monotonic seconds, sizes bytes. Source: the Kubernetes documentation "Garbage Collection" (images).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pykubelet.act.images.model import ImageSettings
from pykubelet.act.images.names import complete_name
from pykubelet.base.kit.durations import format_seconds
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model import reasons
from pykubelet.base.model.kube_events import KubeEvent, warning

NEVER = float("-inf")


class StoredImage(Value):
    """One image of the runtime; `names` are its tags and digests, complete."""

    id: str
    names: tuple[str, ...]
    size_bytes: int
    pinned: bool


class Sighting(Value):
    """Since when an image is known, and when it was last seen in use; -inf: never."""

    first_seen: float
    last_used: float = NEVER


class Sightings(Value):
    """By image id. `begun` is False until the first look at the runtime has succeeded."""

    images: Mapping[str, Sighting] = field(default_factory=dict)
    begun: bool = False


class Candidate(Value):
    image: StoredImage
    sighting: Sighting


def find_used(
    images: Iterable[StoredImage], container_images: Iterable[str], volume_images: Iterable[str]
) -> frozenset[str]:
    """Ids of images in use. `container_images`: ids or references as the runtime tells them."""
    told = {*container_images, *(complete_name(name) for name in volume_images)}
    told |= {complete_name(name) for name in told if not name.startswith("sha256:")}
    return frozenset(image.id for image in images if image.id in told or not told.isdisjoint(image.names))


def look(before: Sightings, images: Sequence[StoredImage], used: frozenset[str], now: float) -> Sightings:
    """The sightings after a look at the runtime; images that are gone are forgotten."""
    after: dict[str, Sighting] = {}
    for image in images:
        known = before.images.get(image.id) or Sighting(now)
        after[image.id] = Sighting(known.first_seen, now) if image.id in used else known
    return Sightings(after, True)


def rank_candidates(
    sightings: Sightings, images: Iterable[StoredImage], used: frozenset[str], protected: frozenset[str]
) -> tuple[Candidate, ...]:
    """Images that may go, the first to go first."""
    kept = {complete_name(name) for name in protected}
    candidates = [
        Candidate(image, sightings.images[image.id])
        for image in images
        if image.id not in used and not image.pinned and image.id not in protected and kept.isdisjoint(image.names)
    ]
    return tuple(sorted(candidates, key=lambda c: (c.sighting.last_used, c.sighting.first_seen, c.image.id)))


def split_by_age(
    candidates: Sequence[Candidate], settings: ImageSettings, now: float, began: float
) -> tuple[tuple[Candidate, ...], tuple[Candidate, ...]]:
    """Those too old to keep, and the rest. `began`: when the agent began to collect."""
    if settings.max_age_s <= 0 or now - began <= settings.max_age_s:
        return (), tuple(candidates)
    old = tuple(c for c in candidates if now - c.sighting.last_used > settings.max_age_s)
    return old, tuple(c for c in candidates if c not in old)


def used_percent(capacity: int, available: int) -> int:
    """`capacity` is positive."""
    return 100 - min(available, capacity) * 100 // capacity


def bytes_to_free(capacity: int, available: int, settings: ImageSettings) -> int:
    """0 when the file system is below its high threshold. `capacity` is positive."""
    available = min(available, capacity)
    if used_percent(capacity, available) < settings.high_percent:
        return 0
    return capacity * (100 - settings.low_percent) // 100 - available


def may_free(candidate: Candidate, now: float, min_age_s: float) -> bool:
    """Whether an image may go to make room in the round that began at `now`."""
    return candidate.sighting.last_used < now and now - candidate.sighting.first_seen >= min_age_s


def is_enabled(settings: ImageSettings) -> bool:
    return settings.high_percent < 100 or settings.max_age_s > 0


# What is told about the node

INVALID_CAPACITY = "invalid capacity 0 on image filesystem"


def too_little_freed(capacity: int, available: int, freed: int) -> str:
    """`available`: before anything was freed."""
    used = f"{used_percent(capacity, available)}% of {_size_in_words(capacity)} used"
    return (
        f"Insufficient free disk space on the node's image filesystem ({used}). "
        f"Failed to free sufficient space by deleting unused images (freed {freed} bytes). "
        "Investigate disk usage, as it could be used by active images, logs, volumes, or other data."
    )


def _size_in_words(size: int) -> str:
    if size < 1024:
        return f"{size} B"
    power = min(4, (size.bit_length() - 1) // 10)
    return f"{size / (1 << 10 * power):.1f} {'KMGT'[power - 1]}iB"


def age_deletion_failed(max_age_s: float, errors: str) -> str:
    age = format_seconds(max_age_s)
    return f"wanted to free images older than {age}, encountered errors in image deletion: {errors}"


def deletion_failed(wanted: int, freed: int, errors: str) -> str:
    return f"wanted to free {wanted} bytes, but freed {freed} bytes space with errors in image deletion: {errors}"


def tell_invalid_capacity() -> KubeEvent:
    return warning(reasons.EVENT_INVALID_DISK_CAPACITY, INVALID_CAPACITY)


def tell_too_little_freed(message: str) -> KubeEvent:
    return warning(reasons.EVENT_FREE_DISK_SPACE_FAILED, message)


def tell_gc_failed(error: str) -> KubeEvent:
    return warning(reasons.EVENT_IMAGE_GC_FAILED, error)
