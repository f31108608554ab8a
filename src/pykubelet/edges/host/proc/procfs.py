"""Reads the small files in which the kernel and the distribution describe this machine.

Owns: /proc, /sys and /etc as values. `root`: a directory that is prepended to every path, for tests. Files that do not exist
give empty values; other failures raise HostError. Source: proc(5), os-release(5), machine-id(5).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping

from pykubelet.base.kit.values import Value
from pykubelet.edges.host.fs import files
from pykubelet.edges.host.fs.errors import HostError, Translating, suppress_not_found

MACHINE_ID_FILES = ("/etc/machine-id", "/var/lib/dbus/machine-id")
BOOT_ID_FILES = ("/proc/sys/kernel/random/boot_id",)
_GO_ARCHITECTURES = {
    "x86_64": "amd64",
    "aarch64": "arm64",
    "armv7l": "arm",
    "armv6l": "arm",
    "i686": "386",
    "i386": "386",
    "ppc64le": "ppc64le",
    "s390x": "s390x",
    "riscv64": "riscv64",
    "loongarch64": "loong64",
}
_INITIAL_USER_NAMESPACE = ["0", "0", "4294967295"]


class HugePages(Value):
    """Huge pages of one size (bytes), and how many there are."""

    size: int
    total: int


class DefaultRoute(Value):
    """A default route: its interface and its metric (the lowest is preferred)."""

    interface: str
    metric: int
    is_v6: bool


def _optional(path: str) -> str:
    try:
        return files.read_text(path)
    except HostError as error:
        if error.is_not_found or error.errno_name in ("EINVAL", "EACCES"):
            return ""
        raise


def _under(root: str, path: str) -> str:
    return root.rstrip("/") + path


def read_meminfo(root: str = "/") -> Mapping[str, int]:
    """/proc/meminfo in bytes (`MemTotal`, `SwapTotal`...). The `HugePages_` entries are counts."""
    values: dict[str, int] = {}
    for line in files.read_text(_under(root, "/proc/meminfo")).splitlines():
        name, _, rest = line.partition(":")
        fields = rest.split()
        if fields and fields[0].isdigit():
            values[name] = int(fields[0]) * (1024 if fields[-1] == "kB" else 1)
    return values


def listed(text: str) -> list[int]:
    """The ids in a kernel list like `0-3,8`."""
    found: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            found += range(int(first), int(last or first) + 1)
    return found


def count_listed(text: str) -> int:
    """The number of ids in a kernel list."""
    return len(listed(text))


def read_online_cpus(root: str = "/") -> str:
    """The online CPUs, as the kernel lists them (`0-3,8`); empty if unknown."""
    return _optional(_under(root, "/sys/devices/system/cpu/online")).strip()


def read_cpu_count(root: str = "/") -> int:
    """The number of online CPUs."""
    online = count_listed(read_online_cpus(root))
    if online:
        return online
    lines = _optional(_under(root, "/proc/cpuinfo")).splitlines()
    return sum(1 for line in lines if line.split(":")[0].strip() == "processor") or 1


def find_throttle_paths(root: str = "/") -> tuple[str, ...]:
    """The directories of the CPUs' thermal throttle counters, sorted by CPU number. Many machines have none."""
    base = "/sys/devices/system/cpu"
    try:
        names = [entry.name for entry in files.list_dir(_under(root, base))]
    except HostError:
        return ()
    numbers = sorted(int(name[3:]) for name in names if name.startswith("cpu") and name[3:].isdigit())
    paths = [f"{base}/cpu{number}/thermal_throttle" for number in numbers]
    return tuple(path for path in paths if files.stat_file(_under(root, path)) is not None)


def read_cpu_topology(root: str = "/") -> tuple[int, int]:
    """The number of sockets and of cores of the online CPUs. A CPU without topology files counts as a core of its own."""
    base = _under(root, "/sys/devices/system/cpu")
    sockets, cores = set(), set()
    for cpu in listed(_optional(f"{base}/online")):
        socket = _optional(f"{base}/cpu{cpu}/topology/physical_package_id").strip()
        core = _optional(f"{base}/cpu{cpu}/topology/core_id").strip()
        sockets.add(socket)
        cores.add((socket, core or f"cpu{cpu}"))
    return max(1, len(sockets - {""})), len(cores) or read_cpu_count(root)


def read_huge_pages(root: str = "/") -> tuple[HugePages, ...]:
    """One entry for each page size of the kernel, smallest first."""
    base = _under(root, "/sys/kernel/mm/hugepages")
    names: list[str] = []
    with suppress_not_found:
        names = [entry.name for entry in files.list_dir(base)]
    found = []
    for name in names:
        size = name.removeprefix("hugepages-").removesuffix("kB")
        if not size.isdigit():
            continue
        found.append(HugePages(int(size) * 1024, _number(f"{base}/{name}/nr_hugepages")))
    return tuple(sorted(found, key=lambda pages: pages.size))


def _number(path: str) -> int:
    text = _optional(path).strip()
    return int(text) if text.isdigit() else 0


def read_id(files: Iterable[str], root: str = "/") -> str:
    """The id in the first of the files that has one; empty if none has."""
    return next((text for path in files if (text := _optional(_under(root, path)).strip())), "")


def read_system_uuid(root: str = "/") -> str:
    """The UUID from the firmware, else the machine id, as the reference's machine information does."""
    for path in ("/sys/class/dmi/id/product_uuid", "/proc/device-tree/system-id", "/proc/device-tree/vm,uuid"):
        if text := _optional(_under(root, path)).strip("\0\n "):
            return text
    return read_id(MACHINE_ID_FILES, root)


def read_os_release(root: str = "/") -> Mapping[str, str]:
    """os-release(5): `PRETTY_NAME`, `ID`, `VERSION_ID`..."""
    text = _optional(_under(root, "/etc/os-release")) or _optional(_under(root, "/usr/lib/os-release"))
    values = {}
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if not equals or name.startswith("#"):
            continue
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        values[name] = value.replace('\\"', '"').replace("\\$", "$").replace("\\`", "`").replace("\\\\", "\\")
    return values


def read_kernel_release(root: str = "/") -> str:
    """The release of the running kernel, as `uname -r` prints it."""
    return _optional(_under(root, "/proc/sys/kernel/osrelease")).strip() or os.uname().release


def read_architecture() -> str:
    """The machine's architecture as Go spells it (`amd64`)."""
    machine = os.uname().machine
    return _GO_ARCHITECTURES.get(machine, machine)


def read_hostname(root: str = "/") -> str:
    """The kernel's host name, unchanged."""
    return _optional(_under(root, "/proc/sys/kernel/hostname")).strip() or socket.gethostname()


def read_pid_limit(root: str = "/") -> int:
    """The most processes and threads that can exist; 0 if unknown."""
    limits = [_number(_under(root, f"/proc/sys/kernel/{name}")) for name in ("pid_max", "threads-max")]
    return min((limit for limit in limits if limit > 0), default=0)


def read_process_count(root: str = "/") -> int:
    """The number of processes and threads, as /proc/loadavg counts them."""
    fields = _optional(_under(root, "/proc/loadavg")).split()
    return int(fields[3].partition("/")[2]) if len(fields) > 3 else 0


def in_user_namespace(proc: str = "/proc") -> bool:
    """Whether this process is in another user namespace than the machine's initial one. False if it cannot be read.

    Source: user_namespaces(7): only the initial namespace maps all user IDs to themselves.
    """
    try:
        with open(f"{proc}/self/uid_map", encoding="ascii") as stream:
            return stream.read().split() != _INITIAL_USER_NAMESPACE
    except OSError:
        return False


def read_default_routes(root: str = "/") -> tuple[DefaultRoute, ...]:
    """The default routes that are up, IPv4 before IPv6, lowest metric first."""
    routes = []
    for line in _optional(_under(root, "/proc/net/route")).splitlines()[1:]:
        fields = line.split()
        if len(fields) >= 8 and fields[1] == "00000000" and fields[7] == "00000000" and int(fields[3], 16) & 1:
            routes.append(DefaultRoute(fields[0], int(fields[6]), False))
    for line in _optional(_under(root, "/proc/net/ipv6_route")).splitlines():
        fields = line.split()
        if len(fields) < 10 or fields[0] != "0" * 32 or fields[1] != "00" or fields[9] == "lo":
            continue
        if int(fields[8], 16) & 1 and not int(fields[8], 16) & 0x200:
            routes.append(DefaultRoute(fields[9], int(fields[5], 16), True))
    return tuple(sorted(routes, key=lambda route: (route.is_v6, route.metric)))


def resolve_host(name: str) -> tuple[str, ...]:
    """Resolve a name to addresses; empty if there are none. May block for seconds: use a `SingleFlight`."""
    try:
        with Translating("resolve", name):
            # text would be encoded with the codec `idna`, whose tables take half a MiB of memory
            host = name.encode() if name.isascii() else name
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except HostError:
        return ()
    return tuple(dict.fromkeys(str(address[4][0]) for address in found))
