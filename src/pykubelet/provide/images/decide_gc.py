"""Decides which images are garbage-collected, and when. Pure.

Rules:
1. An image is in use if any container, running or not, was made from it, or if a pod mounts it as a volume. Images in
   use, pinned images and protected images are never removed.
2. The age of an image counts from when the agent first saw it: a pod may be about to use an older image.
3. By age: an image unused for longer than `max_age_s` is removed, but not before the agent itself has run that long.
4. By space: from `high_percent` of the file system on, images are removed down to `low_percent`. The longest unused go
   first, then the longest known. Images used since this collection began, and images known for less than `min_age_s`, stay.
5. Extensions may have another order.

Times are monotonic seconds, sizes bytes. Source: the Kubernetes documentation "Garbage Collection" (images).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pykubelet.base.kit.durations import format_seconds
from pykubelet.base.kit.values import Value, field
from pykubelet.provide.images.model import (
    ImageSettings,
    RankingFacts,
    RemovalCandidate,
    Sighting,
    StoredImage,
)
from pykubelet.provide.images.names import complete_name


class Sightings(Value):
    """The sightings by image ID. `begun` is False until the first inventory of the runtime has succeeded."""

    images: Mapping[str, Sighting] = field(default_factory=dict)
    begun: bool = False


def find_used(
    images: Iterable[StoredImage], container_images: Iterable[str], volume_images: Iterable[str]
) -> frozenset[str]:
    """IDs of images in use. `container_images`: IDs or references as the runtime reports them."""
    references = {*container_images, *(complete_name(name) for name in volume_images)}
    references |= {complete_name(name) for name in references if not name.startswith("sha256:")}
    return frozenset(image.id for image in images if image.id in references or not references.isdisjoint(image.names))


def update_sightings(before: Sightings, images: Sequence[StoredImage], used: frozenset[str], now: float) -> Sightings:
    """The sightings after an inventory of the runtime; images that are gone are forgotten."""
    after: dict[str, Sighting] = {}
    for image in images:
        known = before.images.get(image.id) or Sighting(now)
        after[image.id] = Sighting(known.first_seen, now) if image.id in used else known
    return Sightings(after, True)


def rank_candidates(
    sightings: Sightings, images: Iterable[StoredImage], used: frozenset[str], protected: frozenset[str]
) -> tuple[RemovalCandidate, ...]:
    """Images that may be removed, in the order of removal."""
    kept = {complete_name(name) for name in protected}
    candidates = [
        RemovalCandidate(image, sightings.images[image.id])
        for image in images
        if image.id not in used and not image.pinned and image.id not in protected and kept.isdisjoint(image.names)
    ]
    return tuple(sorted(candidates, key=lambda c: (c.sighting.last_used, c.sighting.first_seen, c.image.id)))


def split_by_age(
    candidates: Sequence[RemovalCandidate], settings: ImageSettings, now: float, began: float
) -> tuple[tuple[RemovalCandidate, ...], tuple[RemovalCandidate, ...]]:
    """The candidates that are too old to keep, and the rest. `began`: when the collector started."""
    old, rest = list[RemovalCandidate](), list[RemovalCandidate]()
    for candidate in candidates:
        (old if is_over_age(candidate, settings, now, began) else rest).append(candidate)
    return tuple(old), tuple(rest)


def is_over_age(candidate: RemovalCandidate, settings: ImageSettings, now: float, began: float) -> bool:
    """Whether an image is too old to keep."""
    limit_s = settings.max_age_s
    return 0 < limit_s < now - began and now - candidate.sighting.last_used > limit_s


def in_order(
    candidates: Sequence[RemovalCandidate], settings: ImageSettings, facts: RankingFacts
) -> Sequence[RemovalCandidate]:
    """The candidates in the order in which they are removed. They come in the built-in order."""
    ask = settings.ask_for_order
    answer = ask(candidates, facts) if ask is not None and candidates else None
    return candidates if answer is None else answer


def used_percent(capacity: int, available: int) -> int:
    """The used part of a file system in percent. `capacity` must be positive."""
    return 100 - min(available, capacity) * 100 // capacity


def bytes_to_free(capacity: int, available: int, settings: ImageSettings) -> int:
    """The bytes to free; 0 when the file system is below its high threshold. `capacity` must be positive."""
    available = min(available, capacity)
    if used_percent(capacity, available) < settings.high_percent:
        return 0
    return capacity * (100 - settings.low_percent) // 100 - available


def may_free(candidate: RemovalCandidate, now: float, min_age_s: float) -> bool:
    """Whether an image may be removed for disk space in the collection that began at `now`."""
    return candidate.sighting.last_used < now and now - candidate.sighting.first_seen >= min_age_s


def is_enabled(settings: ImageSettings) -> bool:
    """Whether any threshold or age of the configuration can lead to a removal."""
    return settings.high_percent < 100 or settings.max_age_s > 0


# Texts and Events of the node

INVALID_CAPACITY = "invalid capacity 0 on image filesystem"


def too_little_freed(capacity: int, available: int, freed: int) -> str:
    """The message that too little space was freed. `available`: bytes before anything was freed."""
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
    """The error of a collection by age; `max_age_s` in seconds."""
    age = format_seconds(max_age_s)
    return f"wanted to free images older than {age}, encountered errors in image deletion: {errors}"


def deletion_failed(wanted: int, freed: int, errors: str) -> str:
    """The error of a collection by space; `wanted` and `freed` in bytes."""
    return f"wanted to free {wanted} bytes, but freed {freed} bytes space with errors in image deletion: {errors}"
