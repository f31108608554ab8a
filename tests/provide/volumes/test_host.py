"""Volumes on the real file system: each kind, tearing down, reading back."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.mounts import MountedVolume
from pykubelet.base.model.paths import Beneath, Paths
from pykubelet.edges.host.fs import mounts
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.quotas import VolumeQuotas
from pykubelet.provide.volumes import disk
from pykubelet.provide.volumes.directories import VolumeDirs, make_pod_dirs
from pykubelet.provide.volumes.kind import SetUpContext, VolumesError
from pykubelet.provide.volumes.kinds import empty_dir, host_path, local
from pykubelet.provide.volumes.model import FoundPod, FoundVolume
from pykubelet.provide.volumes.payloads import payload_kind
from pykubelet.provide.volumes.payloads.atomic_writer import write_payload
from pykubelet.provide.volumes.payloads.payload import PayloadFile, PayloadPlan

UID = PodUID("0f1e2d3c")
WALL = 1_700_000_000.0
OFF = VolumeQuotas(is_on=False)
NOW = SetUpContext(WALL, OFF)
EMPTY_DIR, CONFIG_MAP = "kubernetes.io~empty-dir", "kubernetes.io~configmap"


@pytest.fixture
def paths(tmp_path: Path) -> Iterator[Paths]:
    made = Paths(str(tmp_path / "root"), str(tmp_path / "logs"))
    make_pod_dirs(made, UID)
    yield made
    for mount in mounts.mounts_below(str(tmp_path)):
        mounts.unmount(mount.target)


def mode(path: str | Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def empty_plan(paths: Paths, medium: str = "", size: int = 0, group: int | None = None) -> empty_dir.EmptyDirPlan:
    mounted = MountedVolume("data", "emptyDir", paths.volume(UID, "kubernetes.io/empty-dir", "data"))
    dirs = VolumeDirs.of(paths, UID, EMPTY_DIR, "data")
    return empty_dir.EmptyDirPlan(mounted, dirs.path, dirs.private, medium, size, 0, group)


def host_plan(path: str | Path, kind: str) -> host_path.HostPathPlan:
    return host_path.HostPathPlan(MountedVolume("host", "hostPath", str(path), host_type=kind))


def at(path: str | Path, kind: str = "configMap") -> MountedVolume:
    return MountedVolume("v", kind, str(path))


def test_the_pods_directory(paths: Paths) -> None:
    for path in (paths.pod(UID), paths.pod_volumes(UID), paths.pod_plugins(UID)):
        assert mode(path) == 0o750


def test_an_empty_dir_on_disk_survives_a_restart_with_its_data(paths: Paths) -> None:
    plan = empty_plan(paths, group=2000)
    empty_dir.set_up(plan, NOW)
    assert plan.path.endswith(f"/pods/{UID}/volumes/kubernetes.io~empty-dir/data")
    assert mode(plan.path) == 0o2777
    assert os.stat(plan.path).st_gid == 2000
    Path(plan.path, "kept").write_text("yes")
    os.chmod(plan.path, 0o700)  # a container may do that
    empty_dir.set_up(plan, NOW)
    assert Path(plan.path, "kept").read_text() == "yes"
    assert mode(plan.path) == 0o700


def test_an_empty_dir_that_was_not_finished_is_finished(paths: Paths) -> None:
    plan = empty_plan(paths, group=2000)
    os.makedirs(plan.path, 0o755)
    empty_dir.set_up(plan, NOW)
    assert mode(plan.path) == 0o2777


@pytest.mark.parametrize(("group", "expected"), [(None, 0o1750), (2000, 0o3770)])
def test_an_empty_dir_has_the_mode_of_its_pod_before_the_groups_bits(
    paths: Paths, group: int | None, expected: int
) -> None:
    plan = replace(empty_plan(paths, group=group), mode=0o1750)
    empty_dir.set_up(plan, NOW)
    assert mode(plan.path) == expected
    os.chmod(plan.path, 0o700)  # a container may do that
    empty_dir.set_up(plan, NOW)
    assert mode(plan.path) == 0o700


@pytest.mark.integration
def test_an_empty_dir_in_memory_has_its_mode(paths: Paths) -> None:
    plan = replace(empty_plan(paths, "Memory", size=1 << 20), mode=0o750)
    empty_dir.set_up(plan, NOW)
    assert mode(plan.path) == 0o750


@pytest.mark.integration
def test_an_empty_dir_in_memory_has_its_size_and_goes_with_its_data(paths: Paths) -> None:
    plan = empty_plan(paths, "Memory", size=1 << 20, group=2000)
    empty_dir.set_up(plan, NOW)
    empty_dir.set_up(plan, NOW)
    assert mounts.read_fs_usage(plan.path).capacity_bytes == 1 << 20
    assert [m.fs_type for m in mounts.mounts_below(plan.path)] == ["tmpfs"]
    assert mode(plan.path) & 0o2777 == 0o2777
    Path(plan.path, "file").write_text("x")
    disk.tear_down(paths, UID, EMPTY_DIR, "data")
    assert not os.path.exists(plan.path)
    assert mounts.mounts_below(plan.path) == ()
    assert disk.read_volumes(paths, UID) == ()


@pytest.mark.integration
def test_an_empty_dir_in_memory_gets_another_size_while_it_is_mounted(paths: Paths) -> None:
    plan = replace(empty_plan(paths, "Memory", size=1 << 20), is_resizable=True)
    empty_dir.set_up(plan, NOW)
    Path(plan.path, "file").write_bytes(bytes(600_000))
    for size in (2 << 20, (1 << 20) - 1, 1 << 20):
        empty_dir.set_up(replace(plan, size=size), NOW)
        assert mounts.read_fs_usage(plan.path).capacity_bytes == -(-size // 4096) * 4096
    with pytest.raises(VolumesError, match="the volume holds more than its new size of 4096 bytes; delete files in it"):
        empty_dir.set_up(replace(plan, size=4096), NOW)
    assert mounts.read_fs_usage(plan.path).capacity_bytes == 1 << 20
    assert len(Path(plan.path, "file").read_bytes()) == 600_000


def test_tearing_down_removes_data_and_marker_and_may_be_repeated(paths: Paths) -> None:
    plan = empty_plan(paths)
    empty_dir.set_up(plan, NOW)
    Path(plan.path, "deep", "er").mkdir(parents=True)
    Path(plan.path, "deep", "er", "file").write_text("x")
    for _ in range(2):
        disk.tear_down(paths, UID, EMPTY_DIR, "data")
        assert not os.path.exists(plan.path)
        assert not os.path.exists(plan.private)
    assert disk.remove_pod(paths, UID) == ()
    assert not os.path.exists(paths.pod(UID))


@pytest.mark.parametrize("place", ["volumes/data", "volumeDevices/data"])
def test_a_file_among_the_directories_of_volumes_is_not_deleted(paths: Paths, place: str) -> None:
    file = Path(paths.pod(UID), place)
    file.parent.mkdir(exist_ok=True)
    file.write_text("mine")
    with pytest.raises(VolumesError, match=f'orphaned pod "{UID}" found, but error occurred .* {file} is no directory'):
        disk.remove_pod(paths, UID)
    assert file.read_text() == "mine"
    file.unlink()
    Path(paths.pod_volumes(UID), "kubernetes.io~nfs").mkdir(parents=True)
    assert disk.remove_pod(paths, UID) == ()
    assert not os.path.exists(paths.pod(UID))


@pytest.mark.integration
def test_mounts_are_found_whatever_their_names(paths: Paths) -> None:
    odd = Path(paths.pod(UID), "with space", "back\\slash\ttab")
    odd.mkdir(parents=True)
    mounts.mount_tmpfs(str(odd), 1 << 20)
    assert [m.target for m in mounts.mounts_below(str(odd.parent))] == [str(odd)]
    assert mounts.mounts_below(paths.pod_volumes(UID)) == ()


@pytest.mark.integration
def test_what_a_container_mounted_below_is_unmounted_not_deleted(paths: Paths, tmp_path: Path) -> None:
    plan = empty_plan(paths)
    empty_dir.set_up(plan, NOW)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine")
    inner = Path(plan.path, "a")
    inner.mkdir()
    mounts.bind(str(precious), str(inner))
    disk.tear_down(paths, UID, EMPTY_DIR, "data")
    assert (precious / "file").read_text() == "mine"
    assert not os.path.exists(plan.path)


@pytest.mark.integration
def test_a_foreign_volume_is_unmounted_and_its_data_left_alone(paths: Paths, tmp_path: Path) -> None:
    share = tmp_path / "share"
    share.mkdir()
    (share / "file").write_text("theirs")
    place = paths.volume(UID, "kubernetes.io/nfs", "share")
    os.makedirs(place)
    mounts.bind(str(share), place)
    assert disk.remove_pod(paths, UID) == (FoundVolume("kubernetes.io~nfs", "share"),)
    disk.tear_down(paths, UID, "kubernetes.io~nfs", "share")
    assert (share / "file").read_text() == "theirs"
    assert disk.remove_pod(paths, UID) == ()


@pytest.mark.integration
def test_a_directory_is_not_removed_while_something_is_mounted_below(paths: Paths, tmp_path: Path) -> None:
    odd = Path(paths.pod(UID), "odd")
    odd.mkdir()
    (tmp_path / "file").write_text("x")
    mounts.bind(str(tmp_path), str(odd))
    with pytest.raises(VolumesError, match="still mounted below"):
        disk.remove_pod(paths, UID)
    assert (tmp_path / "file").exists()


def test_reading_back_skips_garbage(paths: Paths) -> None:
    empty_dir.set_up(empty_plan(paths), NOW)
    Path(paths.pods, "a file").write_text("?")
    Path(paths.pods, "..strange").mkdir()
    Path(paths.pod_volumes(UID), "file").write_text("?")
    Path(paths.subpaths(UID), "left", "main").mkdir(parents=True)
    expected = (FoundVolume(EMPTY_DIR, "data"), FoundVolume("", "left"))
    assert disk.scan(paths) == (FoundPod(UID, expected),)
    assert disk.scan(Paths("/nowhere/at/all", "")) == ()


def test_a_pods_directory_that_cannot_be_read_hides_no_other_and_is_not_removed(paths: Paths, tmp_path: Path) -> None:
    broken = PodUID("bad")
    make_pod_dirs(paths, broken)
    empty_dir.set_up(empty_plan(paths), NOW)
    os.rmdir(paths.pod_volumes(broken))
    (tmp_path / "elsewhere" / EMPTY_DIR / "data").mkdir(parents=True)
    os.symlink(tmp_path / "elsewhere", paths.pod_volumes(broken))
    assert disk.scan(paths) == (FoundPod(UID, (FoundVolume(EMPTY_DIR, "data"),)), FoundPod(broken))
    with pytest.raises(HostError, match="a part of the path is a symbolic link, which is not followed"):
        disk.remove_pod(paths, broken)
    assert Path(paths.pod(broken)).exists() and (tmp_path / "elsewhere" / EMPTY_DIR / "data").exists()


def make_things(tmp_path: Path) -> dict[str, Path]:
    places = {"dir": tmp_path / "dir", "file": tmp_path / "file", "sock": tmp_path / "sock", "none": tmp_path / "none"}
    places["dir"].mkdir()
    places["file"].write_text("x")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(places["sock"]))
    places["char"] = Path("/dev/null")
    return places


@pytest.mark.parametrize(
    ("kind", "good", "words"),
    [
        ("Directory", {"dir"}, "directory"),
        ("DirectoryOrCreate", {"dir", "none"}, "directory"),
        ("File", {"file"}, "file"),
        ("FileOrCreate", {"file", "none"}, "file"),
        ("Socket", {"sock"}, "socket file"),
        ("CharDevice", {"char"}, "character device"),
        ("BlockDevice", set(), "block device"),
    ],
)
def test_host_path_types(tmp_path: Path, kind: str, good: set[str], words: str) -> None:
    for name, path in make_things(tmp_path).items():
        if name in good:
            host_path.set_up(host_plan(path, kind), NOW)
            assert path.exists()
        else:
            with pytest.raises(VolumesError) as caught:
                host_path.set_up(host_plan(path, kind), NOW)
            assert str(caught.value) == f"hostPath type check failed: {path} is not a {words}"
            assert path.exists() == (name != "none")


def test_host_paths_that_are_made(tmp_path: Path) -> None:
    host_path.set_up(host_plan(tmp_path / "a" / "b", "DirectoryOrCreate"), NOW)
    assert mode(tmp_path / "a" / "b") == 0o755
    host_path.set_up(host_plan(tmp_path / "f", "FileOrCreate"), NOW)
    assert mode(tmp_path / "f") == 0o644
    with pytest.raises(VolumesError, match="Wrong is an invalid volume type"):
        host_path.set_up(host_plan("/", "Wrong"), NOW)


def test_a_host_path_made_where_containers_write_changes_nothing_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "private").mkdir(mode=0o700)
    make = os.mkdir

    def make_and_swap(path: str, mode: int, *, dir_fd: int) -> None:
        make(path, mode, dir_fd=dir_fd)
        os.rmdir(path, dir_fd=dir_fd)
        os.symlink(tmp_path / "private", path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", make_and_swap)
    with contextlib.suppress(HostError):
        host_path.set_up(host_plan(tmp_path / "shared" / "made", "DirectoryOrCreate"), NOW)
    assert (tmp_path / "shared" / "made").is_symlink()
    assert mode(tmp_path / "private") == 0o700


def listing(path: Path) -> dict[str, str]:
    return {
        str(p.relative_to(path)): os.readlink(p) if p.is_symlink() else "dir" if p.is_dir() else p.read_text()
        for p in sorted(path.rglob("*"))
        if not str(p.relative_to(path)).startswith("..20")
    }


def files(**content: str) -> tuple[PayloadFile, ...]:
    return tuple(PayloadFile(name.replace("__", "/"), text.encode(), 0o640) for name, text in content.items())


def test_the_layout_of_written_volumes(tmp_path: Path) -> None:
    assert write_payload(Beneath(str(tmp_path), ""), files(a="1", sub__b="2", sub__deep__c="3"), WALL, None)
    hidden = os.readlink(tmp_path / "..data")
    assert hidden.startswith("..2023_11_14_22_13_20.")
    assert hidden.rpartition(".")[2].isdigit()
    assert listing(tmp_path) == {"..data": hidden, "a": "..data/a", "sub": "..data/sub"}
    assert (tmp_path / "sub" / "deep" / "c").read_text() == "3"
    assert mode(tmp_path / hidden) == 0o755
    assert mode(tmp_path / hidden / "sub") == 0o755
    assert mode(tmp_path / hidden / "a") == 0o640
    # The same again changes nothing, not even the name.
    assert not write_payload(Beneath(str(tmp_path), ""), files(sub__b="2", a="1", sub__deep__c="3"), WALL + 9, None)
    assert os.readlink(tmp_path / "..data") == hidden


def test_a_file_where_another_volume_is_mounted_is_hidden_by_it(tmp_path: Path) -> None:
    plan = PayloadPlan(
        at(tmp_path / "v"), Beneath(str(tmp_path), "v"), files(a="1", sub__b="2"), in_memory=False, nested=("sub",)
    )
    for wall in (WALL, WALL + 1):
        payload_kind.set_up(plan, SetUpContext(wall, OFF))
        assert (tmp_path / "v" / "a").read_text() == "1"
        assert os.listdir(tmp_path / "v" / "sub") == []


def test_content_that_changes_is_swapped_and_old_names_go(tmp_path: Path) -> None:
    write_payload(Beneath(str(tmp_path), ""), files(a="1", gone="2"), WALL, None)
    old = os.readlink(tmp_path / "..data")
    with open(tmp_path / "a") as reader:
        assert write_payload(Beneath(str(tmp_path), ""), files(a="new", more="3"), WALL + 60, None)
        assert reader.read() == "1"
    fresh = os.readlink(tmp_path / "..data")
    assert fresh != old
    assert sorted(os.listdir(tmp_path)) == sorted(["..data", fresh, "a", "more"])
    assert (tmp_path / "a").read_text() == "new"


def test_what_an_interrupted_write_left_is_cleared(tmp_path: Path) -> None:
    write_payload(Beneath(str(tmp_path), ""), files(a="1"), WALL, None)
    (tmp_path / "..2023_01_01_00_00_00.7").mkdir()
    os.symlink("..2023_01_01_00_00_00.7", tmp_path / "..data_tmp")
    os.unlink(tmp_path / "a")
    assert not write_payload(Beneath(str(tmp_path), ""), files(a="1"), WALL, None)
    assert sorted(os.listdir(tmp_path)) == sorted(["..data", os.readlink(tmp_path / "..data"), "a"])
    assert (tmp_path / "a").read_text() == "1"


@pytest.mark.integration
def test_a_written_volume_is_in_memory_and_follows_its_content(paths: Paths) -> None:
    path = paths.volume(UID, "kubernetes.io/downward-api", "info")
    payload_kind.set_up(PayloadPlan(at(path, "downwardAPI"), path, files(labels='a="1"'), 1 << 20, 2000), NOW)
    labels = Path(path, "labels")
    assert [m.fs_type for m in mounts.mounts_below(path)] == ["tmpfs"]
    assert labels.read_text() == 'a="1"'
    assert os.stat(labels).st_gid == 2000
    assert stat.S_IMODE(os.stat(labels).st_mode) == 0o640
    payload_kind.set_up(PayloadPlan(at(path, "downwardAPI"), path, files(labels='a="2"'), 1 << 20, 2000), NOW)
    assert labels.read_text() == 'a="2"'
    assert len(mounts.mounts_below(path)) == 1
    assert mode(path) & 0o2550 == 0o2550
    disk.tear_down(paths, UID, "kubernetes.io~downward-api", "info")
    assert not os.path.exists(path)


def test_a_config_map_lies_on_the_disk_below_directories_of_its_own_and_goes_with_its_data(paths: Paths) -> None:
    path = paths.volume(UID, CONFIG_MAP, "conf")
    plan = PayloadPlan(at(path), path, files(a="1"), in_memory=False, nested=("cache/deep",))
    payload_kind.set_up(plan, NOW)
    assert not mounts.is_mount_point(path)
    assert mode(path) == 0o777 and mode(f"{path}/cache/deep") == 0o755
    assert Path(path, "a").read_text() == "1"
    plan = PayloadPlan(at(path), path, files(b="2"), in_memory=False, nested=("cache/deep",))
    payload_kind.set_up(plan, SetUpContext(WALL + 1, OFF))
    assert sorted(name for name in os.listdir(path) if not name.startswith("..")) == ["b", "cache"]
    assert disk.read_volumes(paths, UID) == (FoundVolume(CONFIG_MAP, "conf"),)
    disk.tear_down(paths, UID, CONFIG_MAP, "conf")
    assert not Path(path).exists()


@pytest.mark.integration
def test_a_private_file_belongs_to_its_user_before_it_is_visible(paths: Paths) -> None:
    path = paths.volume(UID, "kubernetes.io/projected", "token")
    token = PayloadFile("token", b"secret", 0o600, 1000)
    payload_kind.set_up(PayloadPlan(at(path, "projected"), path, (token, *files(ca="CA")), 1 << 20), NOW)
    found = os.stat(f"{path}/token")
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (1000, 0o600)
    assert (os.stat(f"{path}/ca").st_uid, mode(f"{path}/..data/ca")) == (0, 0o640)
    group = PayloadPlan(at(path, "projected"), path, (PayloadFile("token", b"new", 0o600),), 1 << 20, fs_group=2000)
    payload_kind.set_up(group, SetUpContext(WALL + 1, OFF))
    found = os.stat(f"{path}/token")
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (0, 2000, 0o640)


def local_plan(paths: Paths, source: Path, group: int | None = None, *options: str) -> local.LocalPlan:
    path = paths.volume(UID, "kubernetes.io/local-volume", "pv")
    mounted = MountedVolume("v", "local", path, spec_name="pv")
    return local.LocalPlan(mounted, path, local_device(paths, source), options, group)


def local_device(paths: Paths, source: Path) -> local.LocalDevice:
    name = "kubernetes.io/local-volume"
    return local.LocalDevice(f"{name}/pv", "local", Beneath(paths.plugins, f"{name}/mounts/pv"), path=str(source))


def test_a_local_volume_is_a_bind_with_its_options_and_keeps_its_data(paths: Paths, tmp_path: Path) -> None:
    source = tmp_path / "disk"
    source.mkdir()
    (source / "old").write_text("kept")
    plan = local_plan(paths, source, 2000, "noexec", "ro")
    local.set_up(plan, NOW)
    local.set_up(plan, NOW)  # a second time changes nothing
    bound = mounts.mounts_below(plan.path)
    assert len(bound) == 1 and {"ro", "noexec"} <= set(bound[0].options)
    assert os.stat(source / "old").st_gid == 2000
    (source / "old").touch()  # the directory itself is still writable
    os.chown(source / "old", 0, 0)
    path = paths.volume(PodUID("0f1e2d3d"), "kubernetes.io/local-volume", "pv")
    other = MountedVolume("v", "local", path, spec_name="pv")
    second = local.LocalPlan(other, path, local_device(paths, source), (), 3000)
    local.set_up(second, NOW)
    assert os.stat(source / "old").st_gid == 0  # another pod uses it: its group is left alone
    mounts.unmount(second.path)
    disk.tear_down(paths, UID, "kubernetes.io~local-volume", "pv")
    disk.tear_down(paths, UID, "kubernetes.io~local-volume", "pv")
    assert not os.path.exists(plan.path) and (source / "old").read_text() == "kept"


def test_a_local_volume_needs_a_directory_or_a_device(paths: Paths, tmp_path: Path) -> None:
    with pytest.raises(VolumesError, match="does not exist") as missing:
        local.set_up(local_plan(paths, tmp_path / "none"), NOW)
    assert missing.value.step == "NewMounter initialization"
    (tmp_path / "file").touch()
    with pytest.raises(VolumesError, match="only directory and block device are supported"):
        local.set_up(local_plan(paths, tmp_path / "file"), NOW)
    disk.tear_down(paths, UID, "kubernetes.io~local-volume", "pv")
    assert disk.remove_pod(paths, UID) == ()


def test_a_bind_whose_options_were_not_applied_gets_them_at_the_next_try(paths: Paths, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    path = paths.volume(UID, "kubernetes.io/local-volume", "pv")
    os.makedirs(path)
    mounts.bind(f"{tmp_path}/disk", path)  # the agent ended here
    plan = local.LocalPlan(at(path, "local"), path, local_device(paths, tmp_path / "disk"), ("noexec", "nosuid"))
    local.set_up(plan, NOW)
    assert os.statvfs(path).f_flag & (os.ST_NOEXEC | os.ST_NOSUID) == os.ST_NOEXEC | os.ST_NOSUID
    disk.tear_down(paths, UID, "kubernetes.io~local-volume", "pv")
    assert disk.remove_pod(paths, UID) == ()
