"""Sub-paths: links that stay inside are followed, nothing leads out, also not in a race."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.cost import count_instructions

from pykubelet.edges.host.fs import files, libc, mounts, subpaths
from pykubelet.edges.host.fs.errors import HostError


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("secret")
    here = tmp_path / "volume"
    (here / "a" / "b").mkdir(parents=True)
    (here / "a" / "f").write_text("inside")
    return here


@pytest.fixture(params=["openat2", "without openat2"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "openat2":
        monkeypatch.setattr(libc, "openat2", lambda *_: None)


def content(volume: Path, relative: str) -> str:
    descriptor = subpaths.open_beneath(str(volume), relative)
    try:
        with open(f"/proc/self/fd/{descriptor}", encoding="utf-8") as file:
            return file.read()
    finally:
        os.close(descriptor)


@pytest.mark.usefixtures("kernel")
def test_plain_paths_and_links_that_stay_inside(volume: Path) -> None:
    assert content(volume, "a/f") == "inside"
    os.symlink("f", volume / "a" / "relative")
    os.symlink(volume / "a", volume / "absolute")
    assert content(volume, "a/relative") == "inside"
    assert content(volume, "absolute/f") == "inside"
    descriptor = subpaths.open_beneath(str(volume), ".")
    assert subpaths.kind_is_directory(descriptor)
    os.close(descriptor)


#: Of a path whose links are followed as far as they may be.
MOST_INSTRUCTIONS = 10_000_000


def make_chain(volume: Path, number: int) -> str:
    """So many links in one path, each of which has a target as long as a path may be. Returns the path."""
    for link in range(number):
        os.symlink("b/../" * 818 + "b", volume / "a" / f"x{link}")
    os.symlink("/".join(f"x{link}/.." for link in range(number - 1)), volume / "a" / "first")
    return "a/first"


def test_as_many_links_are_followed_as_the_kernel_follows(volume: Path) -> None:
    assert content(volume, f"{make_chain(volume, files.MAX_LINKS)}/f") == "inside"


def test_more_links_are_refused_soon(volume: Path) -> None:
    path = f"{make_chain(volume, 500)}/f"

    def read() -> None:
        with pytest.raises(HostError) as caught:
            content(volume, path)
        assert caught.value.errno_name == "ELOOP"
        assert path in str(caught.value)

    assert count_instructions(read) < MOST_INSTRUCTIONS


def test_a_path_that_links_make_too_long_is_refused(volume: Path) -> None:
    os.symlink("m/" * 2000 + "e", volume / "long")
    path = "long/" + "m/" * 2000
    with pytest.raises(HostError) as caught:
        subpaths.open_beneath(str(volume), path + "n" * 200)
    assert caught.value.errno_name == "ENAMETOOLONG"


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("target", ["../secret", "/etc", "a/../../secret", "/proc/self/root/etc"])
def test_links_that_lead_out_are_refused(volume: Path, target: str) -> None:
    os.symlink(target, volume / "out")
    for path in ("out", "out/key", "out/new/deep"):
        with pytest.raises(HostError) as caught:
            subpaths.make_beneath(str(volume), path, 0o755)
        assert caught.value.errno_name == "EXDEV"
    with pytest.raises(HostError) as caught:
        subpaths.open_beneath(str(volume), "out")
    assert caught.value.errno_name == "EXDEV"
    assert os.listdir(volume.parent / "secret") == ["key"]


@pytest.mark.parametrize("path", ["../secret", "a/../../secret", "/etc", "a/.."])
def test_paths_must_be_relative_and_without_dots(volume: Path, path: str) -> None:
    actions: tuple[Callable[[], object], ...] = (
        lambda: subpaths.open_beneath(str(volume), path),
        lambda: make(volume, path),
    )
    for action in actions:
        with pytest.raises(HostError) as caught:
            action()
        assert caught.value.errno_name == "EXDEV"


def make(volume: Path, path: str) -> int:
    subpaths.make_beneath(str(volume), path, 0o755)
    return 0


@pytest.mark.usefixtures("kernel")
def test_missing_is_an_error_and_can_be_made_with_the_mode(volume: Path) -> None:
    with pytest.raises(HostError) as caught:
        subpaths.open_beneath(str(volume), "new/dir")
    assert caught.value.is_not_found
    subpaths.make_beneath(str(volume), "new/dir", 0o2777)
    subpaths.make_beneath(str(volume), "new/dir", 0o700)
    assert (volume / "new" / "dir").stat().st_mode & 0o7777 == 0o2777
    os.symlink("b", volume / "a" / "inner")
    subpaths.make_beneath(str(volume), "a/inner/c", 0o755)
    assert (volume / "a" / "b" / "c").is_dir()
    with pytest.raises(HostError) as caught:
        subpaths.make_beneath(str(volume), "a/f/x", 0o755)
    assert caught.value.is_not_found


@pytest.mark.usefixtures("kernel")
def test_a_volume_that_is_itself_behind_a_link(volume: Path) -> None:
    os.symlink(volume, volume.parent / "alias")
    assert content(volume.parent / "alias", "a/f") == "inside"


def swapping(volume: Path, until: threading.Event) -> Callable[[], None]:
    """Exchange a directory and a link out of the volume as fast as possible."""
    exchange = ctypes.CDLL(None).renameat2

    def swap() -> None:
        directory, link = (os.fsencode(volume / name) for name in ("a", "link"))
        while not until.is_set():
            exchange(-100, directory, -100, link, 2)

    return swap


@pytest.mark.usefixtures("kernel")
def test_a_race_never_wins(volume: Path) -> None:
    (volume / "a" / "key").write_text("inside")
    os.symlink(volume.parent / "secret", volume / "link")
    over = threading.Event()
    thread = threading.Thread(target=swapping(volume, over))
    thread.start()
    outcomes = set()
    try:
        for _ in range(1500):
            try:
                outcomes.add(content(volume, "a/key"))
                subpaths.make_beneath(str(volume), "a/made", 0o755)
            except HostError as error:
                outcomes.add(error.errno_name)
    finally:
        over.set()
        thread.join()
    assert "inside" in outcomes
    assert "secret" not in outcomes
    assert os.listdir(volume.parent / "secret") == ["key"]


@pytest.mark.integration
def test_bind_of_the_descriptor_is_of_what_was_opened(volume: Path) -> None:
    target = volume.parent / "target"
    target.touch()
    descriptor = subpaths.open_beneath(str(volume), "a/f")
    os.rename(volume / "a", volume / "was-a")
    os.symlink(volume.parent / "secret", volume / "a")
    mounts.bind_fd(descriptor, str(target))
    os.close(descriptor)
    try:
        assert target.read_text() == "inside"
    finally:
        mounts.unmount(str(target))


def test_a_chain_of_too_many_links_is_refused(volume: Path) -> None:
    (volume / "0").symlink_to("a")
    for number in range(1, 3000):
        (volume / str(number)).symlink_to(str(number - 1))
    with pytest.raises(HostError) as error:
        subpaths.open_beneath(str(volume), "2999")
    assert error.value.errno_name == "ELOOP"
