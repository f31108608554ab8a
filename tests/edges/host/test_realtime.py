"""Time for real-time scheduling in cgroups of version 1, on a tree of plain files."""

from __future__ import annotations

from pathlib import Path

import pytest

from pykubelet.edges.host.cgroups.cgroups_v1 import CgroupsV1, Hierarchy
from pykubelet.edges.host.cgroups.realtime import FILE, give_realtime
from pykubelet.edges.host.fs.errors import HostError

POD = "/node/kubepods/pod1"


def tree(root: Path, **times: int) -> CgroupsV1:
    """`a__b=5`: the group a/b has 5."""
    for name, amount in times.items():
        folder = root.joinpath(*name.split("__"))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FILE).write_text(f"{amount}\n")
    (root / FILE).write_text("950000\n")
    return CgroupsV1((Hierarchy(str(root), frozenset({"cpu"})),))


def times(root: Path) -> dict[str, int]:
    return {str(path.parent.relative_to(root)): int(path.read_text()) for path in root.rglob(FILE)}


def test_what_a_container_gets_its_parents_get_first(tmp_path: Path) -> None:
    groups = tree(tmp_path, node=0, node__kubepods=0, node__kubepods__pod1=0, node__kubepods__pod1__c1=0)
    give_realtime(groups, "/node", f"{POD}/c1", 20_000)
    assert set(times(tmp_path).values()) == {20_000, 950_000}


def test_others_keep_theirs_and_what_is_left_is_divided_anew(tmp_path: Path) -> None:
    groups = tree(tmp_path, node=70, node__kubepods=70, node__kubepods__pod1=40, node__kubepods__pod1__c1=0)
    tree(tmp_path, node__kubepods__pod2=30)
    give_realtime(groups, "/node", f"{POD}/c1", 30)
    assert times(tmp_path)["node/kubepods/pod1"] == 40 and times(tmp_path)["node"] == 70
    give_realtime(groups, "/node", f"{POD}/c1", 50)
    assert times(tmp_path)["node/kubepods/pod1"] == 50 and times(tmp_path)["node"] == 80


def test_what_is_above_the_root_of_the_agent_stays(tmp_path: Path) -> None:
    groups = tree(tmp_path, node=5, node__kubepods=0, node__kubepods__pod1=0, node__kubepods__pod1__c1=0)
    give_realtime(groups, "/node/kubepods", f"{POD}/c1", 50)
    assert times(tmp_path)["node"] == 5 and times(tmp_path)["node/kubepods"] == 50
    give_realtime(groups, "/", f"{POD}/c1", 60)
    assert times(tmp_path)["node"] == 60 and times(tmp_path)["."] == 950_000


def test_a_group_that_is_not_there_yet_is_made_and_none_is_made_for_nothing(tmp_path: Path) -> None:
    groups = tree(tmp_path, node=0, node__kubepods=0, node__kubepods__pod1=0)
    give_realtime(groups, "/node", f"{POD}/c2", 0)
    assert not (tmp_path / POD.strip("/") / "c2").exists()
    with pytest.raises(HostError):  # the kernel would make the file
        give_realtime(groups, "/node", f"{POD}/c2", 5)
    assert (tmp_path / POD.strip("/") / "c2").is_dir()


def test_without_the_controller(tmp_path: Path) -> None:
    groups = CgroupsV1((Hierarchy(str(tmp_path), frozenset({"memory"})),))
    with pytest.raises(HostError, match="no such controller"):
        give_realtime(groups, "/", "/a", 5)
