"""Images from registries through the whole agent: passwords, a credential plugin, and a queue at a slow registry."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.agent import Agent, Json, make_container, make_pod, waiting_reason
from support.world import a_world
from testbed import containerd, images, registry
from testbed.private_runtime import Testbed
from testbed.registry import Registry

from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient

pytestmark = pytest.mark.integration

MakeAgent = Callable[..., Agent]
LOGIN = ("puller", "pa:ss word")
NAMES = [f"app{number}" for number in range(5)]
PLUGIN = """#!/bin/sh
echo called >>"$CALLS"
cat <<END
{"kind": "CredentialProviderResponse", "apiVersion": "credentialprovider.kubelet.k8s.io/v1", "cacheKeyType": "Registry",
 "cacheDuration": "1h", "auth": {"$REGISTRY": {"username": "puller", "password": "pa:ss word"}}}
END
"""


@dataclass(frozen=True)
class Registries:
    plain: Registry
    private: Registry


@pytest.fixture
async def registries(testbed: Testbed, tmp_path: Path) -> AsyncIterator[Registries]:
    archive = tmp_path / "app.tar"
    with (
        registry.serving(tmp_path / "plain") as plain,
        registry.serving(tmp_path / "private", LOGIN, tls=True) as private,
    ):
        containerd.trust_registry(testbed, plain.address, plain.url)
        containerd.trust_registry(testbed, private.address, private.url, private.ca_file)
        for name in NAMES:  # images of their own: removing one removes it under all its names
            images.build_image(f"localhost/{name}:1", marked(name), images.Config(), archive)
            registry.push(plain, archive, f"team/{name}:1")
        images.build_image("localhost/secret:1", marked("secret"), images.Config(), archive)
        registry.push(private, archive, "team/secret:1")
        yield Registries(plain, private)
    client = CriClient(testbed.endpoint)
    for image in await client.list_images():
        for name in image.repo_tags:
            if name.startswith("127.0.0.1:"):
                await client.remove_image(pb.ImageSpec(image=name))
    await client.close()


def marked(name: str) -> dict[str, images.Entry]:
    return {**images.busybox_files(), "/mark": images.Entry(name.encode())}


def pulling(name: str, image: str, **container: Any) -> Json:
    return make_pod(name, make_container(image=image, imagePullPolicy="IfNotPresent", **container))


async def test_a_password_opens_a_registry(make_agent: MakeAgent, registries: Registries) -> None:
    private = registries.private
    agent = make_agent().start()
    agent.put(pulling("secret", f"{private.address}/team/secret:1"))
    refused = await agent.wait_pod("secret", "refused", lambda pod: waiting_reason(pod) == "ImagePullBackOff")
    # in the words of the runtime: later ones do not name the status, and Docker tries HTTP last with registries of the machine
    words = "401 Unauthorized|no basic auth credentials|authentication required|sent an HTTP request to an HTTPS server"
    assert re.search(words, json.dumps(refused["status"]))
    agent.remove("secret")
    await agent.wait_gone("secret")
    auth = base64.b64encode(":".join(LOGIN).encode()).decode()
    agent.stop()
    (agent.root / "config.json").write_text(json.dumps({"auths": {private.address: {"auth": auth}}}))
    agent.start()
    agent.put(pulling("secret", f"{private.address}/team/secret:1", script="cat /mark; echo; sleep 1000"))
    await agent.wait_running("secret")
    assert await agent.wait_for("the mark is printed", lambda: agent.output("secret", "main")) == "secret\n"
    pulled = [
        line["event"] for line in agent.explain("secret")["timeline"] if line.get("event") in ("Pulling", "Pulled")
    ]
    assert pulled == ["Pulling", "Pulled"]
    await agent.remove_all()


async def test_a_plugin_knows_the_password(make_agent: MakeAgent, registries: Registries, tmp_path: Path) -> None:
    private, folder = registries.private, tmp_path / "plugins"
    folder.mkdir()
    (folder / "provider").write_text(PLUGIN)
    (folder / "provider").chmod(0o755)
    env = {"CALLS": str(tmp_path / "calls"), "REGISTRY": private.address}
    provider = {
        "name": "provider",
        "matchImages": [private.address],
        "defaultCacheDuration": "1h",
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
        "env": [{"name": name, "value": value} for name, value in env.items()],
    }
    config = {"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig", "providers": [provider]}
    (tmp_path / "providers.json").write_text(json.dumps(config))
    flags = (
        f"--image-credential-provider-config={tmp_path / 'providers.json'}",
        f"--image-credential-provider-bin-dir={folder}",
    )
    agent = make_agent(flags=flags).start()
    agent.put(pulling("secret", f"{private.address}/team/secret:1"))
    await agent.wait_running("secret")
    assert (tmp_path / "calls").read_text() == "called\n"
    await agent.remove_all()


async def test_five_pods_wait_in_line_at_a_slow_registry(make_agent: MakeAgent, registries: Registries) -> None:
    """Nothing is answered before all of them have been seen in line."""
    agent, opened = make_agent(serializeImagePulls=True).start(), threading.Event()
    with registry.slowed(registries.plain, 600, opened) as slow:
        containerd.trust_registry(agent.testbed, slow, f"http://{slow}")
        agent.put(*(pulling(name, f"{slow}/team/{name}:1") for name in NAMES))
        expected = ["", *(f"number {place} in the queue" for place in range(1, len(NAMES)))]

        def all_wait() -> bool:
            waits = [w for pod in agent.ask_json("pods")["pods"] for w in pod["waits"] if w["what"] == "image pull"]
            assert all(w["owner"] == "image manager" and w["subject"] == "main" and w["next_step"] for w in waits)
            return sorted(w["detail"].partition(", ")[2] for w in waits) == expected

        await agent.wait_for("all five stand in line", all_wait)
        opened.set()
        await agent.wait_running(*NAMES, within=60)
    await agent.remove_all()


PULLS = """
from pykubelet.extension import Extension, PullLater, PullNever, PullNow


class Pulls(Extension):
    name, api = "pulling", "1.0"

    def pull(self, pull, node):
        match pull.pod.labels.get("pull"):
            case "never":
                return PullNever("not on this node")
            case "later" if node.time < pull.waiting_since + 4:
                return PullLater(1, "at night")
            case "first":
                return PullNow(priority=5)
        return None
"""


async def test_an_extension_decides_when_images_are_pulled(
    make_agent: MakeAgent, registries: Registries, tmp_path: Path
) -> None:
    (tmp_path / "pulling.py").write_text(PULLS)
    agent = make_agent(flags=("--extension", str(tmp_path / "pulling.py")), serializeImagePulls=True).start()
    opened, address = threading.Event(), registries.plain.address
    with registry.slowed(registries.plain, 600, opened) as slow:
        containerd.trust_registry(agent.testbed, slow, f"http://{slow}")
        agent.put(labelled(pulling("late", f"{address}/team/app4:1"), "later"))
        delayed = await agent.wait_pod("late", "delayed", lambda pod: "pulling" in waiting_message(pod))
        assert waiting_reason(delayed) == "ContainerCreating"
        assert waiting_message(delayed) == "extension pulling delays the pull: at night"
        (wait,) = await asyncio.to_thread(waits_of, agent, "late")
        assert (wait["what"], wait["owner"], wait["subject"]) == ("image pull", "extension", "main")
        assert wait["next_step"] == "ask the extension again" and wait["next_at"]
        await agent.wait_running("late", within=30)
        expected = {}
        for place, name in enumerate(("app0", "app1", "app2")):
            expected[name] = place
            agent.put(pulling(name, f"{slow}/team/{name}:1"))
            await agent.wait_for("it is in line", lambda: places(agent) == expected)
        agent.put(labelled(pulling("app3", f"{slow}/team/app3:1"), "first"))
        expected = {"app0": 0, "app3": 1, "app1": 2, "app2": 3}
        await agent.wait_for("it stands before the others", lambda: places(agent) == expected)
        opened.set()
        await agent.wait_running("app0", "app1", "app2", "app3", within=60)
    agent.put(labelled(pulling("refused", f"{address}/team/missing:1"), "never"))
    refused = await agent.wait_pod("refused", "refused", lambda pod: waiting_reason(pod) == "ErrImageNeverPull")
    assert waiting_message(refused).endswith("must not be pulled: not on this node (extension pulling)")
    await agent.remove_all()


def labelled(pod: Json, value: str) -> Json:
    return {**pod, "metadata": {**pod["metadata"], "labels": {"pull": value}}}


def waiting_message(pod: Json) -> str:
    statuses = pod["status"].get("containerStatuses") or [{}]
    message: str = statuses[0].get("state", {}).get("waiting", {}).get("message", "")
    return message


def waits_of(agent: Agent, name: str) -> list[Json]:
    pods = agent.ask_json("pods")["pods"]
    return [wait for pod in pods if pod["name"].startswith(name) for wait in pod["waits"]]


def places(agent: Agent) -> dict[str, int]:
    """The place of each pod in the queue of pulls; 0: its image is being pulled."""
    found = {}
    for pod in agent.ask_json("pods")["pods"]:
        for wait in pod["waits"]:
            if wait["what"] == "image pull":
                number = re.search(r"number (\d+)", wait["detail"])
                found[pod["name"].removesuffix("-node")] = int(number[1]) if number else 0
    return found


async def test_a_pod_is_deleted_while_its_image_is_pulled(
    make_agent: MakeAgent, registries: Registries, tmp_path: Path
) -> None:
    async with a_world(make_agent, tmp_path, serializeImagePulls=True) as world:
        agent = world.agent
        with registry.slowed(registries.plain, 600) as stuck:
            containerd.trust_registry(agent.testbed, stuck, f"http://{stuck}")
            world.run(pulling("stuck", f"{stuck}/team/app0:1"))
            world.run(pulling("beside", f"{stuck}/team/app1:1"))

            async def both_wait() -> bool:
                found = (await asyncio.to_thread(agent.ask_json, "pods"))["pods"]
                return len([pod for pod in found if "image pull" in [wait["what"] for wait in pod["waits"]]]) == 2

            await agent.wait_for("one is pulled, the other in line", both_wait)
            for name in ("stuck", "beside"):
                world.delete(name)
            await world.wait_gone("stuck", "beside")
            await world.wait_nothing_left()
            # the line goes on
            world.run(pulling("next", f"{registries.plain.address}/team/app2:1"))
            await world.wait_ready("next")
        world.delete("next")
        await world.wait_gone("next")
