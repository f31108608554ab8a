"""Lists as answers: whole, or in parts, so that the event loop is not held while much is encoded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence

import msgspec

from pykubelet.net.http.server import Answer, StreamedResponse
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.objects import Json, name_of, namespace_of
from pykubelet_local_api.rest.formats import JSON, Accepted, Form, answer, shown_list
from pykubelet_local_api.rest.reads import Page
from pykubelet_local_api.store.database import StoredKey
from pykubelet_local_api.store.store import ObjectStore

#: So many objects, with so many bytes of JSON in all, are encoded before other tasks run. A larger object is a part of its own.
PART_OBJECTS, PART_BYTES = 100, 256 << 10


def list_parts(store: ObjectStore, kind: ResourceKind, items: Sequence[Json]) -> list[Sequence[Json]]:
    """The objects in parts that are encoded one at a time. One that is not stored any more counts as a large one."""
    return list(_parts(store, kind, items))


def _parts(store: ObjectStore, kind: ResourceKind, items: Sequence[Json]) -> Iterator[Sequence[Json]]:
    start = size = 0
    for number, item in enumerate(items):
        own = store.sizes.of(StoredKey(kind.storage, namespace_of(item), name_of(item))) or PART_BYTES
        size += own
        if number > start and (size > PART_BYTES or number - start >= PART_OBJECTS):
            yield items[start:number]
            start, size = number, own
    yield items[start:]


def list_answer(
    accepted: Accepted, kind: ResourceKind, page: Page, parts: Sequence[Sequence[Json]], now: float
) -> Answer:
    """The answer with a list. `parts`: those of its objects."""
    if len(parts) > 1:
        return StreamedResponse(200, _in_parts(accepted, kind, page, parts, now), JSON)
    return answer(shown_list(accepted, kind, page.items, page.metadata, now))


async def _in_parts(
    accepted: Accepted, kind: ResourceKind, page: Page, parts: Sequence[Sequence[Json]], now: float
) -> AsyncIterator[bytes]:
    member = "rows" if accepted.form is Form.TABLE else "items"
    whole = shown_list(accepted, kind, (), page.metadata, now)
    del whole[member]
    yield msgspec.json.encode(whole)[:-1] + b',"%b":[' % member.encode()
    for number, part in enumerate(parts):
        shown = shown_list(accepted, kind, part, {}, now)[member]
        yield (b"," if number else b"") + msgspec.json.encode(shown)[1:-1]
        await asyncio.sleep(0)
    yield b"]}\n"
