"""Block devices for tests: loop devices on files of their own, detached at the end."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pykubelet.edges.host.devices.loops import attach_loop, detach_loop, find_loops
from pykubelet.edges.host.fs import mounts


@contextmanager
def block_device(size: int = 16 << 20) -> Iterator[str]:
    """The path of an empty block device."""
    with tempfile.TemporaryDirectory(prefix="block") as folder:
        image = Path(folder, "image")
        with image.open("wb") as file:
            file.truncate(size)
        device = attach_loop(str(image))
        try:
            yield device
        finally:
            detach_loop(device)
            assert find_loops(str(image)) == [], "the loop device is still in use"


def file_system_size(path: str) -> int:
    """The size of the file system at `path`, in bytes."""
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize


def written(path: Path) -> IO[str]:
    """A new file, open for writing."""
    return path.open("w")


@contextmanager
def bound_elsewhere(source: str) -> Iterator[None]:
    """A process that has `source` bound to another directory, in a mount namespace of its own."""
    with tempfile.TemporaryDirectory(prefix="bound") as target:
        script = f"mount --bind {source} {target} && echo ready && read -r _"
        words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None and process.stdout.readline() == b"ready\n"
                yield
            finally:
                process.kill()


@contextmanager
def clean_folder() -> Iterator[Path]:
    """A directory below which everything is unmounted at the end."""
    folder = tempfile.mkdtemp(prefix="b")
    try:
        yield Path(folder)
    finally:
        for mount in mounts.mounts_below(folder):
            mounts.unmount(mount.target, detach=True)
        assert not mounts.mounts_below(folder)
        os.system(f"rm -rf --one-file-system {folder}")
