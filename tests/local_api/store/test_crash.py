"""What was answered survives a kill at any moment: a process writes until it is killed, and the file is opened again."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pykubelet_local_api.store.database import Database

#: Writes a changing number of objects at once, removes some, and prints each version that was committed.
WRITER = """
import sys
from pykubelet_local_api.store.database import Database, Row, StoredKey
file = Database(sys.argv[1])
version = file.version
print(version, flush=True)
while True:
    version += 1
    rows = [Row(StoredKey("configmaps", "default", f"n{(version + at) % 50}"), b"%d" % version) for at in range(version % 7 + 1)]
    rows.append(Row(StoredKey("configmaps", "default", f"gone{version % 3}"), None if version % 2 else b"%d" % version))
    rows.append(Row(StoredKey("configmaps", "default", "version"), b"%d" % version))
    file.commit(rows, version)
    print(version, flush=True)
    if version % 20 == 0:
        file.copy()
"""


def committed(path: Path, kill_after: int, delay_s: float) -> int:
    """Run the writer, and kill it `delay_s` after so many commits. Returns the last version that it has stated."""
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        stated = [int(writer.stdout.readline()) for _ in range(kill_after + 1)]
        try:
            writer.wait(delay_s)
        except subprocess.TimeoutExpired:
            writer.send_signal(signal.SIGKILL)
        stated += [int(line) for line in writer.stdout.read().splitlines() if line]
    return stated[-1]


@pytest.mark.parametrize("seed", range(4))
def test_nothing_that_was_answered_is_lost_by_a_kill(tmp_path: Path, seed: int) -> None:
    numbers, path, last = random.Random(seed), tmp_path / "objects.db", 0
    for _ in range(3):
        last = committed(path, numbers.randrange(1, 40), numbers.random() * 0.01)
        file = Database(str(path))
        assert file.notes == []
        objects = {key.name: int(data) for key, data in file.rows()}
        # the version, and the object that each commit writes, are those of the last commit: stated, or the next one
        assert file.version in (last, last + 1)
        assert objects["version"] == file.version
        assert all(found <= file.version for found in objects.values())
        file.close()
