"""Containers that cannot have the files that they name: why is logged once, however often the start is tried again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from act.pods.node import named, node
from act.pods.scenes import container, pod
from support.logs import logging_restored

from pykubelet.base.kit.log import set_up_logging
from pykubelet.base.model.mounts import MountedVolume

pytestmark = pytest.mark.virtual_time

VOLUMES = [{"name": "data", "emptyDir": {}}]
#: Seconds in which each start is tried six times.
A_MINUTE_S = 62.0


def lines_about(what: str, text: str) -> list[str]:
    return [line for line in text.splitlines() if what in line]


async def test_environment_files_that_are_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = [
        {"name": f"E{n}", "valueFrom": {"fileKeyRef": {"volumeName": "data", "path": f"f{n}", "key": "K"}}}
        for n in range(1000)
    ]
    volume = tmp_path / "volume"
    volume.mkdir()
    with logging_restored():
        set_up_logging(0)
        async with node(tmp_path) as n:
            n.volumes.made = {"data": MountedVolume("data", "emptyDir", str(volume))}
            n.want(named(pod(container(env=env), volumes=VOLUMES), "web"))
            await asyncio.sleep(A_MINUTE_S)
            assert len(n.messages("Failed", "web")) >= 6
            first = capsys.readouterr().err
            for number in range(500):
                (volume / f"f{number}").write_text("K='v'\n")
            await asyncio.sleep(A_MINUTE_S)
            second = capsys.readouterr().err
            for number in range(1000):
                (volume / f"f{number}").write_text("K='v'\n")
            await n.wait_running("web")
    assert ["f0: " in line for line in lines_about("an environment file cannot be read", first)] == [True]
    assert ["f500: " in line for line in lines_about("an environment file cannot be read", second)] == [True]


async def test_a_sub_path_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mounts = [{"name": "data", "mountPath": "/m", "subPath": "file/below"}]
    volume = tmp_path / "volume"
    volume.mkdir()
    (volume / "file").touch()
    with logging_restored():
        set_up_logging(0)
        async with node(tmp_path) as n:
            n.volumes.made = {"data": MountedVolume("data", "emptyDir", str(volume))}
            n.want(named(pod(container(volumeMounts=mounts), volumes=VOLUMES), "web"))
            await asyncio.sleep(A_MINUTE_S)
            assert len(n.messages("Failed", "web")) >= 6
    assert len(lines_about("a subPath is refused", capsys.readouterr().err)) == 1


async def test_paths_that_no_file_can_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = "a/" * 700_000 + "b"
    source = {"fileKeyRef": {"volumeName": "data", "path": long, "key": "K"}}
    mounts = [{"name": "data", "mountPath": "/m", "subPath": long}]
    with logging_restored():
        set_up_logging(0)
        async with node(tmp_path) as n:
            n.volumes.made = {"data": MountedVolume("data", "emptyDir", str(tmp_path))}
            n.want(
                named(pod(container(env=[{"name": "E", "valueFrom": source}]), volumes=VOLUMES), "one"),
                named(pod(container(volumeMounts=mounts), volumes=VOLUMES), "two"),
            )
            await asyncio.sleep(A_MINUTE_S)
            messages = {*n.messages("Failed")}
    assert messages == {
        'Error: the path of the fileKeyRef of "E" is too long: it has more than 4095 bytes',
        'Error: subPath of volumeMount "data" is too long: it has more than 4095 bytes',
    }
    assert len(capsys.readouterr().err) < 20_000
