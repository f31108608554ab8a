"""Manifests that are missing in a listing for which no event has arrived yet."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.virtual_time import virtual_clock

from pykubelet.base.kit.flight import SingleFlight
from pykubelet.desired.sources.decode import ManifestRules
from pykubelet.desired.sources.manifests import SETTLE_S, Manifests

pytestmark = pytest.mark.virtual_time

POD = "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}"


def stand(folder: Path) -> tuple[Manifests, Path]:
    file = folder / "a.yaml"
    file.write_text(POD)
    return Manifests(str(folder), ManifestRules("n"), SingleFlight("test"), virtual_clock()), file


async def test_a_renamed_file_counts_before_the_event_arrives(tmp_path: Path) -> None:
    manifests, file = stand(tmp_path)
    before = await manifests.scan(set(), settle=False)
    file.rename(tmp_path / "a.yaml~")
    early = await manifests.scan(set(), settle=True, touched=set())
    assert early.pods == before.pods and early.unsettled
    manifests.note_renamed({"a.yaml": "a.yaml~"})
    assert (await manifests.scan(set(), settle=True, touched={"a.yaml", "a.yaml~"})).pods == before.pods
    file.write_text(POD)
    assert (await manifests.scan({"a.yaml"}, settle=True, touched={"a.yaml"})).pods == before.pods


async def test_a_missing_file_without_an_event_counts_for_a_moment_only(tmp_path: Path) -> None:
    manifests, file = stand(tmp_path)
    before = await manifests.scan(set(), settle=False)
    file.unlink()
    assert (await manifests.scan(set(), settle=True)).pods == before.pods
    await asyncio.sleep(SETTLE_S)
    after = await manifests.scan(set(), settle=True)
    assert not after.pods and not after.unsettled


async def test_a_file_that_was_removed_is_gone_at_once(tmp_path: Path) -> None:
    manifests, file = stand(tmp_path)
    await manifests.scan(set(), settle=False)
    file.unlink()
    manifests.note_removed({"a.yaml"})
    assert not (await manifests.scan(set(), settle=True)).pods
