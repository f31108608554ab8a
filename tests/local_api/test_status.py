"""`pykubelet local-api status` against a running API."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from local_api.server import serving

from pykubelet_local_api.directory.loop import REPORT
from pykubelet_local_api.program import main
from pykubelet_local_api.wiring import LocalApi


async def reported(api: LocalApi, status: str) -> None:
    """Wait for a report."""
    wakeup = asyncio.Event()
    api.store.watch("configmaps", wakeup)
    async with asyncio.timeout(60):
        while (api.store.get("configmaps", "kube-system", REPORT) or {}).get("data", {}).get("status") != status:
            await wakeup.wait()
            wakeup.clear()
    api.store.unwatch("configmaps", wakeup)


async def test_problems_of_the_files_that_are_applied_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, applied = tmp_path / "data", tmp_path / "applied"
    applied.mkdir()
    shop = applied / "shop.yaml"
    shop.write_text("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: shop}\n")
    async with serving(data, apply_dir=str(applied)) as api:
        await reported(api, "0 objects, 1 problems")
        assert await asyncio.to_thread(main, ["status", "--data-dir", str(data)]) == 1
        assert capsys.readouterr().out == (
            f"Applied from {applied}: 0 objects, 1 problems\n"
            '  shop.yaml (document 1): no matches for kind "Deployment" in version "apps/v1": this API does not have it\n'
        )
        shop.write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: shop}\n")
        await reported(api, "1 objects, 0 problems")
        assert await asyncio.to_thread(main, ["status", "--data-dir", str(data)]) == 0
        assert capsys.readouterr().out == f"Applied from {applied}: 1 objects, 0 problems\n"
        applied.rename(tmp_path / "away")
        await reported(api, "0 objects, 1 problems")
        assert await asyncio.to_thread(main, ["status", "--data-dir", str(data)]) == 1
        assert str(applied) in capsys.readouterr().out.splitlines()[1]
    assert await asyncio.to_thread(main, ["status", "--data-dir", str(data)]) == 1
    assert capsys.readouterr().err.startswith("Error: ")


async def test_an_api_without_a_folder_has_no_problems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(tmp_path):
        assert await asyncio.to_thread(main, ["status", "--data-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "No folder is applied: the API runs without --apply-dir\n"


def test_a_folder_without_an_api_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--data-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith(f"Error: cannot use {tmp_path}: ")
