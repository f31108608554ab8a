"""The machine's size and identity, read at start and again for the node's status.

Owns: `Machine`. Not here: how much of it pods may use (provide/cgroups), and how it is reported (report/node).
"""

from __future__ import annotations

from collections.abc import Sequence

from pykubelet.base.api.quantity import page_resource
from pykubelet.base.kit.values import Value
from pykubelet.edges.host.fs.mounts import read_fs_usage
from pykubelet.edges.host.proc import procfs


class Machine(Value):
    """The facts of the machine: CPUs in milli, everything else in bytes or pieces.

    `cores`: physical cores. `huge_pages`: the bytes in huge pages by page size. `cpus`: the online CPUs as the kernel lists them
    (`0-3`); empty if unknown. `throttle_paths`: the directories of the CPUs' thermal throttle counters, which containers must
    not read. `in_user_namespace`: the agent is not in the machine's initial user namespace (KEP-2033).
    """

    cpu_milli: int
    memory_bytes: int
    swap_bytes: int
    huge_pages: tuple[tuple[int, int], ...]
    pids: int
    root_fs_bytes: int
    machine_id: str
    system_uuid: str
    boot_id: str
    kernel_version: str
    os_image: str
    architecture: str
    hostname: str
    throttle_paths: tuple[str, ...] = ()
    sockets: int = 1
    cores: int = 1
    cpus: str = ""
    in_user_namespace: bool = False

    @property
    def page_sizes(self) -> tuple[int, ...]:
        """The sizes of huge pages in bytes, smallest first."""
        return tuple(size for size, _ in self.huge_pages)

    def capacity(self) -> dict[str, int]:
        """The capacity by resource name, as in `NodeView.capacity`: `cpu` in milli; `pid` is only for reservations."""
        found = {"cpu": self.cpu_milli, "memory": self.memory_bytes, "ephemeral-storage": self.root_fs_bytes}
        found.update((page_resource(size), amount) for size, amount in self.huge_pages)
        if self.pids:
            found["pid"] = self.pids
        return found


def read_machine(
    root: str = "/",
    root_dir: str = "/",
    machine_id_files: Sequence[str] = procfs.MACHINE_ID_FILES,
    boot_id_files: Sequence[str] = procfs.BOOT_ID_FILES,
) -> Machine:
    """Read the current facts. `root`: the directory with /proc, /sys and /etc. `root_dir`: a path on the pods' file system."""
    memory = procfs.read_meminfo(root)
    release = procfs.read_os_release(root)
    sockets, cores = procfs.read_cpu_topology(root)
    return Machine(
        cpu_milli=procfs.read_cpu_count(root) * 1000,
        memory_bytes=memory.get("MemTotal", 0),
        swap_bytes=memory.get("SwapTotal", 0),
        huge_pages=tuple((pages.size, pages.size * pages.total) for pages in procfs.read_huge_pages(root)),
        pids=procfs.read_pid_limit(root),
        root_fs_bytes=read_fs_usage(root_dir).capacity_bytes,
        machine_id=procfs.read_id(machine_id_files, root),
        system_uuid=procfs.read_system_uuid(root),
        boot_id=procfs.read_id(boot_id_files, root),
        kernel_version=procfs.read_kernel_release(root),
        os_image=release.get("PRETTY_NAME", "Linux"),
        architecture=procfs.read_architecture(),
        hostname=procfs.read_hostname(root),
        throttle_paths=procfs.find_throttle_paths(root),
        sockets=sockets,
        cores=cores,
        cpus=procfs.read_online_cpus(root),
        in_user_namespace=procfs.in_user_namespace(f"{root.rstrip('/')}/proc"),
    )
