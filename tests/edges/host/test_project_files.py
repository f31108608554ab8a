"""The list of quota projects, which others write too."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from pykubelet.edges.host.fs import project_files
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.project_files import FIRST_ID, ProjectFiles, claim_id, read_projects, release_paths

OTHERS = "# of the administrator\n42:/srv/data\n1048577:/srv/more\nnot a line\n"


@pytest.fixture
def files(tmp_path: Path) -> ProjectFiles:
    return ProjectFiles(str(tmp_path / "projects"), str(tmp_path / "projid"))


def unused(_: int) -> bool:
    return False


def test_the_first_volume_makes_both_files(files: ProjectFiles) -> None:
    assert claim_id(files, "/pods/a/data", unused) == FIRST_ID == 1048577
    assert Path(files.projects).read_text() == "1048577:/pods/a/data\n"
    assert Path(files.names).read_text() == "volume1048577:1048577\n"
    assert os.stat(files.projects).st_mode & 0o777 == 0o644


def test_each_volume_has_an_id_of_its_own_and_keeps_it(files: ProjectFiles) -> None:
    ids = [claim_id(files, path, unused) for path in ("/a", "/b", "/a")]
    assert ids == [FIRST_ID, FIRST_ID + 1, FIRST_ID]
    assert read_projects(files) == [(FIRST_ID, "/a"), (FIRST_ID + 1, "/b")]


def test_an_id_that_is_listed_named_or_used_is_not_given_out(files: ProjectFiles) -> None:
    Path(files.projects).write_text(OTHERS)
    Path(files.names).write_text("backup:1048578\n")
    assert claim_id(files, "/a", lambda number: number == 1048579) == 1048580
    assert Path(files.projects).read_text() == f"{OTHERS}1048580:/a\n"
    assert Path(files.names).read_text() == "backup:1048578\nvolume1048580:1048580\n"


def test_the_search_for_an_id_ends(files: ProjectFiles) -> None:
    asked: list[int] = []

    def used(number: int) -> bool:
        asked.append(number)
        return True

    with pytest.raises(HostError, match="cannot find available quota ID"):
        claim_id(files, "/a", used)
    assert len(asked) == 129
    assert Path(files.projects).read_text() == ""


def test_what_is_released_is_taken_off_and_nothing_else(files: ProjectFiles) -> None:
    Path(files.projects).write_text(OTHERS)
    Path(files.names).write_text("data:42\nmore:1048577\n")
    os.chmod(files.projects, 0o600)
    claim_id(files, "/pods/a", unused)
    assert release_paths(files, lambda path: path == "/pods/a") == [(1048578, "/pods/a")]
    assert Path(files.projects).read_text() == OTHERS
    assert Path(files.names).read_text() == "data:42\nmore:1048577\n"
    assert os.stat(files.projects).st_mode & 0o777 == 0o600
    assert release_paths(files, lambda path: path == "/srv/data") == [], "42 is not an id of a volume"


def test_an_id_with_another_directory_keeps_its_name(files: ProjectFiles) -> None:
    Path(files.projects).write_text("1048577:/a\n1048577:/b\n")
    Path(files.names).write_text("volume1048577:1048577\n")
    release_paths(files, lambda path: path == "/a")
    assert Path(files.projects).read_text() == "1048577:/b\n"
    assert Path(files.names).read_text() == "volume1048577:1048577\n"


def test_without_the_files_nothing_is_made_for_a_release(files: ProjectFiles, tmp_path: Path) -> None:
    assert release_paths(files, lambda _: True) == []
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_place_of_a_file_is_refused(files: ProjectFiles, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    os.symlink(tmp_path / "precious", files.projects)
    with pytest.raises(HostError):
        claim_id(files, "/a", unused)
    assert (tmp_path / "precious").read_text() == "x"


def test_a_fifo_in_place_of_a_file_is_refused_at_once(files: ProjectFiles) -> None:
    os.mkfifo(files.names)
    with pytest.raises(HostError, match="exists but is not a plain file"):
        claim_id(files, "/a", unused)


def test_a_lock_of_another_program_is_waited_for_and_not_for_ever(
    files: ProjectFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project_files, "LOCK_S", 0.05)
    with open(files.projects, "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(HostError, match="another program has kept it locked"):
            claim_id(files, "/a", unused)
    assert claim_id(files, "/a", unused) == FIRST_ID


def test_a_path_that_no_line_can_hold_is_refused(files: ProjectFiles) -> None:
    with pytest.raises(HostError, match="cannot hold this path"):
        claim_id(files, "/a\n7:/etc", unused)
