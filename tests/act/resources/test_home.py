"""The agent goes to the group that is named for it, unless it is there."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from pykubelet.act.resources.home import Home
from pykubelet.edges.host.cgroups.cgroups import Cgroups
from pykubelet.edges.host.fs.errors import HostError


class FakeCgroups:
    """Notes who enters what, and where that shows; refuses as often as `refusals` says."""

    def __init__(self, proc: Path, refusals: int = 0) -> None:
        self.proc = proc
        self.entered: list[str] = []
        self.refusals = refusals

    def enter(self, path: str) -> None:
        self.entered.append(path)
        if self.refusals:
            self.refusals -= 1
            raise HostError("write", path, "EBUSY", "no")
        show(self.proc, f"0::{path}")


def show(proc: Path, *lines: str) -> None:
    (proc / "self").mkdir(exist_ok=True)
    (proc / "self" / "cgroup").write_text("\n".join(lines) + "\n")


def home(groups: FakeCgroups) -> Home:
    return Home(cast(Cgroups, groups), "agent.slice/", proc=str(groups.proc))


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
    home(groups).enter()
    assert groups.entered == ["/agent.slice"] * moved


def test_refused_or_carried_off_it_goes_again(tmp_path: Path) -> None:
    groups = FakeCgroups(tmp_path, refusals=1)
    show(tmp_path, "0::/user.slice")
    keeper = home(groups)
    for expected in (1, 2, 2):
        keeper.enter()
        assert len(groups.entered) == expected
    show(tmp_path, "0::/user.slice")
    keeper.enter()
    assert len(groups.entered) == 3
