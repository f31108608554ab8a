"""iscsi volumes with the real iscsiadm against a real target on loopback."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from support.agent import Json, container_status, make_container, make_pod
from support.storage_servers import IscsiTarget, multipathd, silenced
from support.unit import LONG_S, UnitAgent
from vm.hung_storage import Record, others_end, others_run, timed

from pykubelet.base.kit.values import replace
from pykubelet.edges.host.devices.iscsi import find_disks
from pykubelet.edges.host.devices.iscsi_target import Chap
from pykubelet.edges.host.devices.iscsi_target import IscsiTarget as Address
from pykubelet.edges.host.devices.scsi import ScsiPaths, multipath_of, wait_for
from pykubelet.edges.host.fs import mounts
from pykubelet.provide.volumes.kind import UncertainError
from pykubelet.provide.volumes.kinds import iscsi
from pykubelet.provide.volumes.kinds.iscsi import IscsiDevice, disk_directory, disks

pytestmark = pytest.mark.vm

MakeUnit = Callable[..., UnitAgent]
SLEEPS = "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"
MACHINE = ScsiPaths()
PORT = 3260


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="iscsi") as made:
        yield Path(made)


@pytest.fixture
def target(folder: Path) -> Iterator[IscsiTarget]:
    with IscsiTarget(folder / "target").running() as made:
        yield made


def device(folder: Path, lun: int, *portals: str, fs_type: str = "", chap: Chap | None = None) -> IscsiDevice:
    portals = portals or ("127.0.0.1:3260",)
    address = Address(portals, IscsiTarget.IQN, lun)
    return IscsiDevice(
        name=f"kubernetes.io/iscsi/{portals[0]}:{IscsiTarget.IQN}:{lun}",
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
    iscsi.mount_disk(first, MACHINE)
    iscsi.mount_disk(second, MACHINE)
    kinds = [mounts.mounts_below(disk.directory)[0].fs_type for disk in (first, second)]
    assert kinds == ["ext4", "xfs"] and len(target.sessions()) == 1
    Path(first.directory, "kept").write_text("data")
    iscsi.unmount(first.directory, first.name, MACHINE)
    assert find_disks(MACHINE, first.target) == [] and len(target.sessions()) == 1
    iscsi.unmount(second.directory, second.name, MACHINE)
    assert target.sessions() == [] and not os.path.exists(second.directory)
    again = device(folder, 1, "[::1]:3260")
    iscsi.mount_disk(again, MACHINE)
    assert Path(again.directory, "kept").read_text() == "data"
    iscsi.unmount(again.directory, again.name, MACHINE)
    assert target.sessions() == []


def test_a_password_is_asked_for(folder: Path, target: IscsiTarget) -> None:
    target.add_disk(1)
    target.require("clerk", "a-long-password")
    names = ("node.session.auth.username", "node.session.auth.password")
    wrong = device(folder, 1, chap=Chap(dict(zip(names, ("clerk", "not-the-password"), strict=True)), session=True))
    with pytest.raises(UncertainError, match="failed to get any path for iscsi disk") as failed:
        iscsi.mount_disk(wrong, MACHINE)
    assert "not-the-password" not in str(failed.value)
    right = device(folder, 1, chap=Chap(dict(zip(names, ("clerk", "a-long-password"), strict=True)), session=True))
    iscsi.mount_disk(right, MACHINE)
    assert mounts.is_mount_point(right.directory)
    iscsi.unmount(right.directory, right.name, MACHINE)
    assert target.sessions() == [] and not os.path.exists(right.directory)


def test_a_disk_at_two_portals_is_reached_at_both(folder: Path, target: IscsiTarget) -> None:
    target.add_disk(1)
    both = device(folder, 1, "127.0.0.1:3260", "[::1]:3260")
    iscsi.mount_disk(both, MACHINE)
    disks_found = find_disks(MACHINE, both.target)
    assert len(disks_found) == len(target.sessions()) == 2
    assert mounts.mounts_below(both.directory)[0].source in disks_found
    iscsi.unmount(both.directory, both.name, MACHINE)
    assert target.sessions() == [] and find_disks(MACHINE, both.target) == []


def test_the_multipath_device_over_both_paths_is_mounted_and_removed(folder: Path, target: IscsiTarget) -> None:
    target.add_disk(1)
    both = device(folder, 1, "127.0.0.1:3260", "[::1]:3260")
    with multipathd():
        iscsi.mount_disk(replace(both, is_block=True), MACHINE)  # only logs in: the daemon may need minutes here
        assert wait_for(lambda: _over(both), 1, LONG_S), "multipathd has made no device"
        iscsi.mount_disk(both, MACHINE)
        paths = find_disks(MACHINE, both.target)
        (over,) = _over(both)
        assert over.startswith("/dev/dm-") and len(paths) == 2
        assert os.path.realpath(mounts.mounts_below(both.directory)[0].source) == over
        iscsi.unmount(both.directory, both.name, MACHINE)
        assert target.sessions() == [] and not os.path.exists(over) and find_disks(MACHINE, both.target) == []


def _over(device: IscsiDevice) -> list[str]:
    """The multipath devices over the disk's paths."""
    return sorted({over for path in find_disks(MACHINE, device.target) if (over := multipath_of(MACHINE, path))})


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


def disk_claim(**spec: Any) -> tuple[Json, Json]:
    """A PersistentVolume with the target's first disk, and a claim for it."""
    source = {"targetPortal": "127.0.0.1:3260", "iqn": IscsiTarget.IQN, "lun": 1}
    about = {"accessModes": ["ReadWriteOnce"], **spec}
    persistent = {"capacity": {"storage": "64Mi"}, "iscsi": source, **about}
    wanted = {"resources": {"requests": {"storage": "64Mi"}}, **about}
    return (
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "disk"}, "spec": persistent},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "spec": wanted},
    )


def block_pod(name: str, script: str, *, read_only: bool = False) -> Json:
    use: Json = {"volumeDevices": [{"name": "disk", "devicePath": "/dev/disk"}]}
    source = {"claimName": "data", "readOnly": read_only}
    container = make_container(script=f"{script}; {SLEEPS}", **use)
    return make_pod(name, container, volumes=[{"name": "disk", "persistentVolumeClaim": source}])


async def test_a_pod_gets_the_disk_itself(make_unit: MakeUnit, target: IscsiTarget) -> None:
    target.add_disk(1)
    agent = make_unit().start()
    agent.put(*disk_claim(volumeMode="Block"), block_pod("writer", "printf written > /dev/disk; sync; echo done"))
    await agent.wait_for("the writer", lambda: "done" in agent.output("writer", "main"), LONG_S)
    old = agent.main_pid()
    agent.kill9()
    agent.wait_restarted(old)
    refused = "head -c7 /dev/disk; if printf x > /dev/disk; then echo ' changed'; else echo ' kept'; fi"
    agent.put(block_pod("reader", refused, read_only=True))
    await agent.wait_for("the reader", lambda: "written kept" in agent.output("reader", "main"), LONG_S)
    assert len(target.sessions()) == 1
    agent.remove("writer", "reader")
    await agent.wait_gone("writer", "reader", within=LONG_S)
    maps = "plugins/kubernetes.io/iscsi/volumeDevices/*/*"
    await agent.wait_for("the map is removed", lambda: not list(agent.root.glob(maps)), LONG_S)
    assert target.sessions() == [] and target.records() == []
    await agent.wait_nothing_left(within=LONG_S)


async def test_an_agent_that_is_killed_while_it_logs_in_leaves_no_record(
    make_unit: MakeUnit, target: IscsiTarget
) -> None:
    target.add_disk(1)
    agent = make_unit().start()
    with silenced(PORT):
        agent.put(iscsi_pod("late", "true"))
        notes = "plugins/kubernetes.io/iscsi/iface-default/*/iscsi.json"
        await agent.wait_for("the login", lambda: list(agent.root.glob(notes)), LONG_S)
        old = agent.main_pid()
        agent.kill9()
        agent.remove("late")
        agent.wait_restarted(old)
    await agent.wait_for("the directory is removed", lambda: not list(agent.root.glob(notes)), LONG_S)
    assert target.sessions() == [] and target.records() == []
    await agent.wait_nothing_left(within=LONG_S)


async def test_a_target_that_hangs_costs_only_the_pods_that_use_it(
    make_unit: MakeUnit, target: IscsiTarget, record_property: Record
) -> None:
    target.add_disk(1)
    agent = make_unit().start()
    agent.put(iscsi_pod("hung", "while :; do date > /data/now; sync; sleep 1; done"))
    await agent.wait_running("hung", within=LONG_S)
    with silenced(PORT):
        await others_run(agent, "hung", record_property)
        await others_end(agent, "hung", record_property)
    with timed(record_property, "all is undone once the target is back"):
        await agent.wait_gone("hung", within=LONG_S)
        await agent.wait_for("the node has logged out", lambda: not target.sessions(), LONG_S)
    agent.remove("another")
    await agent.wait_gone("another", within=LONG_S)
    await agent.wait_nothing_left(within=LONG_S)
