"""The store: one writer, commits that are whole, versions, and what survives."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pykubelet.base.kit.clock import SystemClock
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.edges.host.fs import files
from pykubelet.edges.host.fs.errors import HostError
from pykubelet_local_api.errors import StatusError
from pykubelet_local_api.store.database import VERSIONS_SKIPPED, Database, Row, StoredKey, StoreError
from pykubelet_local_api.store.history import ChangeType
from pykubelet_local_api.store.store import NoFile, ObjectFile, ObjectStore, Transaction


def key(name: str, namespace: str = "default", resource: str = "configmaps") -> StoredKey:
    return StoredKey(resource, namespace, name)


def config_map(name: str, value: str = "", namespace: str = "default") -> dict[str, Any]:
    return {
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": {"name": name, "namespace": namespace},
        "data": {"key": value},
    }


def putting(name: str, value: str = "", namespace: str = "default") -> Callable[[Transaction], Any]:
    return lambda at: at.put(key(name, namespace), config_map(name, value, namespace))


def removing(name: str) -> Callable[[Transaction], Any]:
    return lambda at: at.remove(key(name))


@asynccontextmanager
async def running(file: ObjectFile | None = None) -> AsyncIterator[ObjectStore]:
    store = ObjectStore(file or NoFile(), SystemClock())
    async with Supervisor("test") as tasks:
        tasks.start_root("writer", store.keep_writing())
        yield store


async def names(store: ObjectStore, version: int = 1 << 60, resource: str = "configmaps") -> list[str]:
    return [name for (_, name), _ in await store.items(resource, version)]


async def test_a_write_is_read_and_has_a_version() -> None:
    async with running() as store:
        before = store.version
        made = await store.write(putting("one", "a"))
        assert made["metadata"]["resourceVersion"] == str(before + 1) == str(store.version)
        assert store.get("configmaps", "default", "one") is made
        assert [found["metadata"]["name"] for found in store.list("configmaps")] == ["one"]


async def test_lists_are_in_the_order_of_namespaces_and_names() -> None:
    async with running() as store:
        for namespace, name in (("b", "x"), ("a", "y"), ("a", "b"), ("b", "a")):
            await store.write(putting(name, namespace=namespace))
        found = [(item["metadata"]["namespace"], item["metadata"]["name"]) for item in store.list("configmaps")]
        assert found == [("a", "b"), ("a", "y"), ("b", "a"), ("b", "x")]
        assert [item["metadata"]["name"] for item in store.list("configmaps", "b")] == ["a", "x"]


async def test_a_list_at_an_older_version_is_as_it_was() -> None:
    async with running() as store:
        await store.write(putting("one", "a"))
        await store.write(putting("two", "a"))
        version = store.version
        await store.write(putting("one", "b"))
        await store.write(putting("one", "c"))
        await store.write(removing("two"))
        await store.write(putting("three"))
        assert await names(store) == ["one", "three"]
        assert await names(store, version) == ["one", "two"]
        assert dict(await store.items("configmaps", version))[("default", "one")]["data"] == {"key": "a"}


async def test_a_write_sees_those_before_it_that_are_not_committed_yet() -> None:
    async with running() as store:

        def counting(at: Transaction) -> int:
            seen = len(list(at.list("configmaps")))
            at.put(key(f"n{seen}"), config_map(f"n{seen}"))
            return seen

        assert await asyncio.gather(*(store.write(counting) for _ in range(120))) == list(range(120))


async def test_an_error_drops_the_writes_of_its_own_request_only() -> None:
    async with running() as store:

        def failing(at: Transaction) -> None:
            at.put(key("bad"), config_map("bad"))
            raise StatusError(409, "Conflict", "no")

        outcomes = await asyncio.gather(
            store.write(putting("one")), store.write(failing), store.write(putting("two")), return_exceptions=True
        )
        assert isinstance(outcomes[1], StatusError)
        assert await names(store) == ["one", "two"]


async def test_a_dry_run_changes_nothing() -> None:
    async with running() as store:
        version = store.version
        assert (await store.write(putting("one"), is_dry_run=True))["metadata"]["name"] == "one"
        assert store.version == version
        assert await names(store) == []


async def test_the_history_has_each_change_with_what_was_before() -> None:
    async with running() as store:
        start = store.version
        await store.write(putting("one", "a"))
        await store.write(putting("one", "b"))
        await store.write(removing("one"))
        changes = store.history.after("configmaps", start)
        assert [change.type for change in changes] == [ChangeType.ADDED, ChangeType.MODIFIED, ChangeType.DELETED]
        assert [change.before and change.before["data"]["key"] for change in changes] == [None, "a", "b"]
        assert [change.version for change in changes] == [start + 1, start + 2, start + 3]


async def test_the_history_forgets_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pykubelet_local_api.store.history.MAX_CHANGES", 100)
    async with running() as store:
        for number in range(250):
            await store.write(putting("one", str(number)))
        kept = store.history.after("configmaps", store.history.oldest)
        assert 80 <= len(kept) <= 100
        assert kept[0].version == store.history.oldest + 1


class FailingFile(NoFile):
    """A file whose next commits fail, as on a full disk."""

    def __init__(self) -> None:
        super().__init__()
        self.failing = False

    def commit(self, rows: Sequence[Row], version: int) -> None:
        if self.failing:
            raise StoreError("database or disk is full")
        super().commit(rows, version)


async def test_a_full_disk_refuses_writes_and_leaves_what_is_there() -> None:
    file = FailingFile()
    async with running(file) as store:
        await store.write(putting("one", "a"))
        version, file.failing = store.version, True
        with pytest.raises(StatusError, match="disk is full") as caught:
            await store.write(putting("one", "b"))
        assert caught.value.code == 503
        assert store.version == version
        assert store.history.after("configmaps", version) == []
        found = store.get("configmaps", "default", "one")
        assert found is not None
        assert found["data"] == {"key": "a"}
        file.failing = False
        await store.write(putting("one", "c"))
        assert store.version == version + 1


async def test_a_reader_is_woken_by_changes_of_its_resource() -> None:
    async with running() as store:
        mine, other = asyncio.Event(), asyncio.Event()
        store.watch("configmaps", mine)
        store.watch("secrets", other)
        await store.write(putting("one"))
        assert mine.is_set()
        assert not other.is_set()


async def test_what_was_answered_is_there_after_a_restart(tmp_path: Path) -> None:
    file = Database(str(tmp_path / "state.db"))
    async with running(file) as store:
        await store.write(putting("one", "a"))
        await store.write(putting("two", "b"))
        await store.write(removing("one"))
        version = store.version
    file.close()
    again = Database(str(tmp_path / "state.db"))
    store = ObjectStore(again, SystemClock())
    assert store.version == version
    assert await names(store) == ["two"]
    assert again.notes == []
    assert (tmp_path / "state.db").stat().st_mode & 0o777 == 0o600
    again.close()


async def test_a_damaged_file_is_replaced_by_its_copy(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    file = Database(str(path))
    async with running(file) as store:
        for number in range(200):
            await store.write(putting(f"n{number:03}", "x" * 200))
        await store.copy()
        version = store.version
    file.close()
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)

    again = Database(str(path))
    store = ObjectStore(again, SystemClock())
    assert len(await names(store)) == 200
    assert store.version > version
    assert "last good copy" in again.notes[0]
    assert (tmp_path / "state.db.damaged").read_bytes() == bytes(data)
    again.close()


def test_a_file_is_not_closed_under_a_commit(tmp_path: Path) -> None:
    file = Database(str(tmp_path / "state.db"))
    rows = [Row(key(f"n{number}"), b'"%b"' % (b"x" * 4000)) for number in range(2000)]
    begun = threading.Event()

    def commit() -> None:
        begun.set()
        file.commit(rows, 2)

    with ThreadPoolExecutor(1) as threads:
        committing = threads.submit(commit)
        begun.wait()
        file.close()
        error = committing.exception()
    assert error is None or "is closed" in str(error)
    again = Database(str(tmp_path / "state.db"))
    assert (again.version, len(list(again.rows()))) in ((1, 0), (2, 2000))
    with pytest.raises(StoreError, match="is closed"):
        file.copy()
    again.close()


def test_a_damaged_file_without_a_copy_stops_the_start_once(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(StoreError, match="is damaged"):
        Database(str(path))
    Database(str(path)).close()  # begins anew; the damaged file is kept
    assert (tmp_path / "state.db.damaged").exists()


@pytest.mark.parametrize("how", ["cut short", "no text"])
def test_an_object_that_cannot_be_read_is_damage_too(tmp_path: Path, how: str) -> None:
    path = tmp_path / "state.db"
    file = Database(str(path))
    file.commit([Row(key("one"), b'{"a":"b"}')], 2)
    file.copy()
    file.commit([Row(key("one"), b'{"a":"' if how == "cut short" else b'{"a":"\xff"}')], 3)
    file.close()
    again = Database(str(path))
    assert [data for _, data in again.rows()] == [b'{"a":"b"}']
    assert "an object is not JSON" in again.notes[0]
    again.close()


def test_a_power_cut_while_the_copy_is_put_in_place_loses_nothing(tmp_path: Path) -> None:
    path, copy = tmp_path / "state.db", tmp_path / "state.db.copy"
    file = Database(str(path))
    file.commit([Row(key("one"), b"1")], 2)
    file.copy()
    file.close()
    path.rename(tmp_path / "state.db.damaged")
    again = Database(str(path))
    assert [data for _, data in again.rows()] == [b"1"]
    assert again.version == 2 + VERSIONS_SKIPPED
    assert not copy.exists()
    again.close()


def test_the_copy_has_its_higher_version_before_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.db"
    file = Database(str(path))
    file.commit([Row(key("one"), b"1")], 2)
    file.copy()
    file.close()
    path.write_bytes(b"no database" * 1000)
    rename = files.rename

    def cut(source: str, target: str) -> None:
        rename(source, target)
        if target == str(path):
            raise HostError("rename", source, "EIO", "the power is cut")

    monkeypatch.setattr("pykubelet.edges.host.fs.files.rename", cut)
    with pytest.raises(StoreError):
        Database(str(path))
    monkeypatch.undo()
    again = Database(str(path))
    assert again.version == 2 + VERSIONS_SKIPPED
    again.close()


def test_the_copy_is_the_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        file = Database(str(tmp_path / "state.db"))
        file.copy()
        file.close()
    finally:
        os.umask(before)
    assert (tmp_path / "state.db.copy").stat().st_mode & 0o777 == 0o600


def test_a_file_of_a_newer_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    file = Database(str(path))
    file._connection.execute("PRAGMA user_version = 99")
    file.close()
    with pytest.raises(StoreError, match="newer version"):
        Database(str(path))
