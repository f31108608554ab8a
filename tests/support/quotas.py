"""Project quotas: file systems that have them, and a double of the kernel's calls, which counts what a walk finds."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pykubelet.edges.host.fs import mounts
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.project_files import ProjectFiles
from pykubelet.edges.host.fs.quotas import VolumeQuotas
from pykubelet.edges.host.fs.trees import read_disk_usage

LARGEST = 2**58 - 1


class MemoryQuotas:
    """`QuotaCalls` in memory. `fails`: calls that end in an error. `used`: what is counted for projects of others."""

    def __init__(self) -> None:
        self.projects: dict[str, int] = {}
        self.limits: dict[int, int] = {}
        self.used: dict[int, tuple[int, int]] = {}
        self.largest = LARGEST
        self.fails: set[str] = set()

    def _check(self, call: str, path: str) -> None:
        if call in self.fails:
            raise HostError(call, path, "EIO", "input/output error")

    def largest_limit(self, path: str) -> int:
        self._check("state", path)
        return self.largest

    def project_of(self, path: str) -> int:
        self._check("project", path)
        return self.projects.get(path, 0)

    def use_of(self, path: str, project: int) -> tuple[int, int]:
        self._check("use", path)
        if project in self.used:
            return self.used[project]
        found = [read_disk_usage(place) for place, number in self.projects.items() if number == project]
        return sum(size for size, _ in found), sum(inodes for _, inodes in found)

    def limit(self, path: str, project: int, limit: int) -> None:
        self._check("limit", path)
        self.limits[project] = limit

    def move_tree(self, path: str, project: int) -> None:
        self._check("move", path)
        self.projects[path] = project


@dataclass(frozen=True)
class Format:
    """A file system with project quotas. `options`: of its mount."""

    make: tuple[str, ...]
    mib: int
    options: str
    largest_limit: int


_EXT4 = ("mkfs.ext4", "-q", "-O", "quota,project")
FORMATS = {
    "ext4": Format(_EXT4, 64, "loop,prjquota", 2**58 - 1),
    "ext4 mounted without prjquota": Format(_EXT4, 64, "loop", 2**58 - 1),
    "xfs": Format(("mkfs.xfs", "-q", "-f"), 320, "loop,prjquota", 2**63 - 1),
}


@contextlib.contextmanager
def quota_disk(name: str, folder: Path) -> Iterator[Path]:
    """A new file system of `FORMATS`, mounted; the test is skipped where the kernel or the tools have none."""
    image, target, kind = folder / "image", folder / "disk", FORMATS[name]
    target.mkdir()
    with image.open("wb") as file:
        file.truncate(kind.mib << 20)
    try:
        subprocess.run([*kind.make, str(image)], check=True)
        subprocess.run(["mount", "-o", kind.options, str(image), str(target)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no {name} with project quotas here: {error}")
    try:
        yield target
    finally:
        mounts.unmount(str(target))


def listed_in(folder: Path) -> ProjectFiles:
    """The list of projects in a folder of the test's own."""
    return ProjectFiles(str(folder / "projects"), str(folder / "projid"))


def volume_quotas(folder: Path, calls: MemoryQuotas, *, is_on: bool = True) -> VolumeQuotas:
    """`VolumeQuotas` with the list in `folder`."""
    return VolumeQuotas(is_on=is_on, files=listed_in(folder), calls=calls)
