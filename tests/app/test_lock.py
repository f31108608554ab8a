"""The lock file: a second agent is refused, and may make the first one end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pykubelet.app.lock import stop_on_contention, take_lock
from pykubelet.app.prepare import AgentStartError

pytestmark = pytest.mark.virtual_time


def contend(path: Path) -> None:
    with pytest.raises(AgentStartError, match="is held by another process"):
        take_lock(str(path))


def replace_file(path: Path) -> None:
    new = path.with_suffix(".new")
    new.touch()
    new.rename(path)


@pytest.mark.parametrize("touch", [contend, Path.unlink, replace_file, Path.read_text])
async def test_an_agent_gives_way_when_its_lock_file_is_touched(
    tmp_path: Path, touch: Callable[[Path], object]
) -> None:
    path = tmp_path / "lock"
    held = take_lock(str(path))
    stop = asyncio.Event()
    watching = asyncio.get_running_loop().create_task(stop_on_contention(str(path), stop))
    await asyncio.sleep(0)
    os.chmod(path, 0o640)
    await asyncio.sleep(0.05)
    assert not stop.is_set(), "other attributes do not count"
    touch(path)
    await asyncio.wait_for(stop.wait(), 10)
    await watching
    assert held is not None
    os.close(held)
