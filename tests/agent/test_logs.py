"""Container logs on disk: where they lie, who links to them, and how they are rotated."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest
from support.agent import NODE_NAME, Agent, container_status, make_container, make_pod

pytestmark = pytest.mark.integration

SETTINGS = {"containerLogMaxSize": "8Ki", "containerLogMaxFiles": 3, "containerLogMonitorInterval": "3s"}


async def test_where_logs_lie(agent: Agent) -> None:
    agent.put(make_pod("speaker", make_container(script="echo hello; echo error >&2; sleep 1000")))
    [pod] = await agent.wait_running("speaker")
    uid = pod["metadata"]["uid"]
    log = agent.logs / f"default_speaker-{NODE_NAME}_{uid}" / "main" / "0.log"
    await agent.wait_for("it spoke", lambda: log.exists() and len(log.read_text().splitlines()) == 2)
    found = {tuple(line.split(" ", 3)[1:]) for line in log.read_text().splitlines()}
    assert found == {("stdout", "F", "hello"), ("stderr", "F", "error")}
    container_id = container_status(pod)["containerID"].partition("://")[2]
    link = Path(f"/var/log/containers/speaker-{NODE_NAME}_default_main-{container_id}.log")
    await agent.wait_for("its link is made", link.is_symlink)  # after the start, of which the agent may hear before
    assert os.readlink(link) == str(log)
    agent.remove("speaker")
    await agent.wait_gone("speaker")
    await agent.wait_for(
        "its log and link are gone", lambda: not log.exists() and link.name not in os.listdir(link.parent)
    )


async def test_each_restart_has_a_log_of_its_own(agent: Agent) -> None:
    script = "echo number; [ -e /data/once ] && exec sleep 1000; touch /data/once; exit 1"
    container = make_container(script=script, volumeMounts=[{"name": "data", "mountPath": "/data"}])
    agent.put(make_pod("again", container, volumes=[{"name": "data", "emptyDir": {}}]))
    await agent.wait_pod("again", "restarted", lambda pod: container_status(pod)["restartCount"] == 1)
    await agent.wait_for(
        "both logs", lambda: agent.output("again", "main", 0) == agent.output("again", "main", 1) != ""
    )
    agent.remove("again")


async def test_logs_rotate_by_size_and_count(agent: Agent) -> None:
    """Nothing is lost, old files are compressed, and no more are kept than configured."""
    script = "n=0; while :; do n=$((n+1)); echo line $n of the log that shall be rotated; usleep 4000; done"
    agent.put(make_pod("chatty", make_container(script=script)))
    await agent.wait_running("chatty")

    def files() -> list[Path]:
        return sorted(agent.logs.glob(f"*_chatty-{NODE_NAME}_*/main/*"))

    def after_a_rotation() -> tuple[list[int], list[int]] | None:
        """The content of a compressed log and of an older one, which differ; None while they are missing or just removed."""
        found = [path for path in files() if path.suffix != ".tmp"]
        assert len(found) <= 3
        packed = [path for path in found if path.suffix == ".gz"]
        is_so = len(found) == 3 and len(packed) == 1 and found[0].name == "0.log" and packed[0].stem != found[2].name
        if not is_so or packed[0] is found[2] or packed[0].stem == found[1].name:
            return None
        try:
            return numbers(gzip.decompress(packed[0].read_bytes())), numbers(found[2].read_bytes())
        except FileNotFoundError:
            return None

    first, last = await agent.wait_for("rotated and compressed", after_a_rotation)
    assert first == list(range(first[0], first[-1] + 1)) and last[0] == first[-1] + 1
    agent.remove("chatty")


def numbers(data: bytes) -> list[int]:
    """The numbers in a log's lines."""
    return [int(line.split()[4]) for line in data.decode().splitlines()]
