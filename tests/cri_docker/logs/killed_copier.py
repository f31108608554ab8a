"""A program: copies a log through rotations on both sides, and is killed at each effect that it has on files.

Usage: killed_copier.py DIRECTORY. Prints the number of kills, and fails if any line of the log was lost or is there twice.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cri_docker.logs.docker_file import ID, DockerFile

from pykubelet_cri_docker.logs import copier, docker_log, positions

#: So small that there are several slices and saved positions.
docker_log.SLICE = 300
copier.SAVE_BYTES = 500


class Node:
    """A container, its logs, and what Docker and the kubelet do in each stage. They are not killed."""

    def __init__(self, top: Path) -> None:
        self.docker = DockerFile(top)
        self.cri = top / "pods" / "pod" / "container" / "0.log"
        self.cri.parent.mkdir(parents=True)
        self.stages: list[Callable[[], None]] = [
            lambda: self.write("one\ntwo\n" * 5),
            lambda: self.write("three\n", "x" * 20000 + "\nfour\n"),
            self.rotate,
            lambda: self.write("five\n", "six\n" * 8, "seven\n"),
            self.rotate,
        ]
        self.rotations = 0
        self.is_rotating = False

    def write(self, first: str, *others: str) -> None:
        """Write to several of Docker's files."""
        self.docker.write(first, "stderr")
        for text in others:
            self.docker.rotate()
            self.docker.write(text)

    def rotate(self) -> None:
        """Write, and have the CRI log rotated in this stage."""
        self.rotations += 1
        self.is_rotating = True
        self.write("more\n" * 5)

    @property
    def rotated(self) -> Path:
        return self.cri.with_name(f"0.log.{self.rotations}")

    @property
    def answered(self) -> Path:
        """Whether ReopenContainerLog was answered."""
        return self.cri.parents[3] / f"answered-{self.rotations}"

    def live(self, kill_at: int) -> bool:
        """One run of the adapter, in a process of its own. Returns whether it was killed."""
        if self.is_rotating and self.rotated.exists() and not self.answered.exists():
            self.rotated.replace(self.cri)  # the call has failed
        child = os.fork()
        if child == 0:
            Effects(kill_at)
            self.run()
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status == 0 or (status == -signal.SIGKILL and kill_at), status
        return status != 0

    def run(self) -> None:
        top = self.cri.parents[3]
        copying = copier.Copier(ID, str(self.docker.path), str(self.cri), positions.Positions(str(top / "state")))
        if self.is_rotating and not self.answered.exists():
            copying.step()
            self.cri.rename(self.rotated)
            copying.reopen()
            self.answered.touch()
        while not copying.step():
            pass
        copying.close()


class Effects:
    """Counts the effects of this process on files, and kills it before one of them, or in the middle of a write."""

    def __init__(self, kill_at: int) -> None:
        self.count = 0
        self._kill_at = kill_at
        for name in ("ftruncate", "mkdir", "open", "rename", "unlink"):
            setattr(os, name, self._counted(getattr(os, name)))
        self._write = os.write
        setattr(os, "write", self._write_half)  # noqa: B010

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            self._count()
            return call(*args, **options)

        return counted

    def _write_half(self, fd: int, data: bytes | memoryview) -> int:
        self._count()
        written = self._write(fd, data[: len(data) // 2])
        self._count()
        return written + self._write(fd, data[len(data) // 2 :])

    def _count(self) -> None:
        self.count += 1
        if self.count == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


class Snapshot:
    """All files of a node, to be brought back with the same inodes."""

    def __init__(self, top: Path, aside: Path) -> None:
        self._top = top
        self._files: list[tuple[Path, Path, bytes]] = []
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        for number, path in enumerate(path for path in sorted(top.rglob("*")) if path.is_file()):
            kept = aside / str(number)
            kept.hardlink_to(path)
            self._files.append((path, kept, path.read_bytes()))

    def restore(self) -> None:
        """Bring the files back."""
        for path in self._top.rglob("*"):
            if path.is_file():
                path.unlink()
        for path, kept, content in self._files:
            path.hardlink_to(kept)
            path.write_bytes(content)


def main(top: Path) -> None:
    """Kill the run of each stage at each of its effects; the next run must complete the log. Go on from a run that is not killed."""
    kills = 0
    node = Node(top / "node")
    for act in node.stages:
        node.is_rotating = False
        act()
        before = Snapshot(top / "node", top / "aside")
        for effect in itertools.count(1):
            before.restore()
            was_killed = node.live(effect)
            if was_killed:
                kills += 1
                node.live(0)
            files = [*sorted(node.cri.parent.glob("0.log.*")), node.cri]
            found = b"".join(file.read_bytes() for file in files)
            assert found == node.docker.lines, f"{node.cri}: killed at {effect}"
            if not was_killed:
                break
    print(kills)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
