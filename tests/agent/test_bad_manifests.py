"""Bad manifests beside a good pod: it runs all the same, and each problem is reported with file, field path and reason."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
import yaml
from support.agent import Agent, Json, container_status, make_container, make_pod

pytestmark = pytest.mark.integration


def with_changes(name: str, **metadata: Any) -> Json:
    pod = make_pod(name)
    pod["metadata"] |= metadata
    return pod


def as_text(pod: Json) -> str:
    return yaml.safe_dump(pod, sort_keys=False)


NAMELESS = with_changes("nameless")
del NAMELESS["metadata"]["name"]

#: By file: its content, the field path that is blamed, and a part of the reason.
BAD: dict[str, tuple[str | bytes, str, str]] = {
    "not-yaml.yaml": ("apiVersion: v1\nkind: Pod\nmetadata: {name: [", "", "not valid YAML"),
    "binary.yaml": (bytes(range(256)), "", ""),
    "empty.yaml": ("", "", "empty"),
    "a-list.yaml": ("- 1\n- 2\n", "", "expected an object, got a list"),
    "wrong-kind.yaml": ("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n", "kind", "Deployment"),
    "wrong-version.yaml": ("apiVersion: v2\nkind: Pod\nmetadata: {name: d}\n", "apiVersion", '"v2"'),
    "wrong-type.yaml": (as_text(make_pod("typed", hostNetwork="yes, please")), "spec.hostNetwork", "bool"),
    "no-name.yaml": (as_text(NAMELESS), "metadata.name", "name is needed for the pod"),
    "bad-name.yaml": (as_text(with_changes("Not_A_Name")), "metadata.name", "Invalid value"),
    "no-containers.yaml": (as_text({**make_pod("hollow"), "spec": {}}), "spec.containers", "Required value"),
    "bad-image.yaml": (as_text(make_pod("imageless", make_container(image=""))), "spec.containers[0].image", "Required value"),
    "bad-quantity.yaml": (
        as_text(make_pod("amount", make_container(resources={"limits": {"memory": "12 elephants"}}))),
        "spec.containers[0].resources.limits[memory]",
        "12 elephants",
    ),
    "account.yaml": (as_text(make_pod("account", serviceAccountName="robot")), "spec", "static pods may not reference"),
    "huge.yaml": (json.dumps(with_changes("huge", annotations={"x": "y" * (11 << 20)})), "", "larger than 10 MiB"),
}  # fmt: skip


def problems(agent: Agent) -> dict[str, list[Json]]:
    """What `explain node` shows about manifests, by the file's name."""
    found: dict[str, list[Json]] = {}
    for problem in agent.ask_json("explain", "node")["problems"]:
        found.setdefault(os.path.basename(problem["origin"]), []).append(problem)
    return found


@pytest.fixture(scope="module")
def manifests(agent: Agent) -> None:
    """The good pod among all the bad manifests."""
    for name, (content, _, _) in BAD.items():
        agent.put_text(name, content)
    os.mkfifo(agent.manifests / "fifo.yaml")
    os.mknod(agent.manifests / "device.yaml", 0o600 | 0o020000, os.makedev(1, 7))
    (agent.manifests / "folder.yaml").mkdir()
    (agent.manifests / "dangling.yaml").symlink_to("/nowhere/at/all")
    agent.put_text(".hidden.yaml", as_text(make_pod("hidden")))
    agent.put(make_pod("good"), make_pod("twin"))
    agent.put_text("z-twin.yaml", as_text(make_pod("twin", make_container("another"))))


async def test_the_good_pod_runs(agent: Agent, manifests: None) -> None:
    await agent.wait_running("good", "twin")
    assert set(agent.pods()) == {"good", "twin"}


@pytest.mark.parametrize("name", BAD)
async def test_each_bad_manifest_is_reported(agent: Agent, manifests: None, name: str) -> None:
    _, field_path, reason = BAD[name]
    found = await agent.wait_for("the problem is reported", lambda: problems(agent).get(name))
    assert field_path in [problem["field_path"] for problem in found]
    assert any(reason in problem["reason"] for problem in found), found
    assert all(problem["reason"] for problem in found)
    assert name in agent.log_text()


async def test_special_files_are_reported_and_not_opened(agent: Agent, manifests: None) -> None:
    found = await agent.wait_for(
        "reported", lambda: {"fifo.yaml", "device.yaml"} <= set(now := problems(agent)) and now
    )
    for name in ("fifo.yaml", "device.yaml"):
        assert "not a regular file" in found[name][0]["reason"]
    assert "folder.yaml" not in found and ".hidden.yaml" not in found


async def test_a_name_clash_is_reported_and_the_first_stays(agent: Agent, manifests: None) -> None:
    def clash() -> Json | None:
        reported = [problem for entries in problems(agent).values() for problem in entries]
        return next((problem for problem in reported if "due to duplicate pod name" in problem["reason"]), None)

    reported = await agent.wait_for("the clash is reported", clash)
    assert reported["field_path"] == "metadata.name" and '"twin-node"' in reported["reason"]
    assert reported["origin"] == str(agent.manifests / "z-twin.yaml")
    assert container_status(agent.pods()["twin"], "main").get("ready")


async def test_the_table_reports_problems_too(agent: Agent, manifests: None) -> None:
    answer = agent.ask("explain", "node")
    assert answer.returncode == 0
    for word in ("wrong-kind.yaml", "metadata.name", "name is needed for the pod"):
        assert word in answer.stdout


async def test_a_mended_manifest_becomes_a_pod(agent: Agent, manifests: None) -> None:
    agent.put_text("wrong-kind.yaml", as_text(make_pod("mended")))
    await agent.wait_running("mended")
    assert "wrong-kind.yaml" not in problems(agent)


async def test_a_running_pod_survives_that_its_manifest_goes_bad_and_good_again(agent: Agent, manifests: None) -> None:
    """A file that no longer holds a pod is a removed pod, as in the reference; the others do not notice."""
    agent.put_text("good.json", "{")
    await agent.wait_gone("good")
    agent.put(make_pod("good"))
    await agent.wait_running("good")
    assert container_status(agent.pods()["twin"])["restartCount"] == 0


async def test_a_directory_that_vanishes_and_returns_is_followed(agent: Agent, manifests: None) -> None:
    aside = agent.folder / "aside"
    agent.manifests.rename(aside)
    await agent.wait_for("no pods", lambda: not agent.pods())
    aside.rename(agent.manifests)
    await agent.wait_running("good", "twin")
    (agent.manifests / "folder.yaml").rmdir()
