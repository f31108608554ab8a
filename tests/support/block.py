"""Block devices for tests: loop devices on files of their own, detached at the end."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
