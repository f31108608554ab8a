"""Watches: the changes of a resource as a stream of lines, until the client leaves or the time is over.

A watch reads the history at its own pace. One that is so slow that the history has forgotten what it needs gets an error 410, as does
one from an older version; its client lists again. Source: Kubernetes documentation, "Kubernetes API Concepts", "Efficient detection of
changes", "Watch bookmarks" and "Streaming lists".
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from functools import partial

import msgspec

from pykubelet.base.kit.values import Value
from pykubelet_local_api.errors import StatusError, expired
from pykubelet_local_api.kinds.conversion import to_served
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.objects import Json, name_of, namespace_of
from pykubelet_local_api.rest.formats import Accepted, Form, shown_object
from pykubelet_local_api.rest.lists import list_parts
from pykubelet_local_api.rest.options import ListOptions
from pykubelet_local_api.rest.parts import LARGE_PART, AnswerParts
from pykubelet_local_api.rest.reads import check_not_future, parse_version
from pykubelet_local_api.rest.selectors import Wants, everything
from pykubelet_local_api.rest.shared_lines import ChangedObjects, SharedLines, WatchedStretch
from pykubelet_local_api.store.history import ChangeType, StoredChange
from pykubelet_local_api.store.store import ObjectStore

#: A watch without `timeoutSeconds` ends after this many seconds, up to twice as many, so that not all end at once.
TIMEOUT_S = 1800
MAX_TIMEOUT_S = 86_400
#: Seconds between bookmarks, with up to a quarter more.
BOOKMARK_S = 60.0
#: So many lines are made before other tasks run, of objects with so many bytes of JSON in all. A larger object is sent alone.
LINES_AT_ONCE, BYTES_AT_ONCE = 100, LARGE_PART
#: So many objects are compared with a selector before other tasks run.
COMPARED_AT_ONCE = 25
INITIAL_END = "k8s.io/initial-events-end"


class WatchRequest(Value):
    """What a watch wants. `namespace` "": all; `name` "": all objects."""

    kind: ResourceKind
    namespace: str
    name: str
    wants: Wants
    options: ListOptions
    accepted: Accepted


class WatchStream:
    """The lines of one watch: an asynchronous iterator that `aclose` ends. Made before the first line, so that errors are answers.

    `shared`: the lines that other watches send too.
    """

    def __init__(self, store: ObjectStore, request: WatchRequest, parts: AnswerParts, shared: SharedLines) -> None:
        self._store = store
        self._shared = shared
        self._parts = parts
        self._request = request
        self._wakeup = asyncio.Event()
        self._marks_at = 0.0
        self._has_columns = False
        options = request.options
        self._is_initial = bool(options.send_initial)
        self._version = store.version
        if options.version not in ("", "0"):
            asked = parse_version(options.version)
            if options.send_initial:
                check_not_future(store, asked)
            else:
                self._version = asked
        store.watch(request.kind.storage, self._wakeup)
        self._lines = self._stream()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        return await anext(self._lines)

    def mark(self) -> None:
        """Send the next bookmark behind the changes until now, without waiting for its time."""
        self._marks_at = 0.0
        self._wakeup.set()

    async def aclose(self) -> None:
        """End the watch."""
        self.close()
        await self._lines.aclose()

    def close(self) -> None:
        """End a watch of which nothing was read."""
        self._store.unwatch(self._request.kind.storage, self._wakeup)

    async def _stream(self) -> AsyncGenerator[bytes, None]:
        options = self._request.options
        limit_s = min(options.timeout_s or int(TIMEOUT_S * (1 + random.random())), MAX_TIMEOUT_S)
        if limit_s < 0:
            return
        loop = asyncio.get_running_loop()
        ends = loop.time() + limit_s
        yield b""  # the head of the answer goes out before the first change
        if self._is_initial:
            async for lines in self._initial():
                yield lines
        self._marks_at = loop.time() + BOOKMARK_S * (1 + random.random() / 4)
        while loop.time() < ends:
            self._wakeup.clear()
            if self._version < self._store.version:
                try:
                    async with aclosing(self._changes()) as changes:
                        async for lines in changes:
                            yield lines
                except StatusError as error:
                    yield _line("ERROR", error.status())
                    return
                await asyncio.sleep(0)
                continue
            if options.has_bookmarks and loop.time() >= self._marks_at:
                self._marks_at = loop.time() + BOOKMARK_S * (1 + random.random() / 4)
                yield self._bookmark()
            until = min(ends, self._marks_at) if options.has_bookmarks else ends
            try:
                async with asyncio.timeout_at(until):
                    await self._wakeup.wait()
            except TimeoutError:
                pass
        if options.has_bookmarks:
            yield self._bookmark()

    async def _initial(self) -> AsyncGenerator[bytes, None]:
        """All objects as new ones, and for a client that asked for them the bookmark that ends them."""
        store, kind = self._store, self._request.kind
        self._version = store.version
        covered = [
            found
            for found in store.list(kind.storage, self._request.namespace)
            if self._covers(namespace_of(found), name_of(found))
        ]
        for part in list_parts(store, kind, covered, COMPARED_AT_ONCE):
            async with aclosing(self._parts.pieces(partial(self._added, part.items), part.is_large)) as pieces:
                async for piece in pieces:
                    yield piece
            await asyncio.sleep(0)
        if self._request.options.has_bookmarks:
            yield self._bookmark({INITIAL_END: "true"})

    def _added(self, items: Sequence[Json]) -> bytes:
        served = (to_served(self._request.kind, found) for found in items)
        return b"".join(self._event(ChangeType.ADDED, found) for found in served if self._request.wants(found))

    def _covers(self, namespace: str, name: str) -> bool:
        request = self._request
        return (not request.namespace or namespace == request.namespace) and (not request.name or name == request.name)

    async def _changes(self) -> AsyncGenerator[bytes, None]:
        """The lines of the next changes. Raises StatusError 410."""
        store = self._store
        if not store.history.oldest <= self._version <= store.version:
            raise self._expired()
        if self._is_large(self._next):
            async with aclosing(self._parts.large(self._large_line)) as pieces:
                async for piece in pieces:
                    yield piece
        elif self._request.wants is everything and self._sends_stored:
            yield self._stored_lines()
        else:
            await self._parts.next_round()
            lines, self._version = self._made_lines(COMPARED_AT_ONCE)
            yield lines

    def _expired(self) -> StatusError:
        return expired(f"too old resource version: {self._version} ({self._store.history.oldest})")

    def _stored_lines(self) -> bytes:
        """The lines of the next changes, which other watches send too."""
        request = self._request
        stretch = WatchedStretch(request.kind.storage, request.namespace, request.name, self._version)
        found = self._shared.find(stretch, self._store.version)
        if found is None:
            found = self._made_lines(LINES_AT_ONCE)
            self._shared.keep(stretch, *found)
        lines, self._version = found
        return lines

    def _made_lines(self, most: int) -> tuple[bytes, int]:
        """The lines of the next changes, before the next large one, and the version of the last."""
        store = self._store
        changes = store.history.after(self._request.kind.storage, self._version)
        lines: list[bytes] = []
        size = 0
        for number, change in enumerate(changes):
            if number == most or size > BYTES_AT_ONCE or self._is_large(change):
                return b"".join(lines), changes[number - 1].version if number else self._version
            size += len(change.data) * self._covers(change.key.namespace, change.key.name)
            lines.append(self._line_of(change, lambda found: (found.before, found.object)))
        return b"".join(lines), store.version

    def _is_large(self, change: StoredChange | None) -> bool:
        """Whether the change has a line of its own."""
        if change is None:
            return False
        size = max(len(change.data), len(change.data_before or b""))
        return size > LARGE_PART and self._covers(change.key.namespace, change.key.name)

    @property
    def _next(self) -> StoredChange | None:
        return self._store.history.next_after(self._request.kind.storage, self._version)

    async def _large_line(self) -> bytes:
        """The line of the next change, which is a large one. Not kept while the watch waits for a place. Raises StatusError."""
        change = self._next
        if change is None or self._version < self._store.history.oldest:
            raise self._expired()
        self._version = change.version
        if self._request.wants is everything and self._sends_stored:
            return self._whole(change.type, change)
        objects = await self._shared.large.objects_of(change)
        return await self._shared.large.run(lambda: self._line_of(change, lambda _: objects))

    @property
    def _sends_stored(self) -> bool:
        """Whether this watch sends the texts that were stored."""
        accepted = self._request.accepted
        return accepted.form is Form.OBJECT and not accepted.drops_managed and not self._request.kind.stored_as

    def _line_of(self, change: StoredChange, objects_of: Callable[[StoredChange], ChangedObjects]) -> bytes:
        """The line of a change; empty if this watch does not see it. An object that begins to fit the selector is a new one."""
        kind, wants = self._request.kind, self._request.wants
        if not self._covers(change.key.namespace, change.key.name):
            return b""
        if wants is everything and self._sends_stored:
            return self._whole(change.type, change)
        before, now = objects_of(change)
        was = before is not None and wants(to_served(kind, before))
        served = to_served(kind, now)
        if change.type is not ChangeType.DELETED and wants(served):
            return self._whole(ChangeType.MODIFIED if was else ChangeType.ADDED, change, served)
        if before is None or not was:
            return b""
        last = served if change.type is ChangeType.DELETED else to_served(kind, before)
        version = {"resourceVersion": now["metadata"]["resourceVersion"]}
        return self._event(ChangeType.DELETED, {**last, "metadata": last["metadata"] | version})

    def _whole(self, event: str, change: StoredChange, served: Json | None = None) -> bytes:
        """The line with the object of a change. Most watches get the text that was stored, and do not need what is `served`."""
        if self._sends_stored or served is None:
            return b'{"type":"%b","object":%b}\n' % (event.encode(), change.data)
        return self._event(event, served)

    def _event(self, event: str, served: Json) -> bytes:
        shown = shown_object(self._request.accepted, self._request.kind, served, self._store.now)
        if self._request.accepted.form is Form.TABLE:
            if self._has_columns:
                shown = shown | {"columnDefinitions": None}
            self._has_columns = True
        return _line(event, shown)

    def _bookmark(self, annotations: dict[str, str] | None = None) -> bytes:
        kind = self._request.kind
        meta: Json = {"resourceVersion": str(self._version)}
        if annotations:
            meta["annotations"] = annotations
        return self._event("BOOKMARK", {"kind": kind.name, "apiVersion": kind.api_version, "metadata": meta})


def _line(event: str, found: Json) -> bytes:
    return msgspec.json.encode({"type": event, "object": found}) + b"\n"


__all__ = ["WatchRequest", "WatchStream"]
