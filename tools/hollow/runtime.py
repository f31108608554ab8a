"""The container runtime of hollow nodes: every image exists, containers are entries of a table, every exec succeeds.

Owns what differs from the doubles that tests use; those know only the images they were given.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence

from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.testing.cri.fake import FakeRuntime
from pykubelet.testing.cri.fake_answers import FakeAnswers
from pykubelet.testing.cri.fake_state import FakeContainer, FakeImage

#: The calls that `FakeRuntime` remembers for tests.
_KEPT_CALLS = 100
_FORGET_S = 10.0


class EveryImage(dict[str, FakeImage]):
    """A registry in which every image can be pulled."""

    def get(self, name: str, default: FakeImage | None = None) -> FakeImage | None:  # type: ignore[override]
        """The image of this name, whatever it is."""
        return super().get(name, default) or FakeImage(name)


def hollow_out(runtime: FakeAnswers) -> None:
    """Make a double answer for every image and every command."""
    runtime.registry = EveryImage()
    runtime.exec_handler = _succeed


async def _succeed(_container: FakeContainer, _command: list[str]) -> pb.ExecSyncResponse:
    return pb.ExecSyncResponse(exit_code=0)


async def serve(path: str, images: Sequence[str] = ()) -> None:
    """Serve CRI for one node at a socket, until cancelled. `images`: are there without a pull. Containers are gone with this
    process."""
    runtime = FakeRuntime(path)
    hollow_out(runtime)
    for image in images:
        runtime.add_image(image)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    await runtime.start()
    try:
        while True:
            await asyncio.sleep(_FORGET_S)
            del runtime.calls[:-_KEPT_CALLS]
    finally:
        await runtime.stop()
