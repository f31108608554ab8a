"""Static pods with ConfigMaps and Secrets of manifests on a node without an API server, on a real runtime."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.agent import Agent, Json, make_container, make_pod

pytestmark = pytest.mark.integration

WAITS = 'trap "exit 0" TERM; while :; do sleep 3600 & wait $!; done'
SECRET = "hunter2-c7d1"


def config_map(name: str, immutable: bool = False, **data: str) -> Json:
    found: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
    return {**found, "immutable": True} if immutable else found


def secret(name: str, **data: str) -> Json:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data}


def documents(*found: Json) -> str:
    return yaml.safe_dump_all(found)


def web(name: str = "web", settings: str = "settings", login: str = "login") -> Json:
    """A pod that has all of both objects in its volumes, and keys of both in its environment."""
    env = [
        {"name": "MODE", "valueFrom": {"configMapKeyRef": {"name": settings, "key": "mode"}}},
        {"name": "EXTRA", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "k", "optional": True}}},
    ]
    volumes: list[Json] = [
        {"name": "settings", "configMap": {"name": settings}},
        {"name": "all", "projected": {"sources": [{"secret": {"name": login}}, {"configMap": {"name": settings}}]}},
    ]
    script = f'echo "mode $MODE, password $PASSWORD, extra [$EXTRA]"; {WAITS}'
    mounts = [{"name": "settings", "mountPath": "/settings"}, {"name": "all", "mountPath": "/all"}]
    container = make_container(script=script, env=env, envFrom=[{"secretRef": {"name": login}}], volumeMounts=mounts)
    return make_pod(name, container, volumes=volumes)


def volume_file(agent: Agent, pod: Any, kind: str, volume: str, name: str) -> Path:
    root: Path = agent.root / "pods" / pod["metadata"]["uid"]
    return root / "volumes" / f"kubernetes.io~{kind}" / volume / name


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def details(agent: Agent, pod: str) -> str:
    return " ".join(wait["detail"] for wait in agent.explain(pod)["waits"])


async def test_one_file_has_a_config_map_a_secret_and_their_pod(agent: Agent) -> None:
    login = secret("login", PASSWORD=SECRET)
    agent.put_text("app.yaml", documents(config_map("settings", mode="slow"), login, web()))
    (pod,) = await agent.wait_running("web")
    await agent.wait_for(
        "its environment",
        lambda: any(f"mode slow, password {SECRET}, extra []" in line for line in agent.log_lines("web", "main")),
    )
    settings = volume_file(agent, pod, "configmap", "settings", "mode")
    password = volume_file(agent, pod, "projected", "all", "PASSWORD")
    assert (settings.read_text(), password.read_text()) == ("slow", SECRET)

    agent.put_text("app.yaml", documents(config_map("settings", mode="fast"), login, web()))
    await agent.wait_for("the edit reaches the volumes", lambda: text_of(settings) == "fast", within=5)
    (same,) = await agent.wait_running("web")
    status = same["status"]["containerStatuses"][0]
    assert (same["metadata"]["uid"], status["restartCount"]) == (pod["metadata"]["uid"], 0)

    agent.kill9()
    agent.start()
    (after,) = await agent.wait_running("web")
    assert after["status"]["containerStatuses"][0]["containerID"] == status["containerID"]
    agent.put_text("app.yaml", documents(config_map("settings", mode="fastest"), login, web()))
    await agent.wait_for("the edit reaches the volumes", lambda: text_of(settings) == "fastest", within=5)

    # the objects go, the pod has what it had
    agent.put_text("app.yaml", documents(web()))
    agent.put(web("late"))
    await agent.wait_for(
        "the wait is explained", lambda: 'no manifest has the ConfigMap "settings"' in details(agent, "late")
    )
    agent.kill9()
    agent.start()
    await agent.wait_for("the wait is explained", lambda: 'ConfigMap "settings"' in details(agent, "late"))
    assert (settings.read_text(), password.read_text()) == ("fastest", SECRET)
    (after,) = await agent.wait_running("web")
    assert after["status"]["containerStatuses"][0]["restartCount"] == 0
    assert after["status"]["containerStatuses"][0]["containerID"] == status["containerID"]
    assert_hidden(agent)
    (agent.manifests / "app.yaml").unlink()
    agent.remove("late")
    await agent.wait_gone("web")
    await agent.wait_gone("late")


def assert_hidden(agent: Agent) -> None:
    """Neither logs, answers nor files of the agent have anything of a Secret, except for the volumes."""
    shown = [agent.log_file.read_bytes(), json.dumps(agent.ask_json("explain", "node")).encode()]
    shown += [json.dumps(agent.ask_json("explain", pod["uid"])).encode() for pod in agent.ask_json("pods")["pods"]]
    shown += [path.read_bytes() for path in agent.root.iterdir() if path.is_file()]
    assert len(shown) > 4
    for form in (SECRET.encode(), base64.b64encode(SECRET.encode())):
        assert not any(form in text for text in shown)


async def test_a_config_map_that_comes_later_starts_the_pod_at_once(agent: Agent) -> None:
    env = [{"name": "MODE", "valueFrom": {"configMapKeyRef": {"name": "later", "key": "mode"}}}]
    agent.put(make_pod("by-env", make_container(script=WAITS, env=env)))
    mounts = [{"name": "v", "mountPath": "/v"}]
    items = [{"key": "mode", "path": "mode"}]
    volumes = [{"name": "v", "configMap": {"name": "later", "items": items}}]
    agent.put(make_pod("by-volume", make_container(script=WAITS, volumeMounts=mounts), volumes=volumes))
    missing = 'no manifest has the ConfigMap "later"'
    await agent.wait_for("the wait", lambda: missing in details(agent, "by-env"))
    await agent.wait_for("the wait", lambda: missing in details(agent, "by-volume"))
    (wait,) = agent.explain("by-volume")["waits"]
    assert wait["next_step"] == "try again when a manifest has it"
    agent.put(config_map("later", other="x"))
    await agent.wait_for("the wait", lambda: "key mode in ConfigMap default/later" in details(agent, "by-env"))
    await agent.wait_for("the wait", lambda: "key of the ConfigMap default/later: mode" in details(agent, "by-volume"))
    agent.put(config_map("later", mode="now"))
    await agent.wait_running("by-volume", within=5)
    await agent.wait_running("by-env", within=5)
    agent.remove("by-env", "by-volume", "later")
    await agent.wait_gone("by-env")
    await agent.wait_gone("by-volume")


async def test_the_next_container_has_the_new_environment(agent: Agent) -> None:
    mode = {"name": "MODE", "valueFrom": {"configMapKeyRef": {"name": "env", "key": "mode"}}}
    script = 'echo "mode $MODE"; while [ ! -e /v/end ]; do sleep 0.1; done; rm /v/end; exit 1'
    container = make_container(script=script, env=[mode], volumeMounts=[{"name": "v", "mountPath": "/v"}])
    pod = make_pod("again", container, volumes=[{"name": "v", "emptyDir": {}}])
    pod["metadata"]["namespace"] = "shop"
    settings = config_map("env", mode="slow")
    settings["metadata"]["namespace"] = "shop"
    agent.put(settings, pod)
    await agent.wait_for("the first", lambda: any("mode slow" in line for line in agent.log_lines("again", "main")))
    agent.put({**settings, "data": {"mode": "fast"}})
    (shown,) = await agent.wait_running("again")
    end = volume_file(agent, shown, "empty-dir", "v", "end")
    await asyncio.sleep(0.5)
    assert not agent.log_lines("again", "main", 1), "an edit restarts nothing"
    end.touch()
    await agent.wait_for("the next", lambda: any("mode fast" in line for line in agent.log_lines("again", "main", 1)))
    agent.remove("again", "env")
    await agent.wait_gone("again")


async def test_what_is_wrong_with_one_document_is_shown_and_the_others_run(agent: Agent) -> None:
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "shop"}, "spec": {}}
    bad = make_pod("broken", make_container(image=""))
    agent.put_text("mixed.yaml", documents(deployment, bad, config_map("settings", mode="slow"), make_pod("fine")))
    await agent.wait_running("fine")
    node = agent.ask("explain", "node").stdout
    assert 'mixed.yaml (document 1, Deployment shop): kind: "Deployment" is ignored: nothing here makes pods' in node
    assert "mixed.yaml (document 2, Pod broken): spec.containers[0].image: Required value" in node
    answer = agent.ask("explain", "broken")
    assert "its manifest cannot be used" in answer.stderr
    assert "spec.containers[0].image" in answer.stderr
    (agent.manifests / "mixed.yaml").unlink()
    await agent.wait_gone("fine")


async def test_an_immutable_config_map_keeps_its_content(agent: Agent) -> None:
    volumes = [{"name": "v", "configMap": {"name": "fixed"}}]
    mounts = [{"name": "v", "mountPath": "/v"}]
    agent.put(config_map("fixed", immutable=True, mode="old"))
    agent.put(make_pod("reader", make_container(script=WAITS, volumeMounts=mounts), volumes=volumes))
    (pod,) = await agent.wait_running("reader")
    agent.put(config_map("fixed", immutable=True, mode="new"))
    await agent.wait_for(
        "the problem",
        lambda: any("field is immutable" in p["reason"] for p in agent.ask_json("explain", "node")["problems"]),
    )
    file = volume_file(agent, pod, "configmap", "v", "mode")
    assert file.read_text() == "old"
    agent.remove("fixed")
    await agent.wait_for("it is gone", lambda: not agent.ask_json("explain", "node")["problems"])
    agent.put(config_map("fixed", immutable=True, mode="new"))
    await agent.wait_for("the new content", lambda: text_of(file) == "new", within=5)
    agent.remove("fixed", "reader")
    await agent.wait_gone("reader")
