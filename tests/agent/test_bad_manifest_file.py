"""A single manifest file in place of a directory that is bad when the agent starts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.agent import Agent, Json, make_pod

pytestmark = pytest.mark.integration


async def test_one_bad_file_instead_of_a_directory_is_reported_and_stops_nothing(
    make_agent: Callable[..., Agent], tmp_path: Path
) -> None:
    """The pod of an earlier run, when the file was good, runs on."""
    file = tmp_path / "pod.yaml"
    file.write_text(json.dumps(make_pod("only")))
    agent = make_agent(staticPodPath=str(file)).start()
    await agent.wait_running("only")
    before = (await agent.look()).running_ids()
    agent.stop()
    file.write_text("apiVersion: v1\nkind: Job\n")
    agent.start()

    def reported() -> list[Json]:
        return [p for p in agent.ask_json("pods")["problems"] if p["origin"] == str(file)]

    await agent.wait_for("the bad file is reported", lambda: bool(reported()))
    assert reported()[0]["field_path"] == "kind" and "Job" in reported()[0]["reason"]
    for shown in (agent.ask("pods").stdout, agent.ask("explain", "node").stdout):
        assert str(file) in shown and "Job" in shown
    assert (await agent.look()).running_ids() == before
