"""`--runonce`: bring the manifests' pods up, say what became of each, end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.agent import Agent, make_container, make_pod
from testbed import host

pytestmark = pytest.mark.integration

MakeAgent = Callable[..., Agent]


def lines(output: str) -> dict[str, list[str]]:
    """The report: by pod or file, the words behind it."""
    return {line.split("\t")[0]: line.split("\t")[1:] for line in output.splitlines()}


async def test_all_pods_come_up(make_agent: MakeAgent) -> None:
    agent = make_agent()
    agent.put(make_pod("service"), make_pod("job", make_container(script="exit 0"), restartPolicy="Never"))
    code, output = agent.run_once()
    assert code == 0, agent.log_tail()
    assert {name: words[0] for name, words in lines(output).items()} == {
        "default/service-node": "ok",
        "default/job-node": "ok",
    }
    view = await agent.look()
    assert view.running_names() == ["service-node/main"], "what it started runs on"
    again, output = agent.run_once()
    assert again == 0
    assert (await agent.look()).running_ids() == view.running_ids(), "a second run finds it running"


async def test_pods_that_fail_are_reported(make_agent: MakeAgent) -> None:
    agent = make_agent()
    agent.put(
        make_pod("good"),
        make_pod("bad", make_container(script="exit 3"), restartPolicy="Never"),
        make_pod("no-image", make_container(image="localhost/missing:1"), restartPolicy="Never"),
        make_pod("huge", make_container(resources={"requests": {"memory": "4Pi"}})),
    )
    agent.put_text("broken.yaml", "kind: Pod\napiVersion: v1\nmetadata: {}\nspec: {}\n")
    code, output = agent.run_once()
    assert code == 1
    reported = lines(output)
    assert reported["default/good-node"][0] == "ok"
    assert reported["default/bad-node"][0] == "failed" and "3" in reported["default/bad-node"][1]
    assert (
        reported["default/no-image-node"][0] == "failed" and "ErrImageNeverPull" in reported["default/no-image-node"][1]
    )
    assert (
        reported["default/huge-node"][0] == "failed" and "UnexpectedAdmissionError" in reported["default/huge-node"][1]
    )
    assert reported[str(agent.manifests / "broken.yaml")][0] == "failed"


async def test_no_manifests_is_success(make_agent: MakeAgent) -> None:
    assert make_agent().run_once() == (0, "")


@pytest.mark.parametrize("source", ["staticPodPath", "staticPodURL"])
async def test_a_source_without_pods_ends_with_its_reason(make_agent: MakeAgent, tmp_path: Path, source: str) -> None:
    """One bad file, or a URL that nothing answers at: reported, and not waited for."""
    bad = tmp_path / "bad.yaml"
    bad.write_text("apiVersion: v1\nkind: Job\n")
    places = {"staticPodPath": str(bad), "staticPodURL": f"http://127.0.0.1:{host.free_port(0)}/pods"}
    code, output = make_agent(**{"staticPodPath": None, source: places[source]}).run_once()
    assert code == 1
    assert lines(output)[places[source]][0] == "failed", output
