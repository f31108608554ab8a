"""The records of postStart hooks on disk: over a restart, a damaged file, a full disk."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pykubelet.act.pods.hooks import FILE, HookRecords
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.model.ids import PodUID

WEB, DB = PodUID("uid-web"), PodUID("uid-db")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for uid in (WEB, DB):
        (tmp_path / "pods" / uid).mkdir(parents=True)
    return tmp_path


def loaded(root: Path) -> HookRecords:
    records = HookRecords(str(root), SingleFlight("test"))
    records.load(str(root / "pods"))
    return records


async def test_a_hook_that_began_is_known_after_a_restart_until_it_ends(root: Path) -> None:
    records = loaded(root)
    await records.begin(WEB, "app", 3)
    await records.begin(DB, "app", 0)
    assert (loaded(root).of(WEB), loaded(root).of(DB)) == ({"app": 3}, {"app": 0})
    await records.end(WEB, "app")
    assert (loaded(root).of(WEB), loaded(root).of(DB)) == ({}, {"app": 0})
    await records.forget(DB)
    assert not (root / FILE).exists()


async def test_hooks_of_many_pods_at_once(root: Path) -> None:
    records = loaded(root)
    await asyncio.gather(*(records.begin(WEB, f"c{number}", number) for number in range(50)))
    assert loaded(root).of(WEB) == {f"c{number}": number for number in range(50)}
    await asyncio.gather(*(records.end(WEB, f"c{number}") for number in range(49)))
    assert loaded(root).of(WEB) == {"c49": 49}


async def test_hooks_of_pods_that_are_gone_are_forgotten(root: Path) -> None:
    await loaded(root).begin(WEB, "app", 0)
    (root / "pods" / WEB).rmdir()
    assert loaded(root).of(WEB) == {}


@pytest.mark.parametrize("damage", [b"", b"{", b"pykubelet-checkpoint 1 2 x\n[]", b"\xff" * 100])
async def test_a_damaged_file_is_set_aside(root: Path, damage: bytes) -> None:
    (root / FILE).write_bytes(damage)
    records = loaded(root)
    assert records.of(WEB) == {}
    assert (root / f"{FILE}.corrupt-0").read_bytes() == damage
    await records.begin(WEB, "app", 0)
    assert loaded(root).of(WEB) == {"app": 0}


async def test_a_file_of_another_content_is_not_used(root: Path) -> None:
    await loaded(root).begin(WEB, "app", 0)
    text = (root / FILE).read_bytes()
    (root / FILE).write_bytes(text.replace(b'"app":0', b'"app":1'))
    assert loaded(root).of(WEB) == {}, "the checksum does not match"


async def test_a_hook_runs_although_it_cannot_be_recorded(root: Path) -> None:
    records = loaded(root)
    (root / FILE).mkdir()
    await records.begin(WEB, "app", 0)
    (root / FILE).rmdir()
    await records.begin(DB, "app", 1)
    assert (loaded(root).of(WEB), loaded(root).of(DB)) == ({"app": 0}, {"app": 1}), "written when it can be"


async def test_a_record_is_written_though_its_sync_is_cut_off(root: Path) -> None:
    records = loaded(root)
    beginning = asyncio.ensure_future(records.begin(WEB, "app", 0))
    await asyncio.sleep(0)
    beginning.cancel()
    await asyncio.wait((beginning,))
    assert loaded(root).of(WEB) == {"app": 0}
