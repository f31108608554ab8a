"""Which file of the directory of configurations is used."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest

from pykubelet_cri_docker.network.config import MAX_CONFIG_BYTES
from pykubelet_cri_docker.network.config_folder import ConfigFolder


def write(folder: Path, file: str, name: str) -> None:
    plugin = {"type": "bridge"}
    document = {"cniVersion": "1.0.0", "name": name} | ({"plugins": [plugin]} if file.endswith(".conflist") else plugin)
    (folder / file).write_text(json.dumps(document))


def used(folder: ConfigFolder) -> str:
    found = folder.find_network()
    return found.network.name if found.network is not None else found.problem


def test_the_first_name_counts(tmp_path: Path) -> None:
    for file, name in (("20-b.conflist", "b"), ("10-a.conf", "a"), ("30-c.json", "c"), ("00-x.txt", "x")):
        write(tmp_path, file, name)
    assert used(ConfigFolder(str(tmp_path))) == "a"


def test_invalid_files_are_skipped_and_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "10-a.conflist").write_text("{")
    (tmp_path / "11-b.conf").write_text('{"name": "x"}')
    (tmp_path / "12-c.json").write_bytes(b" " * (MAX_CONFIG_BYTES + 1))
    os.mkfifo(tmp_path / "13-d.conf")
    (tmp_path / "14-e.conf").symlink_to("nothing")
    (tmp_path / "15-f.conf").mkdir()
    write(tmp_path, "20-g.conflist", "g")
    folder = ConfigFolder(str(tmp_path))
    with caplog.at_level(logging.WARNING):
        assert (used(folder), used(folder)) == ("g", "g")
    logged = [getattr(record, "fields", {}) for record in caplog.records]
    assert [Path(fields["file"]).name for fields in logged] == ["10-a.conflist", "11-b.conf", "12-c.json", "13-d.conf"]
    for fields, problem in zip(logged, ("truncated", "`type`", "larger", "fifo"), strict=True):
        assert problem in fields["error"]


def test_without_a_network_the_problem_names_directory_and_files(tmp_path: Path) -> None:
    folder = ConfigFolder(str(tmp_path))
    assert used(folder) == f"no network config found in {tmp_path}"
    (tmp_path / "a.conf").write_text("{}")
    assert used(folder).startswith(
        f"no network config found in {tmp_path}; a.conf: Object missing required field `type`"
    )
    assert used(ConfigFolder(f"{tmp_path}/none")).startswith(
        f"no network config found in {tmp_path}/none: no such file"
    )


def test_changes_are_seen(tmp_path: Path) -> None:
    folder = ConfigFolder(str(tmp_path))
    write(tmp_path, "20.conflist", "b")
    assert used(folder) == "b"
    first = folder.find_network()
    assert folder.find_network() is first
    write(tmp_path, "20.conflist", "other")
    assert used(folder) == "other"
    write(tmp_path, "10.conflist", "a")
    assert used(folder) == "a"
    (tmp_path / "10.conflist").unlink()
    assert used(folder) == "other"
    (tmp_path / "20.conflist").unlink()
    assert used(folder).startswith("no network config found")


def test_a_linked_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "net.d").mkdir()
    write(tmp_path / "real", "a.conflist", "a")
    (tmp_path / "net.d/a.conflist").symlink_to("../real/a.conflist")
    assert used(ConfigFolder(f"{tmp_path}/net.d")) == "a"
