"""Watches: the changes of a resource as a stream of lines, until the client leaves or the time is over.

A watch reads the history at its own pace. One that is so slow that the history has forgotten what it needs gets an error 410, as does
one from an older version; its client lists again. Source: Kubernetes documentation, "Kubernetes API Concepts", "Efficient detection of
changes", "Watch bookmarks" and "Streaming lists".
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator

import msgspec

from pykubelet.base.kit.values import Value
from pykubelet_local_api.errors import StatusError, expired
from pykubelet_local_api.kinds.conversion import to_served
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.objects import Json, name_of, namespace_of
from pykubelet_local_api.rest.formats import Accepted, Form, shown_object
from pykubelet_local_api.rest.options import ListOptions
from pykubelet_local_api.rest.reads import check_not_future, parse_version
from pykubelet_local_api.rest.selectors import Wants, everything
from pykubelet_local_api.rest.shared_lines import SharedLines, WatchedStretch
from pykubelet_local_api.store.history import ChangeType, StoredChange
from pykubelet_local_api.store.store import ObjectStore

#: A watch without `timeoutSeconds` ends after this many seconds, up to twice as many, so that not all end at once.
TIMEOUT_S = 1800
MAX_TIMEOUT_S = 86_400
#: Seconds between bookmarks, with up to a quarter more.
BOOKMARK_S = 60.0
#: So many lines are made before other tasks run, of objects with so many bytes of JSON in all.
LINES_AT_ONCE, BYTES_AT_ONCE = 100, 256 << 10
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

    def __init__(self, store: ObjectStore, request: WatchRequest, shared: SharedLines | None = None) -> None:
        self._store = store
        self._shared = shared or SharedLines()
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
            try:
                lines = self._next_lines()
            except StatusError as error:
                yield _line("ERROR", error.status())
                return
            if lines:
                yield lines
            if lines or self._version < self._store.version:
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

    async def _initial(self) -> AsyncIterator[bytes]:
        """All objects as new ones, and for a client that asked for them the bookmark that ends them."""
        self._version = self._store.version
        lines: list[bytes] = []
        size = 0
        for found in [*self._store.list(self._request.kind.storage, self._request.namespace)]:
            served = to_served(self._request.kind, found)
            if self._covers(namespace_of(served), name_of(served)) and self._request.wants(served):
                lines.append(self._event(ChangeType.ADDED, served))
                size += len(lines[-1])
            if len(lines) == LINES_AT_ONCE or size > BYTES_AT_ONCE:
                yield b"".join(lines)
                lines.clear()
                size = 0
                await asyncio.sleep(0)
        yield b"".join(lines)
        if self._request.options.has_bookmarks:
            yield self._bookmark({INITIAL_END: "true"})

    def _covers(self, namespace: str, name: str) -> bool:
        request = self._request
        return (not request.namespace or namespace == request.namespace) and (not request.name or name == request.name)

    def _next_lines(self) -> bytes:
        """The lines of the next changes. Raises StatusError 410."""
        store = self._store
        if not store.history.oldest <= self._version <= store.version:
            raise expired(f"too old resource version: {self._version} ({store.history.oldest})")
        if self._version == store.version:
            return b""
        request = self._request
        if request.wants is not everything or not self._sends_stored:
            lines, self._version = self._made_lines()
            return lines
        stretch = WatchedStretch(request.kind.storage, request.namespace, request.name, self._version)
        found = self._shared.find(stretch, store.version)
        if found is None:
            found = self._made_lines()
            self._shared.keep(stretch, *found)
        lines, self._version = found
        return lines

    def _made_lines(self) -> tuple[bytes, int]:
        """The lines of the next changes, and the version of the last."""
        store = self._store
        changes = store.history.after(self._request.kind.storage, self._version)
        lines: list[bytes] = []
        size = 0
        for number, change in enumerate(changes):
            if number == LINES_AT_ONCE or size > BYTES_AT_ONCE:
                return b"".join(lines), changes[number - 1].version
            size += len(change.data)
            lines.append(self._line_of(change))
        return b"".join(lines), store.version

    @property
    def _sends_stored(self) -> bool:
        """Whether this watch sends the texts that were stored."""
        accepted = self._request.accepted
        return accepted.form is Form.OBJECT and not accepted.drops_managed and not self._request.kind.stored_as

    def _line_of(self, change: StoredChange) -> bytes:
        """The line of a change; empty if this watch does not see it. An object that begins to fit the selector is a new one."""
        kind, wants = self._request.kind, self._request.wants
        if not self._covers(change.key.namespace, change.key.name):
            return b""
        if wants is everything:
            return self._whole(change.type, change)
        before, now = change.before, change.object
        was = before is not None and wants(to_served(kind, before))
        served = to_served(kind, now)
        if change.type is not ChangeType.DELETED and wants(served):
            return self._whole(ChangeType.MODIFIED if was else ChangeType.ADDED, change)
        if before is None or not was:
            return b""
        last = served if change.type is ChangeType.DELETED else to_served(kind, before)
        version = {"resourceVersion": now["metadata"]["resourceVersion"]}
        return self._event(ChangeType.DELETED, {**last, "metadata": last["metadata"] | version})

    def _whole(self, event: str, change: StoredChange) -> bytes:
        """The line with the object of a change. Most watches get the text that was stored."""
        if self._sends_stored:
            return b'{"type":"%b","object":%b}\n' % (event.encode(), change.data)
        return self._event(event, to_served(self._request.kind, change.object))

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
