"""Pods whose start depends on objects of the API server: what they wait for, what is reported, when they go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from act.pods.node import Node, named, node
from act.pods.playbook import Playbook
from act.pods.scenes import box, container, pod, running

from pykubelet.act.pods.model import ContentChanged
from pykubelet.act.pods.need import wait_answered
from pykubelet.base.api.core import ConfigMap, ObjectMeta, Pod, RuntimeClass, Secret
from pykubelet.base.kit.cells import Waitable, make_cell
from pykubelet.base.model.content import Absent, Content, ContentKind, Found, ObjectKey, Present
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.waits import Owner, Wait
from pykubelet.provide.images.keyring import PodPullSecrets, PullSecret, SecretSource
from pykubelet.provide.images.model import ImageError, PullAccount

pytestmark = pytest.mark.virtual_time

MAP = ObjectKey(ContentKind.CONFIG_MAP, "shop", "m")
PULL = ObjectKey(ContentKind.SECRET, "shop", "pull")
SEALED = ObjectKey(ContentKind.RUNTIME_CLASS, "", "sealed")
NO_MAP = Absent('configmap "m" not found')


def reader(name: str = "web") -> Pod:
    """A pod whose container takes its environment from the ConfigMap `m`."""
    return named(pod(container(envFrom=[{"configMapRef": {"name": "m"}}]), terminationGracePeriodSeconds=1), name)


def config_map(**data: str) -> Present:
    return Present(ConfigMap(data=data))


def know(n: Node, **found: Found) -> None:
    """By name: `m`, `pull` and `sealed`. Services are known, and there are none."""
    keys = {"m": MAP, "pull": PULL, "sealed": SEALED}
    n.content.publish(Content(True, {keys[name]: value for name, value in found.items()}, services=()))


async def wait_shown(n: Node, name: str, what: str) -> Wait:
    known = await n.wait_known(name, lambda known: any(wait.what == what for wait in known.waits))
    return next(wait for wait in known.waits if wait.what == what)


def environment(n: Node, name: str) -> dict[str, str]:
    (made,) = n.running(name)
    return {str(pair.key): bytes(pair.value).decode() for pair in made.config.envs}


async def test_a_container_waits_by_name_for_the_first_answer_about_its_environment(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        know(n)
        n.want(reader())
        wait = await wait_shown(n, "web", "configMap")
        assert (wait.subject, wait.owner) == ("shop/m", Owner.OBJECT_CACHE)
        assert n.sandboxes("web")  # only the container waits
        know(n, m=config_map(WORD="hello"))
        await n.wait_running("web")
        assert environment(n, "web")["WORD"] == "hello"
        assert n.messages("Failed") == []


async def test_only_objects_without_an_answer_are_waited_for() -> None:
    """A container may refer to 12,000 objects, most of which are answered together."""
    keys = [ObjectKey(ContentKind.CONFIG_MAP, "shop", f"m{number}") for number in range(4)]
    cell, writer = make_cell("content", Content(True, {keys[0]: NO_MAP}))
    waited: list[str] = []

    async def until(answer: Waitable[Found | None], missing: Callable[[Found | None], Wait | None]) -> None:
        wait = missing(answer.get())
        waited.append(wait.subject if wait is not None else "nothing")
        writer.publish(Content(True, dict.fromkeys(keys, NO_MAP)))
        assert missing(answer.get()) is None

    await wait_answered(cell, keys, until)
    assert waited == ["shop/m1"]


async def test_a_missing_object_is_a_config_error_until_it_comes(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        know(n, m=NO_MAP)
        n.want(reader())
        life = await n.wait_life("web", lambda life: bool(life.start_errors))
        error = life.start_errors["app"]
        assert (error.reason, error.message) == ("CreateContainerConfigError", NO_MAP.message)
        assert n.messages("Failed") == [f"Error: {NO_MAP.message}"]
        know(n, m=config_map(WORD="hello"))
        await n.wait_running("web")
        life = await n.wait_life("web", lambda life: not life.start_errors)


async def test_what_does_not_concern_a_pod_does_not_wake_it(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        know(n, m=NO_MAP)
        n.want(reader())
        await n.wait_life("web", lambda life: bool(life.start_errors))
        n.want(named(pod(), "other"))
        know(n, m=NO_MAP, sealed=Absent("no"))
        know(n, m=NO_MAP, sealed=Absent("still no"))
        await n.wait_running("other")
        assert len(n.messages("Failed", "web")) == 1


async def test_services_are_waited_for_unless_the_pod_is_static(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.content.publish(Content(True))
        n.want(named(pod(), "web"))
        wait = await wait_shown(n, "web", "services")
        assert wait.owner == Owner.OBJECT_CACHE
        know(n)
        await n.wait_running("web")


async def test_a_sandbox_is_made_while_volumes_are_coming_and_containers_wait_for_them(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.volumes.mounting.add("web")
        n.want(named(pod(), "web"))
        await n.wait_for(lambda: bool(n.sandboxes("web")))
        wait = await wait_shown(n, "web", "volumes")
        assert wait.next_step == "start the containers"
        assert not n.containers("web")
        n.volumes.mounting.clear()
        n.volumes.project()
        await n.wait_running("web")
        assert len(n.sandboxes("web")) == 1


async def test_a_sandbox_waits_for_volumes_that_failed(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.volumes.stuck.add("web")
        n.want(named(pod(), "web"))
        wait = await wait_shown(n, "web", "volumes")
        assert (wait.next_step, wait.reason) == ("create the sandbox", "")
        n.volumes.failures = (Wait("volume", Owner.VOLUME_MANAGER, 0.0, "data", "FailedMount", "no such device"),)
        n.volumes.project()
        await n.wait_life("web", lambda life: life.is_held_up)
        known = n.diagnostics.get().pods[PodUID("uid-web")]
        assert [(w.what, w.reason, w.detail) for w in known.waits] == [("volumes", "FailedMount", "no such device")]
        n.volumes.failures = (Wait("volume", Owner.VOLUME_MANAGER, 0.0, "data", "FailedMount", "device is busy"),)
        n.volumes.project()
        (later,) = (await n.wait_known("web", lambda now: [w.detail for w in now.waits] == ["device is busy"])).waits
        assert later.since == wait.since, "it has waited for its volumes since then"
        assert not n.sandboxes("web")
        n.volumes.stuck.clear()
        n.volumes.project()
        await n.wait_running("web")


async def test_an_image_that_is_present_is_reported_when_its_container_starts(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.volumes.stuck.add("web")
        volume = {"name": "tools", "image": {"reference": "tools:1"}}
        mount = [{"name": "tools", "mountPath": "/tools"}]
        n.want(named(pod(container("a", volumeMounts=mount), container("b"), volumes=[volume]), "web"))
        await wait_shown(n, "web", "volumes")
        await n.wait_for(lambda: len(n.images.asked) == 2)  # beside the volumes
        assert n.messages("Pulled") == []
        n.volumes.stuck.clear()
        n.volumes.project()
        await n.wait_running("web", "a", "b")
        (made,) = (c for c in n.running("web") if c.config.metadata.name == "b")
        n.fake.state.end(made, 1)
        await n.wait_for(lambda: len(n.messages("Started")) == 3)
    events = [(e.reason, e.field_path) for e in n.recorder.events if e.reason in ("Pulled", "Created", "Started")]
    a, b = "spec.containers{a}", "spec.containers{b}"
    of_a = [("Pulled", a), ("Pulled", a), ("Created", a), ("Started", a)]
    of_b = [("Pulled", b), ("Created", b), ("Started", b)]
    assert events == [*of_a, *of_b, *of_b], "nothing again of a container that runs, or of its volumes"


async def test_the_sandbox_runs_by_the_handler_of_its_class(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        know(n)
        n.want(named(pod(runtimeClassName="sealed"), "web"))
        wait = await wait_shown(n, "web", "RuntimeClass")
        assert wait.subject == "sealed"
        missing = 'runtimeclass.node.k8s.io "sealed" not found'
        know(n, sealed=Absent(missing))
        await n.wait_for(lambda: n.messages("FailedCreatePodSandBox") == [f"Failed to create pod sandbox: {missing}"])
        know(n, sealed=Present(RuntimeClass(handler="kata")))
        await n.wait_for(lambda: bool(n.fake.called("RunPodSandbox")))
        assert n.fake.called("RunPodSandbox")[0].request.runtime_handler == "kata"


NO_PULL = "Unable to retrieve some image pull secrets (pull); attempting to pull the image may not succeed."


@pytest.mark.parametrize("at_once", [False, True])
async def test_pull_secrets_that_are_missing_are_reported_once(tmp_path: Path, at_once: bool) -> None:
    """Until 1.36 before the pull, since 1.37 after it has failed: a node may not need them for an image that it has."""
    async with node(tmp_path, secrets_at_once=at_once) as n:
        know(n, pull=Absent('secret "pull" not found'))
        pulling: dict[str, Any] = {"imagePullSecrets": [{"name": "pull"}, {"name": ""}]}
        n.want(named(pod(container("one"), container("two"), **pulling), "web"))
        await n.wait_running("web", "one", "two")
        assert n.messages("FailedToRetrieveImagePullSecret") == ([NO_PULL] if at_once else [])
        n.images.missing["secret:1"] = ImageError("ErrImagePull", "denied", n.clock.monotonic() + 10)
        n.want(named(pod(container("one", image="secret:1"), container("two", image="secret:1"), **pulling), "next"))
        await wait_shown(n, "next", "container start")
        await n.wait_for(lambda: n.images.asked.count("secret:1") > 4)
        assert n.messages("FailedToRetrieveImagePullSecret") == [NO_PULL] * (2 if at_once else 1)


async def test_pull_secrets_and_the_account_go_with_the_pull(tmp_path: Path) -> None:
    pulling = pod(
        container("one"),
        container("two"),
        imagePullSecrets=[{"name": "pull"}, {"name": ""}],
        serviceAccountName="clerk",
    )
    async with node(tmp_path) as n:
        know(n)
        n.want(named(pulling, "web"))
        wait = await wait_shown(n, "web", "secret")
        assert wait.subject == "shop/pull"
        assert n.images.requests == []
        know(n, pull=Absent('secret "pull" not found'))
        await n.wait_running("web", "one", "two")
        assert {request.secrets for request in n.images.requests} == {PodPullSecrets()}
        secret = Secret(metadata=ObjectMeta(name="pull", namespace="shop", uid="s1"), type="t", data={".x": b"1"})
        know(n, pull=Present(secret))
        n.want(named(pulling, "next"))
        await n.wait_running("next", "one", "two")
        last = n.images.requests[-1]
        assert last.secrets.secrets == (PullSecret(SecretSource("s1", "shop", "pull"), "t", {".x": b"1"}),)
        assert last.account == PullAccount("shop", "clerk")
        config = last.sandbox_config  # a runtime may have rules of its own for a namespace
        assert config is not None and (config.metadata.namespace, config.metadata.name) == ("shop", "next")
        assert config.linux.cgroup_parent == f"/kubepods/pod{config.metadata.uid}"


async def test_manifests_take_the_place_of_the_api_server(tmp_path: Path) -> None:
    refers = pod(container(envFrom=[{"configMapRef": {"name": "m"}}]), imagePullSecrets=[{"name": "pull"}])
    async with node(tmp_path) as n:
        n.content.publish(Content(has_manifests=True))
        n.want(named(refers, "web"))
        wait = await wait_shown(n, "web", "secret")
        assert wait.subject == "shop/pull"
        missing = Absent('no manifest has the ConfigMap "m" of namespace "shop"')
        pull = Secret(metadata=ObjectMeta(name="pull", namespace="shop", uid="s1"), type="t", data={".x": b"1"})
        n.content.publish(Content(has_manifests=True, objects={PULL: Present(pull), MAP: missing}))
        wait = await wait_shown(n, "web", "container start")
        assert wait.detail == missing.message
        assert n.images.requests[-1].secrets.secrets == (
            PullSecret(SecretSource("s1", "shop", "pull"), "t", {".x": b"1"}),
        )
        before = n.clock.monotonic()
        n.content.publish(Content(has_manifests=True, objects={PULL: Present(pull), MAP: config_map(MODE="fast")}))
        await n.wait_running("web", "app")
        assert n.clock.monotonic() - before < 1
        assert environment(n, "web")["MODE"] == "fast"


# The machine


def test_a_change_lets_a_refused_container_try_again_at_once() -> None:
    play = Playbook(pod())
    play.sees()
    play.sync_ended(app="CreateContainerConfigError")
    assert play.sees(box()) == ["wake in 10 s"]
    assert play.hears(ContentChanged()) == ["sync: start app"]


def test_a_change_during_the_try_that_fails_leads_to_another() -> None:
    play = Playbook(pod())
    play.sees()
    assert play.hears(ContentChanged()) == []
    play.sync_ended(app="CreateContainerConfigError")
    assert play.sees(box()) == ["sync: start app"]
    play.sync_ended(app="CreateContainerConfigError")
    assert play.sees(box()) == ["wake in 10 s"], "once is enough"


def test_a_change_means_nothing_to_other_failures_and_other_containers() -> None:
    play = Playbook(pod(container("a"), container("b")))
    play.sees()
    play.sync_ended(a="CreateContainerError", b="CreateContainerConfigError")
    play.sees(box())
    assert play.hears(ContentChanged()) == ["sync: start b"]
    play.sync_ended("b")
    assert play.sees(box(), running("b"))[0].startswith("wake in ")


def test_a_change_lets_a_refused_sandbox_be_tried_again_at_once() -> None:
    play = Playbook(pod())
    play.sees()
    play.sync_ended(pod_error="CreatePodSandboxError")
    play.sees()
    assert play.hears(ContentChanged()) == ["sync: sandbox 0; start app"]
