"""Lists as answers: whole, or in parts, so that the event loop is not held while much is encoded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from functools import partial

import msgspec

from pykubelet.base.kit.values import Value
from pykubelet.net.http.server import Answer, StreamedResponse
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.objects import Json, name_of, namespace_of
from pykubelet_local_api.rest.formats import JSON, Accepted, Form, answer, shown_list
from pykubelet_local_api.rest.parts import LARGE_PART, AnswerParts
from pykubelet_local_api.rest.reads import Page
from pykubelet_local_api.store.database import StoredKey
from pykubelet_local_api.store.store import ObjectStore

#: So many objects, with so many bytes of JSON in all, are encoded before other tasks run. A larger object is a part of its own.
PART_OBJECTS = 100


class ListPart(Value):
    """Objects that are encoded at once. `is_large`: whether that is more than a part should have."""

    items: Sequence[Json]
    is_large: bool


def list_parts(
    store: ObjectStore, kind: ResourceKind, items: Sequence[Json], most: int = PART_OBJECTS
) -> list[ListPart]:
    """The objects in parts of `most` that are encoded one at a time. One that is not stored any more counts as a large one."""
    return list(_parts(store, kind, items, most))


def _parts(store: ObjectStore, kind: ResourceKind, items: Sequence[Json], most: int) -> Iterator[ListPart]:
    start = size = 0
    for number, item in enumerate(items):
        own = store.sizes.of(StoredKey(kind.storage, namespace_of(item), name_of(item))) or LARGE_PART + 1
        if number > start and (size + own > LARGE_PART or number - start >= most):
            yield ListPart(items[start:number], size > LARGE_PART)
            start, size = number, 0
        size += own
    yield ListPart(items[start:], size > LARGE_PART)


def list_answer(
    accepted: Accepted, kind: ResourceKind, page: Page, listed: Sequence[ListPart], now: float, parts: AnswerParts
) -> Answer:
    """The answer with a list. `listed`: the parts of its objects."""
    if len(listed) > 1 or listed[0].is_large:
        return StreamedResponse(200, _in_parts(accepted, kind, page.metadata, listed, now, parts), JSON)
    return answer(shown_list(accepted, kind, page.items, page.metadata, now))


async def _in_parts(
    accepted: Accepted, kind: ResourceKind, metadata: Json, listed: Sequence[ListPart], now: float, parts: AnswerParts
) -> AsyncIterator[bytes]:
    member = "rows" if accepted.form is Form.TABLE else "items"
    whole = shown_list(accepted, kind, (), metadata, now)
    del whole[member]
    yield msgspec.json.encode(whole)[:-1] + b',"%b":[' % member.encode()

    def encoded(part: ListPart, separator: bytes) -> bytes:
        return separator + msgspec.json.encode(shown_list(accepted, kind, part.items, {}, now)[member])[1:-1]

    for number, part in enumerate(listed):
        make = partial(encoded, part, b"," if number else b"")
        async with aclosing(parts.pieces(make, part.is_large)) as pieces:
            async for piece in pieces:
                yield piece
        await asyncio.sleep(0)
    yield b"]}\n"
