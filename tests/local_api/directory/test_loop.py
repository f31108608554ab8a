"""A folder whose files are applied and pruned, against objects in memory."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from local_api.reconcile.world import World

from pykubelet_local_api.directory.folder import Folder
from pykubelet_local_api.directory.loop import DirectoryLoop
from pykubelet_local_api.directory.plan import MANAGER
from pykubelet_local_api.errors import StatusError
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.objects import Json

CONFIG = "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {}}}\ndata: {{a: '{}'}}\n"


class Server:
    """Applies to a world; refuses what a test wants."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.refused: dict[str, str] = {}
        self.applied: list[str] = []
        self.deleted: list[str] = []
        self.has_applied = asyncio.Event()

    async def apply(self, kind: ResourceKind, namespace: str, body: Json, manager: str) -> Json:
        name = body["metadata"]["name"]
        if name in self.refused:
            raise StatusError(422, "Invalid", self.refused[name])
        if manager == MANAGER:
            assert body["metadata"]["annotations"], "an applier without any field is forgotten by the API server"
            self.applied.append(name)
            self.has_applied.set()
        entry: dict[str, Any] = {"manager": manager, "operation": "Apply"}
        return self.world.add(body | {"metadata": body["metadata"] | {"managedFields": [entry]}})

    async def delete(self, kind: ResourceKind, namespace: str, name: str, uid: str) -> Json:
        self.deleted.append(name)
        self.world.remove(kind.storage, namespace, name)
        return {}

    def data(self, name: str, namespace: str = "default") -> dict[str, str] | None:
        found = self.world.get("configmaps", namespace, name)
        return None if found is None else found["data"]


@pytest.fixture
def server() -> Server:
    return Server(World())


def started(tmp_path: Path, server: Server) -> DirectoryLoop:
    return DirectoryLoop(Folder(str(tmp_path)), server, server.world)


async def test_files_are_applied_and_what_leaves_the_folder_is_deleted(tmp_path: Path, server: Server) -> None:
    other = server.world.add(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "theirs", "namespace": "default"}}
    )
    (tmp_path / "a.yaml").write_text(CONFIG.format("a", 1) + "---\n" + CONFIG.format("b", 1))
    (tmp_path / "note.txt").write_text("not a manifest")
    loop = started(tmp_path, server)
    assert await loop.step() == ()
    assert server.data("a") == server.data("b") == {"a": "1"}
    (tmp_path / "a.yaml").write_text(CONFIG.format("a", 2))
    assert await loop.step() == ()
    assert (server.data("a"), server.data("b"), server.deleted) == ({"a": "2"}, None, ["b"])
    assert server.world.get("configmaps", "default", "theirs") == other


async def test_another_process_prunes_what_the_former_one_has_applied(tmp_path: Path, server: Server) -> None:
    (tmp_path / "a.yaml").write_text(CONFIG.format("a", 1))
    await started(tmp_path, server).step()
    (tmp_path / "a.yaml").unlink()
    await started(tmp_path, server).step()
    assert server.deleted == ["a"]


async def test_nothing_is_deleted_while_a_file_cannot_be_read(tmp_path: Path, server: Server) -> None:
    (tmp_path / "a.yaml").write_text(CONFIG.format("a", 1))
    loop = started(tmp_path, server)
    await loop.step()
    (tmp_path / "a.yaml").write_text(": [")
    [problem] = await loop.step()
    assert problem.startswith("a.yaml (document 1): not valid YAML")
    (tmp_path / "a.yaml").unlink()
    (tmp_path / "b.yaml").mkdir()
    assert len(await loop.step()) == 1
    tmp_path.rename(tmp_path.with_name("away"))
    assert len(await loop.step()) == 1
    assert server.deleted == []


async def test_a_file_whose_name_is_not_text_is_named(tmp_path: Path, server: Server) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xff.yaml")).write_text(CONFIG.format("a", 1))
    [problem] = await started(tmp_path, server).step()
    assert problem.startswith(r"'a\udcff.yaml': not the name of a file")
    assert problem.isprintable() and server.applied == []


async def test_what_the_server_refuses_is_named_and_reported(tmp_path: Path, server: Server) -> None:
    (tmp_path / "a.yaml").write_text(CONFIG.format("bad", 1) + "---\n" + CONFIG.format("good", 1))
    server.refused["bad"] = "data: wrong"
    loop = started(tmp_path, server)
    assert await loop.step() == ("a.yaml (document 1): configmaps default/bad: data: wrong",)
    assert server.data("pykubelet-directory", "kube-system") == {
        "directory": str(tmp_path),
        "status": "2 objects, 1 problems",
        "problems": "a.yaml (document 1): configmaps default/bad: data: wrong",
    }
    server.refused.clear()
    assert await loop.step() == ()
    assert (server.data("pykubelet-directory", "kube-system") or {})["problems"] == ""
    assert server.deleted == []


async def test_a_changed_file_is_applied_at_once(tmp_path: Path, server: Server) -> None:
    (tmp_path / "a.yaml").write_text(CONFIG.format("a", 1))
    running = asyncio.create_task(started(tmp_path, server).run())

    async def see(value: str) -> None:
        async with asyncio.timeout(60):
            while server.data("a") != {"a": value}:
                server.has_applied.clear()
                await server.has_applied.wait()

    await see("1")
    for value in ("2", "3"):
        (tmp_path / "a.yaml").write_text(CONFIG.format("a", value))
        await see(value)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
