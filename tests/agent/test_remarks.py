"""A node whose configuration and manifests have fields that the kubelet ignores: it starts, its pods run, and each field is named."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml
from support.agent import Agent, container_status, make_container, make_pod
from testbed.private_runtime import Testbed

pytestmark = pytest.mark.integration

HEADER = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
TYPO = yaml.safe_dump(make_pod("typo", make_container(imagePolicy="x")), sort_keys=False)
TWICE = json.dumps(make_pod("twice"))[:-1] + ', "metadata": {"labels": {"a": "b"}}}'
ABOUT_TYPO = ("typo.yaml", "spec.containers[0].imagePolicy", 'unknown field, ignored; did you mean "imagePullPolicy"?')
ABOUT_TWICE = ("twice.json", "metadata", "duplicate field: the last value counts, and objects are merged")
ABOUT_CONFIG = [
    ("kubelet.yaml", "maxPod", 'unknown field, ignored; did you mean "maxPods"?'),
    ("10.conf", "newField", "unknown field, ignored"),
]


@pytest.fixture
async def agent(testbed: Testbed) -> AsyncIterator[Agent]:
    folder = Path(testbed.folder) / "remarks"
    drop_ins = folder / "conf.d"
    made = Agent(testbed, folder, settings={"maxPod": 5, "maxPods": 20}, flags=("--config-dir", str(drop_ins)))
    drop_ins.mkdir()
    (drop_ins / "10.conf").write_text(f"{HEADER}newField: {{of: a later release}}\n")
    made.put_text("typo.yaml", TYPO)
    made.put_text("twice.json", TWICE)
    yield made.start()
    await made.clear()


def remarks(agent: Agent, subject: str) -> list[tuple[str, str, str]]:
    """What `pykubelet explain` remarks, with the names of the files."""
    found = agent.ask_json("explain", subject)["remarks"]
    return [(remark["origin"].rpartition("/")[2], remark["field_path"], remark["reason"]) for remark in found]


async def test_a_node_with_old_typos_starts_and_runs_its_pods_and_names_each(agent: Agent) -> None:
    await agent.wait_running("typo", "twice")
    assert agent.pods()["twice"]["metadata"]["labels"] == {"a": "b"}
    assert sorted(remarks(agent, "node")) == sorted([*ABOUT_CONFIG, ABOUT_TYPO, ABOUT_TWICE])
    assert remarks(agent, "typo") == [ABOUT_TYPO] and remarks(agent, "twice") == [ABOUT_TWICE]
    assert "spec.containers[0].imagePolicy: unknown field" in agent.ask("explain", "node").stdout
    for word in ("maxPod", "newField", "spec.containers[0].imagePolicy"):
        (line,) = (line for line in agent.log_text().splitlines() if f'"{word}"' in line or f"={word}" in line)
        assert "remark about" in line and "unknown field" in line
    report = agent.ask("takeover", "--check", "--", *agent.command()[1:])
    assert report.returncode == 0, report.stdout
    for _, path, reason in (*ABOUT_CONFIG, ABOUT_TYPO, ABOUT_TWICE):
        assert f": {path}: {reason}" in report.stdout

    first = container_status(agent.pods()["typo"])["containerID"]
    agent.put_text("typo.yaml", TYPO.replace("    imagePolicy: x\n", ""))
    await agent.wait_for("the remark is gone", lambda: ABOUT_TYPO not in remarks(agent, "node"))
    assert container_status(agent.pods()["typo"])["containerID"] == first, "the pod was started anew"
