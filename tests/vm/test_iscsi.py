"""iscsi volumes with the real iscsiadm against a real target on loopback."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support.agent import Json, container_status, make_container, make_pod
from support.storage_servers import IscsiTarget
from support.unit import LONG_S, UnitAgent

from pykubelet.act.volumes import iscsi_stage
from pykubelet.act.volumes.iscsi_plan import IscsiDevice, disk_directory, disks
from pykubelet.act.volumes.kind import UncertainError
from pykubelet.edges.host.devices.iscsi import find_disks
from pykubelet.edges.host.devices.iscsi_target import Chap
from pykubelet.edges.host.devices.iscsi_target import IscsiTarget as Address
from pykubelet.edges.host.devices.scsi import Machine
from pykubelet.edges.host.fs import mounts

pytestmark = pytest.mark.vm

MakeUnit = Callable[..., UnitAgent]
SLEEPS = "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"
MACHINE = Machine()


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="iscsi") as made:
        yield Path(made)


@pytest.fixture
def target(folder: Path) -> Iterator[IscsiTarget]:
    with IscsiTarget(folder / "target").running() as made:
        yield made


def device(
    folder: Path, lun: int, portal: str = "127.0.0.1:3260", fs_type: str = "", chap: Chap | None = None
) -> IscsiDevice:
    address = Address((portal,), IscsiTarget.IQN, lun)
    return IscsiDevice(
        name=f"kubernetes.io/iscsi/{portal}:{IscsiTarget.IQN}:{lun}",
        kind="iscsi",
        directory=disk_directory(disks(str(folder / "plugins")), address),
        fs_type=fs_type,
        options=("rw",),
        volume="pv",
        target=address,
        chap=chap or Chap(),
    )


def test_disks_are_mounted_and_taken_off(folder: Path, target: IscsiTarget) -> None:
    target.add_disk(1)
    target.add_disk(2, 400 << 20)
    first, second = device(folder, 1), device(folder, 2, fs_type="xfs")
    iscsi_stage.mount_disk(first, MACHINE)
    iscsi_stage.mount_disk(second, MACHINE)
    kinds = [mounts.mounts_below(one.directory)[0].fs_type for one in (first, second)]
    assert kinds == ["ext4", "xfs"] and len(target.sessions()) == 1
    Path(first.directory, "kept").write_text("data")
    iscsi_stage.unmount(first.directory, first.name, MACHINE)
    assert find_disks(MACHINE, first.target) == [] and len(target.sessions()) == 1
    iscsi_stage.unmount(second.directory, second.name, MACHINE)
    assert target.sessions() == [] and not os.path.exists(second.directory)
    again = device(folder, 1, portal="[::1]:3260")
    iscsi_stage.mount_disk(again, MACHINE)
    assert Path(again.directory, "kept").read_text() == "data"
    iscsi_stage.unmount(again.directory, again.name, MACHINE)
    assert target.sessions() == []


def test_a_password_is_asked_for(folder: Path, target: IscsiTarget) -> None:
    target.add_disk(1)
    target.require("clerk", "a-long-password")
    names = ("node.session.auth.username", "node.session.auth.password")
    wrong = device(folder, 1, chap=Chap(dict(zip(names, ("clerk", "not-the-password"), strict=True)), session=True))
    with pytest.raises(UncertainError, match="failed to get any path for iscsi disk") as failed:
        iscsi_stage.mount_disk(wrong, MACHINE)
    assert "not-the-password" not in str(failed.value)
    right = device(folder, 1, chap=Chap(dict(zip(names, ("clerk", "a-long-password"), strict=True)), session=True))
    iscsi_stage.mount_disk(right, MACHINE)
    assert mounts.is_mount_point(right.directory)
    iscsi_stage.unmount(right.directory, right.name, MACHINE)
    assert target.sessions() == [] and not os.path.exists(right.directory)


def iscsi_pod(name: str, script: str) -> Json:
    container = make_container(script=f"{script}; {SLEEPS}", volumeMounts=[{"name": "disk", "mountPath": "/data"}])
    source = {"targetPortal": "127.0.0.1:3260", "iqn": IscsiTarget.IQN, "lun": 1}
    return make_pod(name, container, volumes=[{"name": "disk", "iscsi": source}])


async def test_pods_share_a_disk(make_unit: MakeUnit, target: IscsiTarget) -> None:
    target.add_disk(1)
    agent = make_unit().start()
    agent.put(iscsi_pod("writer", "echo from a pod > /data/new"))
    await agent.wait_running("writer", within=LONG_S)
    agent.put(iscsi_pod("reader", "until [ -e /data/new ]; do sleep 1; done; cat /data/new"))
    await agent.wait_running("reader", within=LONG_S)
    await agent.wait_for("the output", lambda: "from a pod" in agent.output("reader", "main"), LONG_S)
    assert len(target.sessions()) == 1

    old = agent.main_pid()
    agent.kill9()
    agent.wait_restarted(old)
    for pod in await agent.wait_running("writer", "reader", within=LONG_S):
        assert container_status(pod)["restartCount"] == 0
    agent.remove("writer")
    await agent.wait_gone("writer", within=LONG_S)
    assert len(target.sessions()) == 1
    agent.remove("reader")
    await agent.wait_gone("reader", within=LONG_S)
    await agent.wait_for("the node has logged out", lambda: not target.sessions(), LONG_S)
    await agent.wait_nothing_left(within=LONG_S)
