"""Follows a set of objects of the API server: lists them once, then watches them.

Owns: resource versions, bookmarks, 410 Gone, streams that end or send nothing, back-off, and objects that cannot be decoded.
Readers get whole sets (`Listed`), never events.

Rules:
- The first list may be old (`resourceVersion=0`, from the server's cache) unless `newest` is given; a list after 410
  comes from the store.
- Objects that did not change stay the same Python object across events and lists; so do equal parts of objects that did,
  such as the spec of a pod with a new status.
- Events that arrive together result in one `Listed`.
- A stream without data for longer than the interval of the server's bookmarks is closed and opened again, without a new
  list.
- If the newest state is unavailable (`error`), the last known set stays in use.

Source: the Kubernetes documentation "Kubernetes API Concepts", section "Efficient detection of changes".
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec
from msgspec import Struct

from pykubelet.base.api.codec import DecodeError, decode
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import Value, VersionedMap, edited, field, sharing_parts
from pykubelet.edges.kubeapi.errors import ApiError

if TYPE_CHECKING:
    from pykubelet.edges.kubeapi.client import ApiClient  # a node without an API server starts without it

B = TypeVar("B")
R = TypeVar("R")
T = TypeVar("T", bound=Struct)
log = Log("kubeapi")
PAGE = 500
TOO_SOON_S = 1.0


class Listed(Value, Generic[T]):
    """A set of objects. `items`: by `namespace/name` (`name` for cluster-wide kinds). `synced`: they were listed at least once.

    `error`: why the newest state is currently unavailable.
    """

    items: Mapping[str, T] = field(default_factory=dict)
    synced: bool = False
    error: ApiError | None = None


class WatchPeriods(Value):
    """The periods of a watch in seconds. `asked`: the requested duration of a watch is between this and twice this.

    `silent`: a stream without data for this long is closed; `silent_at_first` applies until the server has sent a bookmark.
    `retry`, `retry_max`: the first and the longest delay before a retry; it doubles, and is spread by half to both sides.
    """

    asked: float = 600.0
    silent: float = 100.0
    silent_at_first: float = 300.0
    retry: float = 0.2
    retry_max: float = 10.0


class _Meta(msgspec.Struct, frozen=True):
    name: str = ""
    namespace: str = ""
    resourceVersion: str = ""
    uid: str = ""


class _Object(msgspec.Struct, frozen=True):
    metadata: _Meta = _Meta()


class _ListMeta(msgspec.Struct, frozen=True):
    resourceVersion: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct, frozen=True):
    metadata: _ListMeta = _ListMeta()
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


_read_page = msgspec.json.Decoder(_Page).decode
_read_object = msgspec.json.Decoder(_Object).decode
_read_event = msgspec.json.Decoder(_Event).decode


class _Known(Struct, Generic[T]):
    """One object, with the UID and resource version by which a change is detected."""

    version: tuple[str, str]
    value: T


class Follower(Generic[T]):
    """The state of one `follow`."""

    def __init__(
        self,
        client: ApiClient,
        path: str,
        kind: type[T],
        clock: Clock,
        selectors: Mapping[str, str],
        periods: WatchPeriods,
        start: str,
    ) -> None:
        self._client = client
        self._path = path
        self._kind = kind
        self._clock = clock
        self._selectors = dict(selectors)
        self._periods = periods
        self._backoff = BackoffPolicy(periods.retry, periods.retry_max)
        self._start = start
        self._known: dict[str, _Known[T]] = {}
        self._values: VersionedMap[str, T] = VersionedMap()
        self._version = ""
        self._synced = False
        self._has_bookmarks = False
        self._failures = 0
        self._listed_at = float("-inf")
        self._bad: ApiError | None = None

    async def run(self) -> AsyncGenerator[Listed[T], None]:
        """List, then watch, without end. Yields the whole set after every change and after every error. Raises nothing."""
        while True:
            try:
                if not self._version:
                    await self._list(self._start)
                    yield self._listed(self._bad)
                async with aclosing(self._watch()) as changes:
                    async for listed in changes:
                        yield listed
                        del listed  # the next change may be a day away
            except ApiError as error:
                if not error.is_expired:
                    yield self._listed(error)
                else:
                    self._version, self._start = "", ""
                    now = self._clock.monotonic()
                    if now - self._listed_at >= TOO_SOON_S:
                        self._listed_at = now  # of a list that is also expired, the next one waits
                        continue
                await self._pause(error)

    async def _pause(self, error: ApiError) -> None:
        self._failures += 1
        delay = self._backoff.delay_s(self._failures) * random.uniform(0.5, 1.5)
        await asyncio.sleep(max(delay, error.retry_after_s or 0.0))

    # -- the whole set

    async def _list(self, version: str) -> None:
        found: dict[str, _Known[T]] = {}
        self._bad = None
        query = {**self._selectors, "limit": str(PAGE), "resourceVersion": version}
        while True:
            page = await self._page(query)
            for raw in page.items or ():
                self._take(found, raw)
            if not page.metadata.continue_:
                break
            query = {**self._selectors, "limit": str(PAGE), "continue": page.metadata.continue_}
        self._known = found
        self._values = VersionedMap((key, known.value) for key, known in found.items())
        self._version = page.metadata.resourceVersion
        self._listed_at = self._clock.monotonic()
        self._synced = True
        self._failures = 0

    async def _page(self, query: Mapping[str, str]) -> _Page:
        return self._read(_read_page, await self._client.request("GET", self._path, query), "the answer is no list")

    def _read(self, read: Callable[[B], R], data: B, problem: str) -> R:
        try:
            return read(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ApiError(0, "Undecodable", f"{self._path}: {problem}: {error}") from error

    def _take(self, into: dict[str, _Known[T]], raw: msgspec.Raw) -> bool:
        """Add one object to the set. Returns False if it is unchanged."""
        meta = self._meta(raw)
        key = _key(meta)
        version = (meta.uid, meta.resourceVersion)
        known = self._known.get(key)
        if known is not None and known.version == version:
            into[key] = known
            return False
        try:
            value = decode(self._kind, bytes(raw))
            is_newer = known is not None and known.version[0] == meta.uid
            into[key] = _Known(version, sharing_parts(known.value, value) if known is not None and is_newer else value)
        except DecodeError as error:
            # keep the last readable version: a pod that cannot be decoded must not count as removed
            if known is not None:
                into[key] = known
            self._bad = ApiError(0, "Undecodable", f"{self._path}: {key}: {error}")
            log.warning("an object of the API server cannot be read", path=self._path, object=key, error=error)
        return True

    def _meta(self, raw: msgspec.Raw) -> _Meta:
        return self._read(_read_object, raw, "an object without readable metadata").metadata

    def _listed(self, error: ApiError | None) -> Listed[T]:
        return Listed(self._values, self._synced, error)

    # -- changes

    async def _watch(self) -> AsyncGenerator[Listed[T], None]:
        """Yield the set after each change until the stream ends, which is normal. Raises ApiError."""
        asked = int(self._periods.asked * random.uniform(1.0, 2.0))
        query = {
            **self._selectors,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(max(1, asked)),
        }
        failed = self._failures > 0
        stream = await self._client.open(self._path, query)
        began = self._clock.monotonic()
        try:
            if failed:
                yield self._listed(self._bad)
            begun: list[bytes] = []
            async with aclosing(stream.chunks()) as chunks:
                while (chunk := await self._next(chunks)) is not None:
                    self._failures = 0
                    begun.append(chunk)
                    if b"\n" not in chunk:
                        continue
                    received = b"".join(begun)
                    begun.clear()
                    changed, rest = self._events(received)
                    del received, chunk
                    begun = [rest] if rest else []
                    if changed:
                        yield self._listed(self._bad)
        finally:
            stream.close()
        if (
            self._clock.monotonic() - began < TOO_SOON_S
        ):  # a server that ends every watch at once is not asked without a pause
            raise ApiError(0, "WatchEnded", f"{self._path}: the watch ended at once")

    async def _next(self, chunks: AsyncGenerator[bytes, None]) -> bytes | None:
        """The next chunk; None at the end, or if the server has sent nothing for too long."""
        silent = self._periods.silent if self._has_bookmarks else self._periods.silent_at_first
        try:
            async with asyncio.timeout(silent):
                return await anext(chunks, None)
        except TimeoutError:
            log.info("a watch is silent; opening another", path=self._path, silent_s=silent)
            return None

    def _events(self, received: bytes) -> tuple[bool, bytes]:
        """Apply the events of all complete lines. Returns whether they changed the set, and the begun line."""
        *lines, rest = received.split(b"\n")
        del received
        self._values = edited(self._values)
        changed = [self._event(line) for line in lines if line.strip()]
        return any(changed), rest

    def _event(self, line: bytes) -> bool:
        """Apply one event. Returns whether it changed the set."""
        event = self._read(_read_event, line, "the watch sent no event")
        if event.type == "ERROR":
            raise self._refused(event.object)
        meta = self._meta(event.object)
        key, changed = _key(meta), False
        if event.type in ("ADDED", "MODIFIED"):
            changed = self._take(self._known, event.object)
            if key in self._known:
                self._values[key] = self._known[key].value
        elif event.type == "DELETED":
            changed = self._known.pop(key, None) is not None
            self._values.discard(key)
        elif event.type == "BOOKMARK":
            self._has_bookmarks = True
        if meta.resourceVersion:
            self._version = meta.resourceVersion
        return changed

    def _refused(self, raw: msgspec.Raw) -> ApiError:
        from pykubelet.edges.kubeapi.connection import answer_error

        try:
            code = msgspec.json.decode(raw, type=_Code).code
        except msgspec.DecodeError:
            code = 0
        return answer_error(code, bytes(raw), {})


def _key(meta: _Meta) -> str:
    return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name


class _Code(msgspec.Struct, frozen=True):
    code: int = 0


async def follow(
    client: ApiClient,
    path: str,
    kind: type[T],
    clock: Clock,
    *,
    field_selector: str = "",
    label_selector: str = "",
    periods: WatchPeriods | None = None,
    newest: bool = False,
) -> AsyncGenerator[Listed[T], None]:
    """Yield the objects of the collection `path` after every change, without end. Raises nothing.

    `newest`: the first list too comes from the store, not from the server's cache.
    Use it in `contextlib.aclosing`, so that the connection is closed when the reader ends.
    """
    selectors = {"fieldSelector": field_selector, "labelSelector": label_selector}
    given = {name: text for name, text in selectors.items() if text}
    follower = Follower(client, path, kind, clock, given, periods or WatchPeriods(), "" if newest else "0")
    async with aclosing(follower.run()) as all_of_it:
        async for listed in all_of_it:
            yield listed
