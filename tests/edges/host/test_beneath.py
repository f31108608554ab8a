"""Files below a directory of the agent: what any name can lead to."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.opens import observed_opens

from pykubelet.base.model.paths import Beneath, log_file
from pykubelet.edges.host.fs import beneath
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import FileKind

CALLS: dict[str, Callable[[Beneath], object]] = {
    "stat_file": beneath.stat_file,
    "list_dir": beneath.list_dir,
    "list_entries": beneath.list_entries,
    "read_link": beneath.read_link,
    "read_bytes": lambda place: beneath.read_bytes(place, 100),
    "read_tail": lambda place: beneath.read_tail(place, 100),
    "open_regular": lambda place: os.close(beneath.open_regular(place)),
    "read_disk_usage": beneath.read_disk_usage,
    "make_dirs": beneath.make_dirs,
    "create_file": beneath.create_file,
    "write_atomic": lambda place: beneath.write_atomic(place, b"new"),
    "write_in_place": lambda place: beneath.write_in_place(place, b"new"),
    "sync_file": beneath.sync_file,
    "replace_symlink": lambda place: beneath.replace_symlink("/etc", place),
    "rename": lambda place: beneath.rename(place, "renamed"),
    "change_mode": lambda place: beneath.change_mode(place, 0o700),
    "change_owner": lambda place: beneath.change_owner(place, -1, -1),
    "remove_file": beneath.remove_file,
    "remove_dir": beneath.remove_dir,
    "remove_tree": beneath.remove_tree,
    "remove_temporaries": beneath.remove_temporaries,
    "gzip_file": beneath.gzip_file,
    "apply_group": lambda place: beneath.apply_group(place, os.getgid()),
    "group_is_applied": lambda place: beneath.group_is_applied(place, os.getgid()),
}
NAMES = st.sampled_from(
    ["..", ".", "", "a", "file", "link", "up", "new", "\0", "\ud800", "\udc80", "n" * 300, "a/../.."]
)


def fill(top: Path) -> dict[str, tuple[int, bytes]]:
    """A directory `own` beside a secret, with links that lead out of it. Returns what is outside of `own`."""
    (top / "own" / "a").mkdir(parents=True)
    (top / "own" / "a" / "file").write_bytes(b"text")
    (top / "secret").mkdir()
    (top / "secret" / "file").write_bytes(b"secret")
    (top / "own" / "link").symlink_to(top / "secret")
    (top / "own" / "up").symlink_to("../secret")
    (top / "own" / "file").symlink_to(top / "secret" / "file")
    return outside(top)


def outside(top: Path) -> dict[str, tuple[int, bytes]]:
    found = {}
    for where, directories, files in os.walk(top):
        if Path(where) == top:
            directories.remove("own")
        for name in (*directories, *files):
            path = Path(where, name)
            status = os.lstat(path)
            found[str(path)] = (status.st_mode, path.read_bytes() if stat.S_ISREG(status.st_mode) else b"")
    return found


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(sorted(CALLS)), st.lists(NAMES, min_size=1, max_size=4))
def test_no_name_leads_out_of_the_directory(
    tmp_path_factory: pytest.TempPathFactory, call: str, names: list[str]
) -> None:
    top = tmp_path_factory.mktemp("top")
    before = fill(top)
    place = Beneath(f"{top}/own", "/".join(names))
    try:
        result = CALLS[call](place)
    except HostError as error:
        result = str(error)
    assert outside(top) == before
    assert result != b"secret"
    if call in ("list_dir", "list_entries"):
        assert "secret" not in str(result).replace(str(place), "")


@pytest.mark.parametrize("call", sorted(CALLS))
def test_a_directory_that_is_a_link_is_named_as_the_reason(tmp_path: Path, call: str) -> None:
    fill(tmp_path)
    with pytest.raises(
        HostError, match="link/file: a part of the path is a symbolic link, which is not followed"
    ) as caught:
        CALLS[call](Beneath(f"{tmp_path}/own", "link/file"))
    assert caught.value.errno_name == "ELOOP"


@pytest.mark.parametrize("call", sorted(CALLS))
@pytest.mark.parametrize(
    ("name", "reason"), [("a/../x", "must not contain '..'"), ("a\0b", "no file name"), ("\ud800", "no file")]
)
def test_names_that_no_file_has_are_errors(tmp_path: Path, call: str, name: str, reason: str) -> None:
    fill(tmp_path)
    with pytest.raises(HostError, match=reason):
        CALLS[call](Beneath(f"{tmp_path}/own", name))


@pytest.mark.parametrize("call", ["remove_file", "remove_dir", "remove_tree"])
def test_what_could_never_be_made_is_removed(tmp_path: Path, call: str) -> None:
    assert CALLS[call](Beneath(str(tmp_path), "n" * 300)) is False
    assert CALLS[call](Beneath(str(tmp_path), "none/none")) is False


def test_the_agents_own_directory_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "own").symlink_to(tmp_path / "disk")
    place = Beneath(f"{tmp_path}/own", "pod/data")
    assert beneath.make_dirs(place, 0o751) and not beneath.make_dirs(place)
    assert [stat.S_IMODE(os.stat(tmp_path / name).st_mode) for name in ("disk/pod", "disk/pod/data")] == [0o751] * 2
    beneath.write_atomic(place / "file", b"text")
    assert beneath.read_bytes(place / "file", 10) == b"text"
    assert [entry.kind for entry in beneath.list_dir(place)] == [FileKind.FILE]
    beneath.replace_symlink("/anything", place / "link")
    assert beneath.read_link(place / "link") == "/anything"
    assert beneath.remove_tree(place.parent) and beneath.stat_file(place) is None


@pytest.mark.parametrize("call", ["read_bytes", "read_tail", "open_regular"])
def test_a_fifo_is_not_opened(tmp_path: Path, call: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    with observed_opens(tmp_path / "fifo") as was_opened:
        with pytest.raises(HostError, match="not a regular file but a fifo"):
            CALLS[call](Beneath(str(tmp_path), "fifo"))
        assert not was_opened()


def test_the_walk_without_openat2_is_the_same(tmp_path: Path) -> None:
    fill(tmp_path)
    top = os.open(tmp_path / "own", os.O_PATH)
    try:
        found = beneath.walk_plain(top, "./a//file")
        assert os.path.samestat(os.fstat(found), os.stat(tmp_path / "own" / "a" / "file"))
        os.close(found)
        for name in ("link", "link/file", "file"):
            with pytest.raises(OSError, match="symbolic links"):
                beneath.walk_plain(top, name)
    finally:
        os.close(top)


def test_a_containers_log_lies_below_the_directory_of_all_pods_logs() -> None:
    log = log_file("/var/log/pods/ns_name_uid/main/0.log")
    assert (log.top, log.inside, log.parent.name) == ("/var/log/pods", "ns_name_uid/main/0.log", "main")
