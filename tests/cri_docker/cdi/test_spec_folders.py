"""The directories of CDI spec files as they change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pykubelet.net.grpc.status import RpcError
from pykubelet_cri_docker.cdi.spec_folders import MAX_FILES, SpecFolders, find_node


def write(path: Path, name: str, variable: str) -> None:
    path.parent.mkdir(exist_ok=True)
    devices = [{"name": name, "containerEdits": {"env": [variable], "deviceNodes": [{"path": "/dev/null"}]}}]
    path.write_text(json.dumps({"cdiVersion": "0.5.0", "kind": "v.com/gpu", "devices": devices}))


def variables(folders: SpecFolders, name: str) -> list[str]:
    return [variable for each in folders.find([f"v.com/gpu={name}"]).edits for variable in each.edits.env]


def test_files_count_as_they_are_now(tmp_path: Path) -> None:
    static, run = tmp_path / "etc", tmp_path / "run"
    folders = SpecFolders([str(static), str(run)])
    with pytest.raises(RpcError, match="unresolvable"):
        folders.find(["v.com/gpu=0"])
    write(static / "a.json", "0", "A=static")
    assert variables(folders, "0") == ["A=static"]
    write(run / "b.json", "0", "A=dynamic")
    assert variables(folders, "0") == ["A=dynamic"]
    (run / "b.json").rename(run / "b.part")
    assert variables(folders, "0") == ["A=static"]
    node = folders.find(["v.com/gpu=0"]).nodes["/dev/null"]
    assert (node.types, node.major, node.minor, node.mode) == ("cu", 1, 3, 0o666)
    assert find_node("/dev") is None and find_node("/dev/none") is None


def test_files_that_are_no_specs_do_no_harm(tmp_path: Path) -> None:
    write(tmp_path / "good.json", "0", "A=b")
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "large.json").write_bytes(b" " * ((1 << 20) + 1))
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "link.json").symlink_to("/none")
    (tmp_path / "readme.txt").write_text("hello")
    folders = SpecFolders([str(tmp_path)])
    assert variables(folders, "0") == ["A=b"]
    with pytest.raises(RpcError, match=r"bad\.json: .*; .*large\.json"):
        folders.find(["v.com/gpu=9"])


def test_the_number_of_files_has_a_bound(tmp_path: Path) -> None:
    for number in range(MAX_FILES + 1):
        write(tmp_path / f"{number:04}.json", str(number), "A=b")
    folders = SpecFolders([str(tmp_path)])
    assert variables(folders, str(MAX_FILES - 1)) == ["A=b"]
    with pytest.raises(RpcError, match="unresolvable"):
        folders.find([f"v.com/gpu={MAX_FILES}"])
