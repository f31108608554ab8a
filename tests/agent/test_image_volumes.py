"""Images as volumes, by what the runtime of the test bed can do (containerd has them since 2.1)."""

from __future__ import annotations

import re
import subprocess

from support.agent import Agent, Json, container_status, make_container, make_pod, waiting_reason
from testbed import images
from testbed.containerd import Testbed


def can_mount_images(testbed: Testbed) -> bool:
    """By the version of containerd."""
    printed = subprocess.run(["containerd", "--version"], env=testbed.env, capture_output=True, text=True, check=True)
    found = re.search(r"(\d+)\.(\d+)\.\d+", printed.stdout)
    assert found is not None, printed.stdout
    return (int(found[1]), int(found[2])) >= (2, 1)


async def test_an_image_is_mounted_read_only_or_refused_in_the_runtimes_words(agent: Agent, testbed: Testbed) -> None:
    script = "ls /tools/bin; touch /tools/x || echo not writable; sleep 1000"
    container = make_container(script=script, volumeMounts=[{"name": "tools", "mountPath": "/tools"}])
    image = {"reference": images.BUSYBOX, "pullPolicy": "Never"}
    agent.put(make_pod("tools", container, volumes=[{"name": "tools", "image": image}]))
    if can_mount_images(testbed):
        await agent.wait_running("tools")
        await agent.wait_for("it is read", lambda: "not writable" in agent.output("tools", "main"))
        assert "busybox" in agent.output("tools", "main").split()
    else:

        def refused(pod: Json) -> bool:
            return waiting_reason(pod) == "CreateContainerError"

        pod = await agent.wait_pod("tools", "the runtime refuses", refused)
        assert container_status(pod)["state"]["waiting"]["message"]


async def test_an_image_that_is_not_there_holds_up_the_container_with_its_reason(agent: Agent) -> None:
    container = make_container(volumeMounts=[{"name": "tools", "mountPath": "/tools"}])
    image = {"reference": "localhost/nowhere:1", "pullPolicy": "Never"}
    agent.put(make_pod("nowhere", container, volumes=[{"name": "tools", "image": image}]))
    pod = await agent.wait_pod("nowhere", "it waits", lambda pod: waiting_reason(pod) == "ErrImageNeverPull")
    message = container_status(pod)["state"]["waiting"]["message"]
    assert message == 'Container image "localhost/nowhere:1" is not present with pull policy of Never'
