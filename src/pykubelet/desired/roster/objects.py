"""Decides which objects of manifests count, on a node without an API server. Pure.

Rules:
- A limited number of objects of a kind count, and ConfigMaps and Secrets of a limited size together: those that counted before, then the
  others by name.
- Several manifests may define an object of one name; `provide/objects/binding.py` decides between them, and the others are reported here.
- An immutable ConfigMap or Secret keeps its content while its manifest is there.
Source: KEP-1412 (immutable Secrets and ConfigMaps).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise

from pykubelet.base.api.core import ConfigMap, Secret
from pykubelet.base.kit.values import Value
from pykubelet.base.model.content import ContentKind, ManifestObject, ObjectKey
from pykubelet.base.model.remarks import place_of
from pykubelet.base.model.roster import ManifestProblem, SourceChanged

#: Objects of one kind that are taken from manifests. Each claim is compared with each volume.
MAX_OBJECTS = 256
#: ConfigMaps, and Secrets, that are taken from manifests.
MAX_DATA_OBJECTS = 1000
#: Bytes of all ConfigMaps and Secrets of manifests together, which are kept in memory.
MAX_DATA = 32 << 20
_OF_DATA = (ContentKind.CONFIG_MAP, ContentKind.SECRET)
_IMMUTABLE = "field is immutable when `immutable` is set: the content from before counts; use another name, or take the manifest away first"


class CountedObjects(Value):
    """`objects`: those that count, sorted by key and origin. Several may have one key. `problems`: what is wrong with them together."""

    objects: tuple[ManifestObject, ...] = ()
    problems: tuple[ManifestProblem, ...] = ()


def count_objects(sources: Mapping[str, SourceChanged], before: CountedObjects) -> CountedObjects:
    """The objects of all sources that count. `before`: the ones until now, itself if nothing has changed."""
    found = [item for reported in sources.values() for item in reported.objects]
    if not found:
        return before if not before.objects else CountedObjects()
    old: dict[tuple[ObjectKey, str], ManifestObject] = {}
    for item in before.objects:
        old.setdefault((item.key, item.origin), item)
    problems: list[ManifestProblem] = []
    kept = [_kept(item, old.get((item.key, item.origin)), problems) for item in found]
    kept.sort(key=lambda item: ((item.key, item.origin) not in old, item.key, item.origin))
    objects = sorted(_within_limits(kept, problems), key=lambda item: (item.key, item.origin))
    for first, second in pairwise(objects):
        if first.key == second.key:
            place = place_of(first.origin, first.document)
            also = f"{first.key.kind} {json.dumps(first.key.name)} is also defined in {place}; only one of them counts"
            problems.append(_problem(second, also))
    counted = CountedObjects(tuple(objects), tuple(problems[:MAX_OBJECTS]))
    return before if counted == before else counted


def _kept(item: ManifestObject, old: ManifestObject | None, problems: list[ManifestProblem]) -> ManifestObject:
    """The object, or the one from before if that was immutable."""
    if old is None or old is item or not isinstance(old.value, ConfigMap | Secret) or not old.value.immutable:
        return item
    fields = ("immutable", "data", "binaryData") if isinstance(old.value, ConfigMap) else ("immutable", "data")
    changed = next((field for field in fields if getattr(old.value, field) != getattr(item.value, field)), "")
    if not changed:
        return item
    problems.append(_problem(item, _IMMUTABLE, changed))
    return old


def _within_limits(objects: list[ManifestObject], problems: list[ManifestProblem]) -> list[ManifestObject]:
    counted: list[ManifestObject] = []
    count: Counter[str] = Counter()
    size = 0
    for item in objects:
        is_data = item.key.kind in _OF_DATA
        most = MAX_DATA_OBJECTS if is_data else MAX_OBJECTS
        if count[item.key.kind] == most:
            problems.append(_problem(item, f"there are more than {most} objects of this kind, ignoring"))
        elif size + item.size > MAX_DATA:
            words = f"all ConfigMaps and Secrets together are larger than {MAX_DATA >> 20} MiB, ignoring"
            problems.append(_problem(item, words))
        else:
            count[item.key.kind] += 1
            size += item.size
            counted.append(item)
    return counted


def _problem(item: ManifestObject, reason: str, field_path: str = "metadata.name") -> ManifestProblem:
    return ManifestProblem(item.origin, field_path, reason, item.document)
