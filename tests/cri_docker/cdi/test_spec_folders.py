"""The directories of CDI spec files as they change."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pykubelet.net.grpc.status import RpcError
from pykubelet_cri_docker.cdi.edits import HostNode
from pykubelet_cri_docker.cdi.own_nodes import find_node
from pykubelet_cri_docker.cdi.spec_folders import MAX_FILES, SpecFolders


def write(path: Path, name: str, variable: str, **node: str | int) -> None:
    path.parent.mkdir(exist_ok=True)
    edits = {"env": [variable], "deviceNodes": [{"path": "/dev/null", **node}]}
    devices = [{"name": name, "containerEdits": edits}]
    path.write_text(json.dumps({"cdiVersion": "0.5.0", "kind": "v.com/gpu", "devices": devices}))


def variables(folders: SpecFolders, name: str) -> list[str]:
    return [variable for each in folders.find([f"v.com/gpu={name}"]).edits for variable in each.edits.env]


def test_files_count_as_they_are_now(tmp_path: Path) -> None:
    static, run = tmp_path / "etc", tmp_path / "run"
    folders = SpecFolders([str(static), str(run)], "/none")
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
    folders = SpecFolders([str(tmp_path)], "/none")
    assert variables(folders, "0") == ["A=b"]
    with pytest.raises(RpcError, match=r"bad\.json: .*; .*large\.json"):
        folders.find(["v.com/gpu=9"])


def test_the_number_of_files_has_a_bound(tmp_path: Path) -> None:
    for number in range(MAX_FILES + 1):
        write(tmp_path / f"{number:04}.json", str(number), "A=b")
    folders = SpecFolders([str(tmp_path)], "/none")
    assert variables(folders, str(MAX_FILES - 1)) == ["A=b"]
    with pytest.raises(RpcError, match="unresolvable"):
        folders.find([f"v.com/gpu={MAX_FILES}"])


@pytest.mark.skipif(os.geteuid() != 0, reason="device nodes need root")
def test_a_device_node_that_the_machine_lacks_is_made_once(tmp_path: Path) -> None:
    """Docker takes a device by its path on the host only."""
    nodes, own = tmp_path / "devices", tmp_path / "specs"
    write(own / "a.json", "0", "A=b", hostPath="/dev/not-there", type="b", major=1, minor=7, fileMode=0o640, gid=6)
    folders = SpecFolders([str(own)], str(nodes))
    paths = {path for _ in range(2) for path in folders.find(["v.com/gpu=0"]).own.values()}
    assert find_node(*paths) == HostNode("b", 1, 7, 0o640, 0, 6)
    assert [str(path) for path in nodes.iterdir()] == [*paths]
    (nodes / "b-1-7-640-0-6").unlink()
    (nodes / "b-1-7-640-0-6").touch()  # as a killed program may leave another
    folders.find(["v.com/gpu=0"])
    assert find_node(*paths) == HostNode("b", 1, 7, 0o640, 0, 6)


def test_a_device_node_that_cannot_be_made_is_left_out(tmp_path: Path) -> None:
    write(tmp_path / "a.json", "0", "A=b", hostPath="/dev/not-there", type="b", major=1, minor=7)
    assert SpecFolders([str(tmp_path)], "/proc/none").find(["v.com/gpu=0"]).own == {}
