"""Reads and sets kernel parameters, and defines the values that a node needs.

Owns: /proc/sys. Source: sysctl(8); the reference kubelet's `protectKernelDefaults`.
"""

from __future__ import annotations

from pykubelet.base.kit.values import Value
from pykubelet.edges.host.fs import files

KERNEL_DEFAULTS = (
    ("vm/overcommit_memory", 1),
    ("vm/panic_on_oom", 0),
    ("kernel/panic", 10),
    ("kernel/panic_on_oops", 1),
    ("kernel/keys/root_maxkeys", 1_000_000),
    ("kernel/keys/root_maxbytes", 25_000_000),
)


class WrongFlag(Value):
    """A parameter with a wrong value."""

    name: str
    expected: int
    actual: int

    def __str__(self) -> str:
        return f"invalid kernel flag: {self.name}, expected value: {self.expected}, actual value: {self.actual}"


def read_sysctl(name: str, root: str = "/") -> int:
    """Read a parameter such as `vm/overcommit_memory` as a number. Raises HostError."""
    return int(files.read_text(f"{root.rstrip('/')}/proc/sys/{name}").split()[0])


def write_sysctl(name: str, value: int, root: str = "/") -> None:
    """Set a parameter such as `vm/overcommit_memory`. Raises HostError if it does not exist or the kernel refuses."""
    files.write_value(f"{root.rstrip('/')}/proc/sys/{name}", str(value))


def check_kernel_defaults(root: str = "/") -> tuple[WrongFlag, ...]:
    """The parameters that differ from what a node needs. Raises HostError if one cannot be read."""
    found = ((name, expected, read_sysctl(name, root)) for name, expected in KERNEL_DEFAULTS)
    return tuple(WrongFlag(name, expected, actual) for name, expected, actual in found if actual != expected)


def set_kernel_defaults(root: str = "/") -> tuple[WrongFlag, ...]:
    """Set the parameters that differ, and return them. Raises HostError if the kernel refuses."""
    wrong = check_kernel_defaults(root)
    for flag in wrong:
        write_sysctl(flag.name, flag.expected, root)
    return wrong
