"""The command line of `pykubelet images adopt`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from images.fake_containerd import FakeContainerd, serving
from support.oci import Json, Layout, built_of

from pykubelet.edges.host.proc.procfs import read_architecture
from pykubelet_images import program

APP = "docker.io/library/app:1"


def built(mark: str) -> tuple[Layout, Json]:
    configuration = {"architecture": read_architecture(), "os": "linux"}
    return built_of(json.dumps(configuration).encode(), [mark.encode()])


async def ran(path: str, *argv: str) -> int:
    """The exit code."""
    return await program.run(program.build_parser().parse_args(["adopt", "--containerd-socket", path, *argv]))


async def test_each_image_is_reported_with_its_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake = FakeContainerd()
    index = built("app")
    fake.load(APP, *index)
    digest = index[1]["digest"]
    async with serving(fake, tmp_path) as path:
        assert await ran(f"unix://{path}", "app:1", "x y", "missing") == 1
        out, err = capsys.readouterr()
        assert out == f"{APP} adopted: {digest}\n"
        assert [line.partition(": ")[2][:40] for line in err.splitlines()] == [
            'couldn\'t parse image name "x y": invalid',
            "no image docker.io/library/missing:lates",
        ]
        assert await ran(path, "app:1") == 0
        assert capsys.readouterr().out == f"{APP} unchanged: {digest}\n"
        fake.load(APP, *built("moved"))
        assert await ran(path, "app:1") == 0
        assert capsys.readouterr().out.endswith(f", instead of {digest}\n")


async def test_all_images_with_a_name_are_adopted(tmp_path: Path) -> None:
    fake = FakeContainerd()
    digest = built("dangling")[1]["digest"]
    for name in (APP, "localhost/other:2", f"moby-dangling@{digest}", digest, f"docker.io/library/app@{digest}"):
        fake.load(name, *built(name))
    async with serving(fake, tmp_path) as path:
        assert await ran(path, "--all") == 0
    assert sorted(fake.spaces["k8s.io"].images) == [APP, f"docker.io/library/app@{digest}", "localhost/other:2"]


async def test_a_containerd_without_the_cri_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake = FakeContainerd(has_cri=False)
    fake.load(APP, *built("app"))
    async with serving(fake, tmp_path) as path:
        assert await ran(path, "app:1") == 1
        assert 'remove "cri" from disabled_plugins' in capsys.readouterr().err
        assert await ran(path, "app:1", "--namespace", "mine") == 0
    assert [name for name, space in fake.spaces.items() if space.images] == ["moby", "mine"]


async def test_other_sockets_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert await ran(str(tmp_path / "none"), "app") == 1
    assert "containerd does not answer at" in capsys.readouterr().err
    assert await ran("relative", "app") == 1
    assert "must be an absolute path" in capsys.readouterr().err
    fake = FakeContainerd()
    fake.offers_images = False
    async with serving(fake, tmp_path) as path:
        assert await ran(path, "app") == 1
    assert f"Error: {path} is not containerd's socket: " in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["adopt"], ["adopt", "app", "--all"], []])
def test_names_or_all_are_needed(argv: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        program.main(argv)
