"""Giving a volume's files to the pod's group: what is reported about volumes with many files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pykubelet.base.kit.values import Value, replace
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.quotas import VolumeQuotas
from pykubelet.provide.volumes.kind import Note, SetUpContext, UncertainError
from pykubelet.provide.volumes.metrics import OPERATIONS
from pykubelet.provide.volumes.ownership import GroupChange, change_group

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to change groups")
PLUGIN = "kubernetes.io/csi:tests.example"
SHOWN = "u1/volumes/kubernetes.io~csi/pv/mount"
FIRST = (
    f"Setting volume ownership for {SHOWN} is taking longer than expected, consider using OnRootMismatch - "
    "https://kubernetes.io/docs/tasks/configure-pod-container/security-context/"
    "#configure-volume-permission-and-ownership-change-policy-for-pods"
)


class Reported(Value):
    notes: list[Note]
    progress: list[None]

    @property
    def context(self) -> SetUpContext:
        return SetUpContext(0.0, VolumeQuotas(is_on=False), self.notes.append, lambda: self.progress.append(None))


class Ticking:
    """A clock that goes on by `step` seconds whenever it is read."""

    def __init__(self, step: float) -> None:
        self.now, self._step = 0.0, step

    def __call__(self) -> float:
        self.now += self._step
        return self.now


def made(tmp_path: Path, files: int) -> Path:
    for number in range(files):
        (tmp_path / f"{number}").touch(mode=0o600)
    return tmp_path


def change(path: Path, *, only_on_mismatch: bool = False) -> GroupChange:
    return GroupChange(str(path), 2000, f"/var/lib/kubelet/pods/{SHOWN}", PLUGIN, only_on_mismatch)


def test_a_walk_that_takes_long_is_reported_after_30_s_and_then_every_60_s(tmp_path: Path) -> None:
    reported = Reported([], [])
    change_group(change(made(tmp_path, 15)), reported.context, Ticking(10.0))
    assert [note.reason for note in reported.notes] == ["VolumePermissionChangeInProgress"] * 3
    first, *others = [note.message for note in reported.notes]
    assert first == FIRST
    assert others == [f"Setting volume ownership for {SHOWN}, processed {files} files." for files in (8, 14)]
    assert len(reported.progress) == 16


def test_a_short_walk_reports_nothing(tmp_path: Path) -> None:
    reported = Reported([], [])
    change_group(change(made(tmp_path, 20)), reported.context, Ticking(0.01))
    assert (reported.notes, reported.progress) == ([], [])
    assert {path.stat().st_gid for path in (tmp_path, *tmp_path.iterdir())} == {2000}


def test_a_walk_that_was_abandoned_ends(tmp_path: Path) -> None:
    def abandon() -> None:
        raise UncertainError("its pod has ended")

    context = replace(Reported([], []).context, progress=abandon)
    with pytest.raises(UncertainError, match="its pod has ended"):
        change_group(change(made(tmp_path, 3)), context, Ticking(0.4))
    assert sorted(path.stat().st_gid for path in tmp_path.iterdir()) == [0, 2000, 2000]
    assert tmp_path.stat().st_gid == 0, "a later look at the top directory shows that the change is not complete"


def test_on_a_mismatch_only(tmp_path: Path) -> None:
    reported = Reported([], [])
    change_group(change(made(tmp_path, 1), only_on_mismatch=True), reported.context)
    assert (tmp_path / "0").stat().st_gid == 2000
    (tmp_path / "new").touch(mode=0o600)
    os.chown(tmp_path / "new", 0, 0)
    change_group(change(tmp_path, only_on_mismatch=True), reported.context)
    assert (tmp_path / "new").stat().st_gid == 0
    change_group(change(tmp_path), reported.context)
    assert (tmp_path / "new").stat().st_gid == 2000


def test_changes_are_counted(tmp_path: Path) -> None:
    done = (PLUGIN, "volume_apply_access_control", "success", "false")
    failed = (PLUGIN, "volume_apply_access_control", "fail-unknown", "false")
    before = OPERATIONS.count(*done), OPERATIONS.count(*failed)
    change_group(change(tmp_path), Reported([], []).context)
    with pytest.raises(HostError):
        change_group(change(tmp_path / "gone"), Reported([], []).context)
    assert (OPERATIONS.count(*done), OPERATIONS.count(*failed)) == (before[0] + 1, before[1] + 1)
