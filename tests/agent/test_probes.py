"""Probes through the whole agent: what is asked, what a startup probe holds back, and what a failing one leads to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.agent import NODE_NAME, Agent, Json, condition, container_status, is_ready, make_container, make_pod
from support.gate import MOUNTS, UNTIL_OPEN, Gate

pytestmark = pytest.mark.integration

DEAF = "trap '' TERM; while :; do sleep 1; done"
POLITE = "{ trap exit TERM; while :; do sleep 0.1; done; }"
# answers every request with "ok", and prints what it was asked
SERVER = (
    r"while :; do printf 'HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok' | nc -l -p 8080; done"
)


def on_exec(script: str, **terms: Any) -> Json:
    command = ["/bin/sh", "-c", script]
    return {"exec": {"command": command}, "periodSeconds": 1, "timeoutSeconds": 10, **terms}


def events(agent: Agent, pod: str, reason: str) -> list[Json]:
    return [line for line in agent.explain(pod)["timeline"] if line.get("event") == reason]


async def test_an_http_probe_asks_as_the_reference_does(agent: Agent) -> None:
    get = {"port": "web", "path": "/health?full=1", "httpHeaders": [{"name": "X-Asked-By", "value": "the node"}]}
    probe = {"httpGet": get, "periodSeconds": 1, "timeoutSeconds": 5}
    ports = [{"name": "web", "containerPort": 8080}]
    agent.put(make_pod("asked", make_container(script=SERVER, ports=ports, readinessProbe=probe)))
    [pod] = await agent.wait_running("asked")
    asked = await agent.wait_for("the request is printed", lambda: "\n\n" in (t := agent.output("asked", "main")) and t)
    first, *headers = asked.partition("\n\n")[0].splitlines()
    assert first == "GET /health?full=1 HTTP/1.1"
    assert sorted(headers) == [
        "Accept: */*",
        "Connection: close",
        f"Host: {pod['status']['podIP']}:8080",
        "User-Agent: kube-probe/1.37",
        "X-Asked-By: the node",
    ]


async def test_a_sidecars_startup_probe_holds_back_what_comes_after_it(agent: Agent, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    sidecar = make_container(
        "mesh",
        f"({UNTIL_OPEN}; touch /tmp/up) & {DEAF}",
        restartPolicy="Always",
        startupProbe=on_exec("test -e /tmp/up || { echo not up; exit 1; }", failureThreshold=100),
        volumeMounts=MOUNTS,
    )
    agent.put(make_pod("meshed", initContainers=[sidecar], volumes=[gate.volume]))
    held = await agent.wait_pod(
        "meshed", "the sidecar runs", lambda p: container_status(p, "mesh")["state"].get("running")
    )
    assert not container_status(held, "mesh")["started"] and condition(held, "Initialized") == "False"
    assert "waiting" in container_status(held, "main")["state"]

    def reported() -> bool:
        waits = agent.explain("meshed")["waits"]
        return any((w["what"], w["subject"], w["detail"][:6]) == ("startup probe", "mesh", "not up") for w in waits)

    await agent.wait_for("explain reports the startup probe", reported)
    gate.open()
    [pod] = await agent.wait_running("meshed")
    assert container_status(pod, "mesh")["started"] and condition(pod, "Initialized") == "True"
    assert container_status(pod, "mesh")["restartCount"] == 0
    agent.remove("meshed")


async def test_a_failed_liveness_probe_restarts_within_its_own_grace_period(agent: Agent) -> None:
    script = f"test -e /data/second && {POLITE}; touch /data/second /tmp/sick; {DEAF}"
    probe = on_exec(
        "! test -e /tmp/sick || { echo sick; exit 1; }", failureThreshold=2, terminationGracePeriodSeconds=1
    )
    mounts = [{"name": "data", "mountPath": "/data"}]
    container = make_container(script=script, livenessProbe=probe, volumeMounts=mounts)
    volumes: list[Json] = [{"name": "data", "emptyDir": {}}]
    agent.put(make_pod("relived", container, volumes=volumes, terminationGracePeriodSeconds=600))
    pod = await agent.wait_pod(
        "relived", "restarted", lambda p: container_status(p)["restartCount"] == 1 and is_ready(p)
    )
    ended = container_status(pod)["lastState"]["terminated"]
    assert ended["exitCode"] == 137, "it ignores SIGTERM"
    [unhealthy] = events(agent, "relived", "Unhealthy")
    assert (unhealthy["what"].strip(), unhealthy["count"]) == ("Liveness probe failed: sick", 2)
    [killing] = events(agent, "relived", "Killing")
    assert killing["what"] == "Container main failed liveness probe, will be restarted"
    assert killing["object"] == "spec.containers{main}"
    agent.remove("relived")


async def test_what_was_ready_stays_ready_over_a_restart_of_the_agent(agent: Agent) -> None:
    never_again = on_exec("mkdir /tmp/once", periodSeconds=3600, failureThreshold=2)
    agent.put(make_pod("steady", make_container(readinessProbe=never_again)))
    await agent.wait_running("steady")
    agent.kill9()
    agent.start()
    seen: list[bool] = []

    def looked_often() -> bool:
        pods = agent.pods()
        if "steady" in pods:
            seen.append(is_ready(pods["steady"]))
        return len(seen) >= 20

    await agent.wait_for("it was looked at", looked_often)
    assert all(seen), "it never was anything but ready"
    assert agent.explain("steady")["name"] == f"steady-{NODE_NAME}"


async def test_a_container_is_ready_long_before_the_period_of_its_probe_has_passed(
    agent: Agent, tmp_path: Path
) -> None:
    gate = Gate(tmp_path)
    terms = {"periodSeconds": 300, "failureThreshold": 1}
    web = make_container("web", f"{UNTIL_OPEN}; httpd -f -p 8080 -h /etc", volumeMounts=MOUNTS)
    containers = [
        {**web, "readinessProbe": {"httpGet": {"port": 8080, "path": "/passwd"}, **terms}},
        make_container("tcp", DEAF, readinessProbe={"tcpSocket": {"port": 8080}, **terms}),
        make_container(
            "exec",
            DEAF,
            readinessProbe={"exec": {"command": ["test", "-e", "/gate/open"]}, **terms},
            volumeMounts=MOUNTS,
        ),
    ]
    agent.put(make_pod("soon", *containers, volumes=[gate.volume], terminationGracePeriodSeconds=1))
    await agent.wait_for("each has been probed once", lambda: len(events(agent, "soon", "Unhealthy")) == 3)
    assert not is_ready(agent.pods()["soon"])
    gate.open()
    await agent.wait_pod("soon", "ready", is_ready)
    assert [event["count"] for event in events(agent, "soon", "Unhealthy")] == [1, 1, 1]
    agent.remove("soon")
