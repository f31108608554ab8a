"""Images as volumes, on a runtime that mounts them and on one that refuses (containerd has them since 2.1)."""

from __future__ import annotations

import pytest
from support.agent import Agent, Json, container_status, make_container, make_pod, waiting_reason
from testbed import images

pytestmark = pytest.mark.integration


def is_running(pod: Json) -> bool:
    return "running" in container_status(pod)["state"]


async def test_an_image_is_mounted_read_only_or_refused_in_the_runtimes_words(agent: Agent) -> None:
    script = "ls /tools/bin; touch /tools/x || echo not writable; sleep 1000"
    container = make_container(script=script, volumeMounts=[{"name": "tools", "mountPath": "/tools"}])
    image = {"reference": images.BUSYBOX, "pullPolicy": "Never"}
    agent.put(make_pod("tools", container, volumes=[{"name": "tools", "image": image}]))

    def is_decided(pod: Json) -> bool:
        return is_running(pod) or waiting_reason(pod) == "CreateContainerError"

    if is_running(await agent.wait_pod("tools", "mounted or refused", is_decided)):
        await agent.wait_for("it is read", lambda: "not writable" in agent.output("tools", "main"))
        assert "busybox" in agent.output("tools", "main").split()
    else:
        pod = agent.pods()["tools"]
        assert container_status(pod)["state"]["waiting"]["message"]


async def test_an_image_that_is_not_there_holds_up_the_container_with_its_reason(agent: Agent) -> None:
    container = make_container(volumeMounts=[{"name": "tools", "mountPath": "/tools"}])
    image = {"reference": "localhost/nowhere:1", "pullPolicy": "Never"}
    agent.put(make_pod("nowhere", container, volumes=[{"name": "tools", "image": image}]))
    pod = await agent.wait_pod("nowhere", "it waits", lambda pod: waiting_reason(pod) == "ErrImageNeverPull")
    message = container_status(pod)["state"]["waiting"]["message"]
    assert message == 'Container image "localhost/nowhere:1" is not present with pull policy of Never'
