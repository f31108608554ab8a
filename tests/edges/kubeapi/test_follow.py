"""A listing that stays true while streams are cut, histories forgotten and servers restarted."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import msgspec
import pytest
from support.api_server import ApiFault, FakeApiServer

from pykubelet.base.api.core import ConfigMap, Pod
from pykubelet.base.kit.clock import SystemClock
from pykubelet.edges.kubeapi.client import ApiClient
from pykubelet.edges.kubeapi.listwatch import Listed, WatchPeriods, follow

pytestmark = pytest.mark.virtual_time

MAPS = "/api/v1/namespaces/a/configmaps"
SOON = WatchPeriods(retry=0.02, retry_max=0.1)


class Watcher:
    """A reader of one listing: the newest `Listed`, and how many there were."""

    def __init__(self, client: ApiClient, periods: WatchPeriods = SOON, kind: type[Any] = ConfigMap) -> None:
        path = "/api/v1/pods" if kind is Pod else MAPS
        self._listing = follow(client, path, kind, SystemClock(), periods=periods)
        self.seen = 0

    async def __aenter__(self) -> Watcher:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._listing.aclose()

    async def until(self, wanted: Callable[[Listed[Any]], object]) -> Listed[Any]:
        async with asyncio.timeout(30):
            async for listed in self._listing:
                self.seen += 1
                if wanted(listed):
                    return listed
        raise AssertionError("the listing ended")

    async def until_names(self, *names: str) -> Listed[Any]:
        return await self.until(lambda listed: sorted(listed.items) == [f"a/{name}" for name in names])


def put(server: FakeApiServer, name: str, **data: str) -> None:
    server.create(MAPS, {"metadata": {"name": name}, "data": data})


async def test_a_stream_cut_in_the_middle_of_a_line_loses_nothing(server: FakeApiServer, client: ApiClient) -> None:
    put(server, "x")
    async with Watcher(client) as watcher:
        first = await watcher.until_names("x")
        waiting = asyncio.ensure_future(watcher.until_names("x", "y"))
        await server.wait_watches()
        server.cut_watches(mid_line=True)
        await asyncio.sleep(0.01)
        put(server, "y")
        both = await waiting
    assert both.items["a/x"] is first.items["a/x"]
    assert server.count("GET", MAPS) == sum("watch" in sent.query for sent in server.requests) + 1


async def test_what_a_change_leaves_as_it_was_stays_the_same_object(server: FakeApiServer, client: ApiClient) -> None:
    """A pod with a new status takes no memory for its spec again; a pod that replaces another has nothing of it."""
    path = "/api/v1/namespaces/a/pods"
    item = {"metadata": {"name": "x", "labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    server.create(path, item)
    async with Watcher(client, kind=Pod) as watcher:
        first = (await watcher.until_names("x")).items["a/x"]
        server.update(f"{path}/x/status", lambda pod: pod.update(status={"phase": "Running"}))
        second = (await watcher.until(lambda listed: listed.items["a/x"].status.phase == "Running")).items["a/x"]
        server.delete(f"{path}/x", {"gracePeriodSeconds": 0})
        uid = server.create(path, item)["metadata"]["uid"]
        again = await watcher.until(lambda listed: "a/x" in listed.items and listed.items["a/x"].metadata.uid == uid)
        third = again.items["a/x"]
    assert second.metadata.resourceVersion != first.metadata.resourceVersion
    assert second.spec is first.spec
    assert second.metadata.labels is first.metadata.labels
    assert third.spec == first.spec and third.spec is not first.spec


class Remembered(msgspec.Struct, weakref=True):
    """An object of which the test knows whether it is still in memory."""

    metadata: dict[str, Any]

    def __post_init__(self) -> None:
        IN_MEMORY.add(self)


#: By identity.
IN_MEMORY: weakref.WeakSet[Any] = weakref.WeakSet()
Remembered.__hash__ = object.__hash__  # type: ignore[method-assign]


async def test_nothing_is_kept_of_an_object_that_is_gone(server: FakeApiServer, client: ApiClient) -> None:
    """The next change may be a day away, while watches end and begin."""
    async with Watcher(client, kind=Remembered) as watcher:
        await watcher.until_names()
        asked = asyncio.ensure_future(watcher.until_names("x"))
        await server.wait_watches()
        put(server, "x")
        await asked
        server.cut_watches()
        server.delete(f"{MAPS}/x")
        server.store.expire()
        await watcher.until_names()  # it was listed again
        asked = asyncio.ensure_future(watcher.until_names("y"))
        await server.wait_watches()
        gc.collect()
        assert not IN_MEMORY
        put(server, "y")
        await asked


async def test_an_error_is_reported_while_the_newest_is_unavailable(server: FakeApiServer, client: ApiClient) -> None:
    put(server, "x")
    async with Watcher(client) as watcher:
        await watcher.until_names("x")
        await server.stop()
        lost = await watcher.until(lambda listed: listed.error is not None)
        assert lost.synced and sorted(lost.items) == ["a/x"]
        put(server, "y")
        await server.start()
        back = await watcher.until(lambda listed: listed.error is None and "a/y" in listed.items)
        assert back.items["a/x"] is lost.items["a/x"]


async def test_a_server_that_is_away_at_the_start(server: FakeApiServer, client: ApiClient) -> None:
    await server.stop()
    async with Watcher(client) as watcher:
        first = await watcher.until(lambda listed: True)
        assert not first.synced and first.error is not None and not first.items
        put(server, "x")
        await server.start()
        await watcher.until_names("x")


async def test_a_forgotten_history_is_listed_again_and_unchanged_objects_stay(
    server: FakeApiServer, client: ApiClient
) -> None:
    put(server, "x")
    put(server, "y")
    async with Watcher(client) as watcher:
        first = await watcher.until_names("x", "y")
        await server.stop()
        server.delete(f"{MAPS}/y")
        server.store.expire()
        await server.start()
        after = await watcher.until_names("x")
        assert after.items["a/x"] is first.items["a/x"]
        lists = [sent.query["resourceVersion"] for sent in server.requests if "limit" in sent.query]
        assert lists == ["0", ""]


async def test_a_history_forgotten_while_watching_is_an_error_event(server: FakeApiServer, client: ApiClient) -> None:
    put(server, "x")
    async with Watcher(client) as watcher:
        await watcher.until_names("x")
        waiting = asyncio.ensure_future(watcher.until_names("x", "y"))
        await server.wait_watches()
        server.store.expire()
        put(server, "y")
        await waiting


async def test_events_that_come_together_make_one_listing(server: FakeApiServer, client: ApiClient) -> None:
    async with Watcher(client) as watcher:
        await watcher.until(lambda listed: listed.synced)
        waiting = asyncio.ensure_future(watcher.until(lambda listed: len(listed.items) == 50))
        await server.wait_watches()
        for number in range(50):
            put(server, f"m{number}")
        await waiting
        assert watcher.seen <= 4


async def test_a_silent_stream_is_given_up_and_what_was_missed_is_seen(
    server: FakeApiServer, client: ApiClient
) -> None:
    periods = WatchPeriods(silent=0.2, silent_at_first=0.2, retry=0.02)
    async with Watcher(client, periods) as watcher:
        await watcher.until(lambda listed: listed.synced)
        waiting = asyncio.ensure_future(watcher.until_names("x"))
        await server.wait_watches()
        server.silence_watches()
        put(server, "x")
        await waiting


async def test_bookmarks_move_the_version_a_watch_goes_on_from(server: FakeApiServer, client: ApiClient) -> None:
    async with Watcher(client) as watcher:
        await watcher.until(lambda listed: listed.synced)
        waiting = asyncio.ensure_future(watcher.until_names("x"))
        await server.wait_watches()
        for _ in range(3):
            server.create("/api/v1/namespaces/a/secrets", {"metadata": {"generateName": "s-"}})
        mark = server.store.version
        for _ in range(100):  # one that is cut before the bookmark was read goes on from where it began
            server.send_bookmarks()
            await asyncio.sleep(0.05)
            before = len(server.requests)
            server.cut_watches()
            while len(server.requests) == before:  # noqa: ASYNC110 - the server notifies no caller
                await asyncio.sleep(0.005)
            if server.requests[-1].query["resourceVersion"] == str(mark):
                break
        assert server.requests[-1].query["resourceVersion"] == str(mark)
        put(server, "x")
        await waiting


async def test_what_structs_do_not_know_is_ignored(server: FakeApiServer, client: ApiClient) -> None:
    status = {"phase": "Dreaming", "hologram": {"on": True}, "conditions": [{"type": "Odd", "status": "Maybe"}]}
    container = {"name": "c", "image": "i", "imagePullPolicy": "Sometimes", "antigravity": None}
    path = "/api/v1/namespaces/a/pods"
    server.create(path, {"metadata": {"name": "p", "future": 1}, "spec": {"containers": [container]}})
    server.update(f"{path}/p/status", lambda pod: pod.update(status=status))
    async with Watcher(client, kind=Pod) as watcher:
        listed = await watcher.until_names("p")
    pod = listed.items["a/p"]
    assert pod.status.phase == "Dreaming" and pod.spec.containers[0].imagePullPolicy == "Sometimes"


async def test_one_object_that_cannot_be_read_harms_no_other(server: FakeApiServer, client: ApiClient) -> None:
    put(server, "good")
    put(server, "bad")
    async with Watcher(client) as watcher:
        first = await watcher.until_names("bad", "good")
        server.update(f"{MAPS}/bad", lambda body: body.update(data=["no", "map"]))
        broken = await watcher.until(lambda listed: listed.error is not None)
        assert broken.items == first.items
        server.update(f"{MAPS}/good", lambda body: body.update(data={"k": "v"}))
        await watcher.until(lambda listed: listed.items["a/good"].data == {"k": "v"})


async def test_a_list_in_pages_is_one_set(server: FakeApiServer, client: ApiClient) -> None:
    for number in range(1203):
        put(server, f"m{number:04}")
    server.faults.append(ApiFault(status=410, reason="Expired", watch=True))
    async with Watcher(client) as watcher:
        await watcher.until(lambda listed: len(listed.items) == 1203)
        waiting = asyncio.ensure_future(watcher.until(lambda listed: len(listed.items) == 1204))
        await server.wait_watches()
        put(server, "one-more")
        await waiting
    assert sum("continue" in sent.query for sent in server.requests) == 2


async def test_a_refusing_server_is_asked_at_growing_intervals(server: FakeApiServer, client: ApiClient) -> None:
    server.faults.append(ApiFault(status=500, times=-1))
    listing = follow(client, MAPS, ConfigMap, SystemClock(), periods=WatchPeriods(retry=0.02, retry_max=0.2))
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(30), aclosing(listing):
        async for listed in listing:
            assert not listed.synced
            if len(server.requests) >= 7:
                break
    assert loop.time() - began >= sum((0.02, 0.04, 0.08, 0.16, 0.2, 0.2)) / 2, "spread by half to both sides"


async def test_lists_that_are_expired_too_are_asked_for_at_growing_intervals(
    server: FakeApiServer, client: ApiClient
) -> None:
    """Without pauses, one listing would take all of the agent's requests per second."""
    server.faults.append(ApiFault(status=410, reason="Expired", times=-1))
    async with Watcher(client, WatchPeriods(retry=0.2, retry_max=10.0)) as watcher:
        with pytest.raises(TimeoutError):
            await watcher.until(lambda listed: listed.synced)
    assert 3 <= len(server.requests) <= 14


async def test_a_storm_of_429_is_waited_out_as_long_as_the_server_asks(
    server: FakeApiServer, client: ApiClient
) -> None:
    put(server, "x")
    server.faults.append(ApiFault(status=429, retry_after_s=1))
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with Watcher(client) as watcher:
        refused = await watcher.until(lambda listed: listed.error is not None)
        assert refused.error is not None and refused.error.status == 429
        await watcher.until_names("x")
    assert loop.time() - began >= 0.95
