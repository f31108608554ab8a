"""The agent goes to the group that is named for it, unless it is there."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from pykubelet.edges.host.cgroups.cgroups import Cgroups
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.provide.cgroups.kubelet_cgroup import KubeletCgroup


class FakeCgroups:
    """Records which process enters which cgroup, and shows it in `/proc`; refuses as often as `refusals`."""

    def __init__(self, proc: Path, refusals: int = 0) -> None:
        self.proc = proc
        self.entered: list[str] = []
        self.refusals = refusals

    def enter(self, path: str, pid: int | None = None) -> None:
        self.entered.append(path)
        if self.refusals:
            self.refusals -= 1
            raise HostError("write", path, "EBUSY", "no")
        show(self.proc, f"0::{path}")


def show(proc: Path, *lines: str) -> None:
    (proc / "self").mkdir(exist_ok=True)
    (proc / "self" / "cgroup").write_text("\n".join(lines) + "\n")


def kubelet_cgroup(groups: FakeCgroups, group: str = "agent.slice/") -> KubeletCgroup:
    return KubeletCgroup(cast(Cgroups, groups), group, -999, proc=str(groups.proc))


def show_namespaces(proc: Path, own: str, first: str) -> None:
    for process, namespace in (("self", own), ("1", first)):
        (proc / process / "ns").mkdir(parents=True)
        (proc / process / "ns" / "pid").symlink_to(f"pid:[{namespace}]")


@pytest.mark.parametrize(
    ("lines", "moved"),
    [
        (("0::/user.slice",), True),
        (("0::/agent.slice",), False),
        (("3:cpu,cpuacct:/", "2:memory:/", "1:name=systemd:/agent.slice", "0::/agent.slice"), False),
        (("3:cpu,cpuacct:/agent.slice", "1:name=systemd:/", "0::/"), True),
        (("3:cpu,cpuacct:/agent.slice", "0::/"), False),
    ],
)
def test_it_moves_when_it_is_elsewhere(tmp_path: Path, lines: tuple[str, ...], moved: bool) -> None:
    groups = FakeCgroups(tmp_path)
    show(tmp_path, *lines)
    kubelet_cgroup(groups).enter()
    assert groups.entered == ["/agent.slice"] * moved


def test_refused_or_carried_off_it_goes_again(tmp_path: Path) -> None:
    groups = FakeCgroups(tmp_path, refusals=1)
    show(tmp_path, "0::/user.slice")
    keeper = kubelet_cgroup(groups)
    for expected in (1, 2, 2):
        keeper.enter()
        assert len(groups.entered) == expected
    show(tmp_path, "0::/user.slice")
    keeper.enter()
    assert len(groups.entered) == 3


@pytest.mark.parametrize(("own", "score"), [("4026531836", "-999"), ("77", "0")])
def test_its_oom_score_is_kept_except_in_a_pid_namespace_of_its_own(tmp_path: Path, own: str, score: str) -> None:
    show_namespaces(tmp_path, own, "4026531836")
    (tmp_path / "self" / "oom_score_adj").write_text("0")
    keeper = kubelet_cgroup(FakeCgroups(tmp_path), "")
    keeper.enter()
    keeper.write_score()
    assert (tmp_path / "self" / "oom_score_adj").read_text() == score
