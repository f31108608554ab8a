"""What `/metrics/cadvisor` reports about cgroups, from a usage made by hand."""

from __future__ import annotations

from pykubelet.base.kit.metrics import MetricFamily
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import PodRef, PodUID
from pykubelet.base.model.usage import (
    ContainerUse,
    CpuUse,
    Details,
    DeviceIo,
    DiskUse,
    FileSystemUse,
    GroupDetail,
    GroupUse,
    InterfaceUse,
    MemoryUse,
    NetworkUse,
    NodeUse,
    PodUse,
    ProcessesUse,
    Usage,
)
from pykubelet.serve.metrics.cadvisor import MachineFacts, cadvisor_families

MACHINE = MachineFacts(2, 1, 1, 1 << 30, 0, "boot", "machine", "system", "6.1", "Linux")
UID = PodUID("u1")
VDA = DiskUse("vda", "254:0", 100, 5, 64, 2500, 40, 6, 8, 1500, 3, 4000, 9000)


def group(path: str) -> GroupUse:
    return GroupUse(7.0, CpuUse(), MemoryUse(), processes=3, path=path)


def reported(details: Details | None) -> dict[str, list[tuple[dict[str, str], float]]]:
    containers = tuple(
        ContainerUse(name, f"id-{name}", "busybox", f"/p/{name}", 1.0, group(f"/p/{name}")) for name in "ab"
    )
    pod = PodUse(PodRef("shop", "web", UID), "/p", 1.0, group("/p"), containers)
    usage = Usage(1.0, NodeUse(group("/"), 1 << 30, 0.0), {UID: pod}, True, details)
    return {f.name: [(dict(s.labels), s.value) for s in f.samples] for f in cadvisor_families(usage, MACHINE)}


def of(samples: list[tuple[dict[str, str], float]], id: str) -> list[tuple[str, float]]:
    return [(labels.get("device", ""), value) for labels, value in samples if labels["id"] == id]


def test_input_and_output_by_device() -> None:
    busy = GroupDetail((DeviceIo("254:0", 4096, 512, 3, 1), DeviceIo("8:0", 10)))
    families = reported(Details({"/p/a": busy, "/p/b": GroupDetail(), "/p": GroupDetail()}, (VDA,), "254:0"))
    read = families["container_fs_reads_bytes_total"]
    assert of(read, "/") == [("/dev/vda", 64 * 512)]
    assert of(read, "/p/a") == [("/dev/vda", 4096), ("", 10)]
    assert of(read, "/p/b") == [("/dev/vda", 0)], "a container always states something"
    assert of(read, "/p") == []
    assert of(families["container_fs_writes_total"], "/p/a") == [("/dev/vda", 1), ("", 0)]
    assert of(families["container_fs_write_seconds_total"], "/") == [("/dev/vda", 1.5)]
    assert of(families["container_fs_write_seconds_total"], "/p/a") == []
    (labels, value) = families["container_blkio_device_usage_total"][1]
    assert (labels["major"], labels["minor"], labels["operation"], value) == ("254", "0", "Write", 512)


def test_what_processes_have_open() -> None:
    open_now = GroupDetail((), ProcessesUse(2, 9, 4, 1024), 50)
    families = reported(Details({"/p/a": open_now, "/p/b": GroupDetail()}))
    for name, value in {
        "container_processes": 2,
        "container_file_descriptors": 9,
        "container_sockets": 4,
        "container_threads_max": 50,
        "container_ulimits_soft": 1024,
    }.items():
        assert of(families[name], "/p/a") == [("", value)], name
    assert of(families["container_threads_max"], "/p/b") == [("", 0)]
    assert of(families["container_ulimits_soft"], "/p/b") == []
    assert families["container_ulimits_soft"][0][0]["ulimit"] == "max_open_files"


def test_without_details_the_rest_is_reported() -> None:
    families = reported(None)
    assert of(families["container_threads"], "/p/a") == [("", 3)]
    assert "container_sockets" not in families


def test_pause_containers_and_qos_groups_are_named_by_their_own_path() -> None:
    scope = "/kubepods.slice/kubepods-burstable.slice/pod.slice/cri-containerd-5a5b.scope"
    pod = PodUse(PodRef("shop", "web", UID), "/p", 1.0, group("/p"), sandbox_id="5a5b", sandbox=group(scope))
    classes = (group("/kubepods.slice/kubepods-burstable.slice"), group("/kubepods.slice/kubepods-besteffort.slice"))
    usage = Usage(1.0, NodeUse(group("/"), 1 << 30, 0.0, qos_groups=classes), {UID: pod})
    [threads] = [family for family in cadvisor_families(usage, MACHINE) if family.name == "container_threads"]
    found = {labels["id"]: labels["name"] for sample in threads.samples if (labels := dict(sample.labels))}
    assert found == {"/": "", "/p": "", scope: "5a5b"} | {qos.path: "" for qos in classes}


def families_of(usage: Usage) -> dict[str, MetricFamily]:
    return {family.name: family for family in cadvisor_families(usage, MACHINE)}


def test_pause_containers_have_their_image_which_queries_ask_for() -> None:
    network = NetworkUse(7.0, (InterfaceUse("eth0", 5),))
    ref = PodRef("shop", "web", UID)
    pod = PodUse(ref, "/p", 1.0, group("/p"), (), network, "5a5b", group("/p/5a5b"), sandbox_image="pause:1")
    families = families_of(Usage(1.0, NodeUse(group("/"), 1 << 30, 0.0), {UID: pod}))
    [received] = families["container_network_receive_bytes_total"].samples
    labels = dict(received.labels)
    assert (labels["image"], labels["name"], labels["container"], labels["pod"]) == ("pause:1", "5a5b", "", "web")


def test_what_is_set_when_a_container_is_made_has_no_time_of_its_own() -> None:
    families = families_of(Usage(1.0, NodeUse(group("/"), 1 << 30, 12.75)))
    [started] = families["container_start_time_seconds"].samples
    [seen] = families["container_last_seen"].samples
    [shares] = families["container_spec_cpu_shares"].samples
    assert (started.value, started.at) == (12, None)
    assert (seen.value, seen.at) == (7, 7.0)
    assert shares.at is None


def test_file_systems_have_the_names_of_their_devices() -> None:
    root = FileSystemUse(7.0, 100, 50, 10, 1000, 900, 7, "/dev/vda1")
    images = FileSystemUse(7.0, 200, 50, 20, 1000, 900, 7, "/dev/mapper/images")
    containers = (ContainerUse("a", "id-a", "busybox", "/p/a", 1.0, group("/p/a"), replace(images, used=3)),)
    pod = PodUse(PodRef("shop", "web", UID), "/p", 1.0, group("/p"), containers)
    node = NodeUse(group("/"), 1 << 30, 0.0, fs=root, image_fs=images, container_fs=images)
    families = families_of(Usage(1.0, node, {UID: pod}, True))

    def shown(name: str) -> dict[tuple[str, str], float]:
        found = [(dict(sample.labels), sample.value) for sample in families[name].samples]
        return {(labels["id"], labels["device"]): value for labels, value in found}

    assert shown("container_fs_limit_bytes") == {("/", "/dev/vda1"): 100, ("/", "/dev/mapper/images"): 200}
    assert shown("container_fs_usage_bytes") == {
        ("/", "/dev/vda1"): 10,
        ("/", "/dev/mapper/images"): 150,
        ("/p/a", "/dev/mapper/images"): 3,
    }
    nameless = families_of(Usage(1.0, replace(node, fs=replace(root, device=""), image_fs=None, container_fs=None)))
    assert [dict(s.labels)["device"] for s in nameless["container_fs_inodes_total"].samples] == ["rootfs"]
