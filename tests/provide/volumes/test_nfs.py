"""nfs volumes with a stand-in for the host's mount.nfs: mounted, unmounted, and given up when the server is dead."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from provide.volumes.samples import NODE, make_pod

from pykubelet.base.api.codec import from_object
from pykubelet.base.api.core import Volume
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.mounts import MountedVolume
from pykubelet.base.model.paths import Paths
from pykubelet.edges.host.fs import mounts
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.programs import running_program
from pykubelet.provide.volumes import disk
from pykubelet.provide.volumes.directories import make_pod_dirs
from pykubelet.provide.volumes.kind import Plan, RefusedPlan, UncertainError, VolumesError
from pykubelet.provide.volumes.kinds import nfs
from pykubelet.provide.volumes.model import Inputs
from pykubelet.provide.volumes.plan import plan_volume

UID = PodUID("0f1e2d3c")
PLUGIN = "kubernetes.io~nfs"
HELPER = Path("/sbin/mount.nfs")  # mount(8) starts helpers from /sbin alone


@pytest.fixture
def paths(tmp_path: Path) -> Iterator[Paths]:
    made = Paths(str(tmp_path / "root"), str(tmp_path / "logs"))
    make_pod_dirs(made, UID)
    yield made
    for mount in mounts.mounts_below(str(tmp_path)):
        mounts.unmount(mount.target)


@pytest.fixture
def mount_nfs() -> Iterator[Path]:
    """A stand-in for mount.nfs, which binds the exported directory."""
    directory = os.open(HELPER.parent, os.O_RDONLY)
    fcntl.flock(directory, fcntl.LOCK_EX)  # other processes run these tests too
    try:
        if HELPER.exists():
            pytest.skip("this machine has a mount.nfs of its own")
        script = '#!/bin/sh\ncase "$1" in bad:*) echo "access denied by server"; exit 32;; esac\n'
        HELPER.write_text(f'{script}exec mount -i --bind "${{1#*:}}" "$2"\n')
        HELPER.chmod(0o755)
        yield HELPER
        HELPER.unlink()
    finally:
        os.close(directory)


def plan(paths: Paths, remote: str, *options: str) -> nfs.NfsPlan:
    path = paths.volume(UID, "kubernetes.io/nfs", "v")
    return nfs.NfsPlan(MountedVolume("v", "nfs", path), path, remote, options)


@pytest.mark.usefixtures("mount_nfs")
def test_an_export_is_mounted_by_the_hosts_program_and_only_unmounted(paths: Paths, tmp_path: Path) -> None:
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "old").touch()
    wanted = plan(paths, f"server:{tmp_path}/export", "hard")
    nfs.mount_export(wanted)
    nfs.mount_export(wanted)
    assert os.listdir(wanted.path) == ["old"] and len(mounts.mounts_below(wanted.path)) == 1
    disk.tear_down(paths, UID, PLUGIN, "v")
    assert (tmp_path / "export" / "old").exists() and not os.path.exists(wanted.path)
    with pytest.raises(VolumesError) as failed:
        nfs.mount_export(plan(paths, "bad:/x", "hard", "ro"))
    assert not isinstance(failed.value, UncertainError)
    assert str(failed.value).startswith(
        "mount failed: exit status 32\nMounting command: mount\n"
        f"Mounting arguments: -t nfs -o hard,ro bad:/x {wanted.path}\nOutput: access denied by server\n\n"
    )
    disk.tear_down(paths, UID, PLUGIN, "v")
    assert disk.remove_pod(paths, UID) == ()


def test_a_node_without_the_helper_reports_the_package_that_has_it(paths: Paths) -> None:
    if HELPER.exists():
        pytest.skip("this machine has a mount.nfs of its own")
    wanted = plan(paths, "127.0.0.1:/x")
    with pytest.raises(
        VolumesError, match=r"the program mount\.nfs is not installed: on Debian, install the package nfs-common"
    ):
        nfs.mount_export(wanted)
    assert not mounts.is_mount_point(wanted.path)


def test_the_source_of_a_mount_is_never_an_option(tmp_path: Path) -> None:
    """mount(8) would read `-T FILE` as its table of file systems, and mount whatever that table names."""
    (tmp_path / "table").write_text(f"/etc {tmp_path}/target none bind 0 0\n")
    (tmp_path / "target").mkdir()
    with pytest.raises(HostError):
        mounts.mount_by_program(f"-T{tmp_path}/table", f"{tmp_path}/target", "nfs", (), 20.0)
    assert not mounts.is_mount_point(f"{tmp_path}/target")


def test_a_mount_that_hangs_names_its_helper_and_ends_uncertain(
    paths: Paths, tmp_path: Path, mount_nfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nfs, "MOUNT_S", 3.0)
    mount_nfs.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 600\n")
    wanted = plan(paths, "server:/x")
    errors: list[Exception] = []

    def set_up() -> None:
        try:
            nfs.mount_export(wanted)
        except UncertainError as error:
            errors.append(error)

    os.mkfifo(tmp_path / "pid")
    thread = threading.Thread(target=set_up)
    thread.start()
    helper = int((tmp_path / "pid").read_text())  # when the helper writes it
    found = None
    while found is None and thread.is_alive():  # the thread may note the program after the helper has written
        found = running_program(wanted.path)
        thread.join(0.01)
    thread.join()
    assert found is not None and found.pid == helper
    assert "did not end within 3s" in str(errors[0])
    assert not Path(f"/proc/{helper}").exists() or "Z" in Path(f"/proc/{helper}/stat").read_text().split()[2]
    assert running_program(wanted.path) is None


@pytest.mark.usefixtures("mount_nfs")
def test_a_server_that_does_not_answer_is_given_up(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "export").mkdir()
    wanted = plan(paths, f"server:{tmp_path}/export")
    nfs.mount_export(wanted)
    (tmp_path / "bin").mkdir()
    stand_in = tmp_path / "bin" / "umount"
    stand_in.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n[ "$1" = -f ] || exec sleep 600\nexec /bin/umount "$@"\n'
    )
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setattr(nfs, "UNMOUNT_S", 1.0)
    disk.tear_down(paths, UID, PLUGIN, "v")
    assert (tmp_path / "calls").read_text() == f"-- {wanted.path}\n-f -- {wanted.path}\n"
    assert not os.path.exists(wanted.path)


@pytest.mark.usefixtures("mount_nfs")
def test_an_export_in_use_stays_mounted(paths: Paths, tmp_path: Path) -> None:
    (tmp_path / "export").mkdir()
    wanted = plan(paths, f"server:{tmp_path}/export")
    nfs.mount_export(wanted)
    with open(f"{wanted.path}/open", "w"), pytest.raises(HostError, match="target is busy") as failed:
        disk.tear_down(paths, UID, PLUGIN, "v")
    assert failed.value.is_busy and f"Unmounting arguments: {wanted.path}" in str(failed.value)
    assert mounts.is_mount_point(wanted.path)
    disk.tear_down(paths, UID, PLUGIN, "v")
    assert not os.path.exists(wanted.path)


@pytest.mark.parametrize(
    ("source", "field"),
    [
        ({"server": "-oremount"}, "nfs.server '-oremount' is no host name"),
        ({"server": "a\nb"}, "nfs.server 'a\\nb' is no host name"),
        ({"server": "a b"}, "nfs.server 'a b' is no host name"),
        ({"server": "a\x1b]0;x"}, "nfs.server 'a\\x1b]0;x' is no host name"),
        ({"server": "a" * 256}, "nfs.server 'aaa"),
        ({"server": "a", "path": "/x\ny"}, "nfs.path '/x\\ny' must have"),
        ({"server": "a", "path": "/" + "x" * 4095}, "nfs.path '/xxx"),
    ],
)
def test_words_that_no_server_or_path_has_are_refused(source: dict[str, str], field: str) -> None:
    refused = planned(**source)
    assert isinstance(refused, RefusedPlan)
    assert refused.error.startswith(field)
    assert refused.error.isprintable() and len(refused.error) < 300


@pytest.mark.parametrize(
    ("server", "path", "remote"),
    [
        ("nas-1.example.com", "/a b", "nas-1.example.com:/a b"),
        ("fd00::1", "/", "[fd00::1]:/"),
        ("[fe80::1%eth0]", "/x", "[fe80::1%eth0]:/x"),
        ("münchen.example", "/ü", "münchen.example:/ü"),
    ],
)
def test_words_that_servers_and_paths_have(server: str, path: str, remote: str) -> None:
    made = planned(server=server, path=path)
    assert isinstance(made, nfs.NfsPlan) and made.remote == remote


def planned(**source: str) -> Plan:
    volume = from_object(Volume, {"name": "v", "nfs": {"path": "/x", **source}})
    return plan_volume(make_pod(volume), volume, Inputs(node=NODE), Paths("/k", "/l"))
