"""The runtime double without gRPC, in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.virtual_time import virtual_clock

from pykubelet.testing.cri.fake_answers import FakeFeatures
from pykubelet.testing.cri.in_memory import MemoryRuntime


@contextmanager
def memory_runtime(folder: Path, *images: str, features: FakeFeatures | None = None) -> Iterator[MemoryRuntime]:
    """A running one whose socket is in this folder, with these images in its store."""
    runtime = MemoryRuntime(str(folder / "cri.sock"), virtual_clock(), features)
    for image in images:
        runtime.add_image(image)
    runtime.start()
    yield runtime
    runtime.stop()
