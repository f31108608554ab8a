"""The command `pykubelet csi-local`: serves until it is stopped, and creates, expands and deletes volumes by hand."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from csi_local.stand import staging
from support.csi import CsiProcess

from pykubelet.base.api.codec import from_object
from pykubelet.base.api.documents import load_document
from pykubelet.base.api.storage import CSIPersistentVolumeSource, PersistentVolume
from pykubelet.edges.csi.node import CsiNode
from pykubelet_csi_local.driver import main

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")


async def test_people_create_expand_and_delete_volumes(
    top: Path, driver: CsiProcess, node: CsiNode, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run(*argv: str) -> tuple[int, str]:
        code = await asyncio.to_thread(main, [*argv, "--root-dir", str(top / "root")])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    for name, options in (("data", ("--backing", "image")), ("disk", ("--block",))):
        code, manifest = await run("create", name, "--size", "8Mi", *options)
        volume = from_object(PersistentVolume, load_document(manifest.encode()))
        assert (code, volume.metadata.name, volume.spec.capacity) == (0, name, {"storage": "8Mi"})
        assert volume.spec.csi == CSIPersistentVolumeSource(driver=driver.name, volumeHandle=name)
        assert (volume.spec.volumeMode == "Block") == (name == "disk")
    assert [line.split() for line in (await run("list"))[1].splitlines()] == [
        ["NAME", "SIZE", "BACKING"],
        ["data", "8Mi", "image"],
        ["disk", "8Mi", "image"],
    ]
    assert await run("expand", "data", "--size", "16Mi") == (
        0,
        "data has 16Mi; its file system grows when it is mounted next\n",
    )
    await node.stage(staging(top, "data"))
    code, text = await run("delete", "data")
    assert code == 1 and "the volume is still in use at" in text
    await node.unstage("data", str(top / "staged"))
    assert await run("delete", "data") == (0, "data deleted\n")
    assert driver.volumes() == ["disk"]
    code, text = await run("create", "No Name")
    assert code == 1 and "lower-case" in text
    await driver.kill()
    code, text = await run("list")
    assert code == 1 and "Does the driver run?" in text


@asynccontextmanager
async def command(top: Path, *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pykubelet.app.cli", "csi-local"),
        *("--root-dir", str(top / "root"), "--data-dir", str(top / "data")),
        *options,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_the_command_serves_until_it_is_stopped_and_removes_its_sockets(top: Path) -> None:
    async with command(top) as process:
        assert process.stderr is not None
        async with asyncio.timeout(30):
            lines = ""
            while lines.count("serving") < 2:
                lines += (await process.stderr.readline()).decode()
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    assert [path for path in (top / "root").rglob("*") if not path.is_dir()] == []


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--driver-name", "a/b"), 1, "Error: --driver-name 'a/b'"),
        (("--max-ephemeral-size", "-1"), 1, "Error: --max-ephemeral-size: must be 0 or between"),
        (("--max-ephemeral-size", "17Ti"), 1, "Error: --max-ephemeral-size: must be 0 or between"),
        (("--max-ephemeral-size", "1k"), 1, "Error: --max-ephemeral-size: must be 0 or between"),
        (("--max-ephemeral-size", "1Mi"), 1, "Error: --default-ephemeral-size: must be between"),
        (("--default-ephemeral-size", "0"), 1, "Error: --default-ephemeral-size: must be between"),
        (("--default-ephemeral-size", "x"), 2, "argument --default-ephemeral-size: "),
    ],
)
async def test_the_command_refuses_options_that_cannot_work(
    top: Path, options: tuple[str, ...], code: int, message: str
) -> None:
    async with command(top, *options) as process:
        _, error = await process.communicate()
    assert process.returncode == code
    assert message in error.decode()
