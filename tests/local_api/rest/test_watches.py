"""Watches: every change once and in order, bookmarks, and the errors of what is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest

from pykubelet.base.kit.clock import SystemClock
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.net.http.wire import Request
from pykubelet_local_api.errors import StatusError
from pykubelet_local_api.kinds.table import STORED
from pykubelet_local_api.rest.formats import negotiate
from pykubelet_local_api.rest.options import read_list_options
from pykubelet_local_api.rest.parts import AnswerParts, PartsOfUsers
from pykubelet_local_api.rest.reads import selected
from pykubelet_local_api.rest.shared_lines import SharedLines
from pykubelet_local_api.rest.watches import LINES_AT_ONCE, WatchRequest, WatchStream
from pykubelet_local_api.store.database import StoredKey
from pykubelet_local_api.store.store import NoFile, ObjectStore

KIND = STORED["configmaps"]


@pytest.fixture
async def store() -> AsyncIterator[ObjectStore]:
    made = ObjectStore(NoFile(), SystemClock())
    async with Supervisor("test") as tasks:
        tasks.start_root("writer", made.keep_writing())
        yield made


async def put(store: ObjectStore, name: str, namespace: str = "a", **labels: str) -> None:
    found: dict[str, Any] = {"kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace, "labels": labels}}
    await store.write(lambda at: at.put(StoredKey("configmaps", namespace, name), found))


async def remove(store: ObjectStore, name: str, namespace: str = "a") -> None:
    await store.write(lambda at: at.remove(StoredKey("configmaps", namespace, name)))


def watch(store: ObjectStore, namespace: str = "", name: str = "", **parameters: str) -> WatchStream:
    options = read_list_options(Request("GET", "/", urlencode({"watch": "true", **parameters})), is_watch=True)
    accepted = negotiate(Request("GET", "/"), KIND, "watch")
    watched = WatchRequest(KIND, namespace, name, selected(KIND, options), options, accepted)
    return WatchStream(store, watched, AnswerParts(PartsOfUsers(), "u", lambda: None), SharedLines())


async def read(stream: WatchStream, number: int) -> list[Any]:
    """The next events."""
    found: list[Any] = []
    async with asyncio.timeout(5):
        while len(found) < number:
            found += [msgspec.json.decode(line) for line in (await anext(stream)).splitlines()]
    return found


def short(events: list[Any]) -> list[str]:
    return [f"{event['type']} {event['object']['metadata'].get('name', '')}".strip() for event in events]


async def test_a_watch_without_a_version_begins_with_what_there_is(store: ObjectStore) -> None:
    await put(store, "one")
    stream = watch(store)
    assert short(await read(stream, 1)) == ["ADDED one"]
    await put(store, "two")
    await put(store, "one", x="1")
    await remove(store, "two")
    assert short(await read(stream, 3)) == ["ADDED two", "MODIFIED one", "DELETED two"]
    await stream.aclose()


async def test_a_watch_from_a_version_has_all_later_changes_in_order(store: ObjectStore) -> None:
    await put(store, "old")
    version = store.version
    for number in range(LINES_AT_ONCE * 2 + 5):
        await put(store, f"n{number}")
    stream = watch(store, resourceVersion=str(version))
    events = await read(stream, LINES_AT_ONCE * 2 + 5)
    assert short(events) == [f"ADDED n{number}" for number in range(LINES_AT_ONCE * 2 + 5)]
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events]
    assert versions == sorted(versions)
    await stream.aclose()


async def test_an_object_enters_and_leaves_a_selector(store: ObjectStore) -> None:
    stream = watch(store, labelSelector="app=x", resourceVersion=str(store.version))
    await put(store, "one")
    await put(store, "one", app="x")
    await put(store, "one", app="x", more="1")
    await put(store, "one", app="y")
    await put(store, "one", app="x")
    await remove(store, "one")
    found = await read(stream, 5)
    assert short(found) == ["ADDED one", "MODIFIED one", "DELETED one", "ADDED one", "DELETED one"]
    # the object is shown as it was when it fitted, with the version of the change
    assert found[2]["object"]["metadata"]["labels"] == {"app": "x", "more": "1"}
    assert found[2]["object"]["metadata"]["resourceVersion"] > found[1]["object"]["metadata"]["resourceVersion"]
    await stream.aclose()


async def test_a_watch_of_one_object_or_namespace_sees_no_other(store: ObjectStore) -> None:
    start = str(store.version)
    of_object, of_b = watch(store, "a", "one", resourceVersion=start), watch(store, "b", resourceVersion=start)
    await put(store, "two")
    await put(store, "one")
    await put(store, "three", "b")
    assert short(await read(of_object, 1)) == ["ADDED one"]
    assert short(await read(of_b, 1)) == ["ADDED three"]
    await of_object.aclose()
    await of_b.aclose()


async def test_a_streamed_list_ends_with_a_bookmark(store: ObjectStore) -> None:
    await put(store, "one")
    stream = watch(
        store,
        sendInitialEvents="true",
        resourceVersionMatch="NotOlderThan",
        allowWatchBookmarks="true",
        resourceVersion="",
    )
    events = await read(stream, 2)
    assert short(events) == ["ADDED one", "BOOKMARK"]
    assert events[1]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert events[1]["object"]["metadata"]["resourceVersion"] == str(store.version)
    await stream.aclose()


@pytest.mark.virtual_time
async def test_bookmarks_come_while_nothing_happens_and_at_the_end(store: ObjectStore) -> None:
    stream = watch(store, allowWatchBookmarks="true", timeoutSeconds="200", resourceVersion=str(store.version))
    events = [msgspec.json.decode(line) async for lines in stream for line in lines.splitlines()]
    assert {event["type"] for event in events} == {"BOOKMARK"}
    assert 3 <= len(events) <= 4


@pytest.mark.virtual_time
async def test_a_watch_without_bookmarks_gets_none(store: ObjectStore) -> None:
    stream = watch(store, timeoutSeconds="200", resourceVersion=str(store.version))
    assert [lines async for lines in stream if lines] == []


async def test_a_watch_from_a_forgotten_version_gets_410(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    start = str(store.version)
    monkeypatch.setattr("pykubelet_local_api.store.history.MAX_CHANGES", 2)
    for number in range(5):
        await put(store, f"n{number}")
    (event,) = await read(watch(store, resourceVersion=start), 1)
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")


async def test_a_watch_that_reads_too_slowly_gets_410(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pykubelet_local_api.store.history.MAX_CHANGES", 10)
    stream = watch(store, resourceVersion=str(store.version))
    await put(store, "first")
    assert short(await read(stream, 1)) == ["ADDED first"]
    for number in range(30):
        await put(store, f"n{number}")
    (event,) = await read(stream, 1)
    assert event["object"]["code"] == 410


async def test_a_closed_watch_leaves_nothing_behind(store: ObjectStore) -> None:
    stream = watch(store)
    await read(stream, 0)
    await stream.aclose()
    assert store.watchers("configmaps") == 0


async def test_a_streamed_list_from_the_future_is_an_error_before_the_stream(store: ObjectStore) -> None:
    with pytest.raises(StatusError, match="Too large resource version"):
        watch(
            store,
            sendInitialEvents="true",
            resourceVersionMatch="NotOlderThan",
            resourceVersion=str(store.version + 5),
        )
