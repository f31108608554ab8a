"""Hooks, the order of ends, and containers that restart all others, on real containers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.agent import Agent, Json, container_status, is_ready, make_container, make_pod, make_polite, waiting_reason
from support.gate import MOUNTS, UNTIL_OPEN, Gate, make_held

pytestmark = pytest.mark.integration

SETTINGS = {"featureGates": {"ContainerStopSignals": True}}

# serves /etc on port 8080, without TLS; ends at once on its signal
HTTPD = 'trap "exit 0" TERM; httpd -f -p 8080 -h /etc & wait $!'
STAY = 'trap "exit 0" TERM; while :; do sleep 3600 & wait $!; done'


def timeline(agent: Agent, pod: str) -> list[str]:
    """The timeline of a pod, as `explain` shows it as text; empty once it is gone."""
    return agent.ask("explain", f"{pod}-node").stdout.splitlines()


def on_exec(script: str, **terms: Any) -> Json:
    return {"exec": {"command": ["/bin/sh", "-c", script]}, "periodSeconds": 1, "timeoutSeconds": 10, **terms}


async def crash_wait(agent: Agent, pod: str) -> Json:
    """What `explain` shows about the back-off, as soon as it is there and has the time of its end."""

    def held() -> Json | None:
        waits = agent.explain(pod)["waits"]
        return next((wait for wait in waits if wait["reason"] == "CrashLoopBackOff" and wait["next_at"]), None)

    return dict(await agent.wait_for(f"{pod}: the back-off is reported", held))


async def reported(agent: Agent, pod: str, words: str) -> str:
    """The line of the timeline with these words in it."""
    found: list[str] = []

    def is_there() -> bool:
        found[:] = [line for line in timeline(agent, pod) if words in line]
        return bool(found)

    await agent.wait_for(f"the timeline of {pod} has: {words}", is_there)
    return found[0]


async def test_an_https_hook_falls_back_to_http(agent: Agent, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    hook = {"httpGet": {"scheme": "HTTPS", "port": "web", "path": "/passwd"}}
    ports = [{"name": "web", "containerPort": 8080}]
    answers = {"tcpSocket": {"port": "web"}, "periodSeconds": 1}
    server = make_container(script=HTTPD, ports=ports, lifecycle={"preStop": hook}, readinessProbe=answers)
    more: Json = {"volumes": [gate.volume], "terminationGracePeriodSeconds": 60}
    agent.put(make_pod("fallback", server, make_held("slow"), **more))
    [pod] = await agent.wait_running("fallback")
    agent.remove("fallback")
    line = await reported(agent, "fallback", "LifecycleHTTPFallback")
    where = f"{pod['status']['podIP']}:8080"
    assert f"request to HTTPS lifecycle hook {where} got HTTP response, retry with HTTP succeeded" in line
    gate.open()
    await agent.wait_gone("fallback")


async def test_failed_hooks_are_reported_in_the_references_words(agent: Agent) -> None:
    """The reason of the wait is complete; the Events do not repeat what a hook printed."""
    failing = {"postStart": {"exec": {"command": ["sh", "-c", "echo secret; exit 3"]}}}
    tcp = {"postStart": {"tcpSocket": {"port": 1}}}
    for name, hook in (("hook-exec", failing), ("hook-tcp", tcp)):
        agent.put(make_pod(name, make_container(lifecycle=hook)))
        held = await agent.wait_pod(name, "started again", lambda pod: waiting_reason(pod) == "CrashLoopBackOff")
        assert container_status(held)["restartCount"] == 1, "the first time there is no pause"
        wait = await crash_wait(agent, name)
        assert "killed: " in wait["detail"], "what the hook printed"
        assert "PostStartHook failed" in await reported(agent, name, "FailedPostStartHook")
        assert "FailedPostStartHook" in await reported(agent, name, "Killing")
        assert not any("secret" in line for line in timeline(agent, name) if "Warning " in line or "Normal " in line)
    agent.remove("hook-exec", "hook-tcp")
    await agent.wait_gone("hook-exec", "hook-tcp")


async def test_a_pre_stop_hook_takes_from_the_grace_period_and_its_failure_delays_no_stop(agent: Agent) -> None:
    hook = {"preStop": {"exec": {"command": ["sh", "-c", "exit 1"]}}}
    endless = {"preStop": {"exec": {"command": ["sleep", "1000"]}}}  # so long there is time to look
    agent.put(
        make_pod(
            "pre-stop",
            make_container("fails", lifecycle=hook),
            make_container("hangs", lifecycle=endless),
            terminationGracePeriodSeconds=12,
        )
    )
    await agent.wait_running("pre-stop")
    agent.remove("pre-stop")
    assert "spec.containers{fails}" in await reported(agent, "pre-stop", "FailedPreStopHook")
    await agent.wait_gone("pre-stop")


async def test_sidecars_outlive_the_containers_they_serve(agent: Agent, tmp_path: Path) -> None:
    """The sidecar is there until the regular container has ended, and ends after it."""
    gate = Gate(tmp_path)
    sidecar = make_held("mesh", "startupProbe", restartPolicy="Always")
    more: Json = {"initContainers": [sidecar], "volumes": [gate.volume], "terminationGracePeriodSeconds": 60}
    agent.put(make_pod("order", make_polite(), **more))
    await agent.wait_running("order")
    agent.remove("order")
    await agent.wait_runtime(
        "only the sidecar is left", lambda view: view.of("order-node").running_names() == ["order-node/mesh"]
    )
    gate.open()
    await agent.wait_gone("order")


async def test_one_container_restarts_all(agent: Agent, tmp_path: Path) -> None:
    """KEP-5532: the sandbox stays, all containers are made anew, init containers first; the second time they wait."""
    rule = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [88]}}
    gate = Gate(tmp_path)
    script = f"{UNTIL_OPEN}; rm /gate/open; exit 88"
    trigger = make_container("watcher", script, restartPolicy="Never", restartPolicyRules=[rule], volumeMounts=MOUNTS)
    agent.put(
        make_pod(
            "reset",
            make_container(script=STAY),
            trigger,
            initContainers=[make_container("prepare", script="true")],
            volumes=[gate.volume],
            restartPolicy="Never",
        )
    )
    names = ("main", "watcher", "prepare")
    await agent.wait_running("reset")
    [first] = [c.id for c in (await agent.look()).of("reset-node").running if c.metadata.name == "main"]
    [box] = (await agent.look()).of("reset-node").ready
    gate.open()
    pod = await agent.wait_pod(
        "reset",
        "started again",
        lambda pod: is_ready(pod) and all(container_status(pod, name)["restartCount"] == 1 for name in names),
    )
    for name in names:
        last = container_status(pod, name)["lastState"]["terminated"]
        assert (last["exitCode"], last["reason"]) == (137, "RestartingAllContainers")
    view = (await agent.look()).of("reset-node")
    assert [s.id for s in view.ready] == [box.id]
    assert first not in {c.id for c in view.containers}
    gate.open()
    waits = ("CrashLoopBackOff", "RestartingAllContainers")
    held = await agent.wait_pod(
        "reset", "held back", lambda pod: (waiting_reason(pod, "watcher"), waiting_reason(pod)) == waits
    )
    assert held["status"]["phase"] == "Running"
    conditions = {c["type"]: c["status"] for c in held["status"]["conditions"]}
    assert conditions["AllContainersRestarting"] == "True"
    assert not (await agent.look()).of("reset-node").running, "they wait together"
    await crash_wait(agent, "reset")
    agent.remove("reset")
    await agent.wait_gone("reset")


async def test_a_sidecar_restarts_all_containers_of_a_pod_that_otherwise_never_restarts(
    agent: Agent, tmp_path: Path
) -> None:
    rule = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [88]}}
    gate = Gate(tmp_path)
    script = f"{UNTIL_OPEN}; rm /gate/open; exit 88"
    watcher = make_container("watcher", script, restartPolicy="Always", restartPolicyRules=[rule], volumeMounts=MOUNTS)
    inits = [make_container("setup", script="true"), watcher]
    volumes = [gate.volume]
    agent.put(
        make_pod("watched", make_container(script=STAY), initContainers=inits, volumes=volumes, restartPolicy="Never")
    )
    await agent.wait_running("watched")
    gate.open()
    pod = await agent.wait_pod(
        "watched",
        "started again",
        lambda pod: (
            all(container_status(pod, name)["restartCount"] == 1 for name in ("main", "watcher", "setup"))
            and container_status(pod)["ready"]
        ),
    )
    assert pod["status"]["phase"] == "Running"
    assert is_ready(pod)
    conditions = {c["type"]: c["status"] for c in pod["status"]["conditions"]}
    assert conditions["AllContainersRestarting"] == "False"
    agent.remove("watched")
    await agent.wait_gone("watched")


@pytest.mark.parametrize("grace", [0, 1])
async def test_hardly_any_grace_period(grace: int, agent: Agent) -> None:
    """Nothing is waited for long; the runtime is given its two seconds."""
    name = f"grace-{grace}"
    deaf = 'trap "" TERM; while :; do sleep 3600 & wait $!; done'
    agent.put(make_pod(name, make_container(script=deaf), terminationGracePeriodSeconds=grace))
    await agent.wait_running(name)
    agent.remove(name)
    await agent.wait_gone(name, within=20)


async def test_the_stop_signal_that_is_reported_is_the_one_that_is_sent(agent: Agent, tmp_path: Path) -> None:
    """A runtime that knows stop signals (later containerd 2) sends the container's signal and reports it; others send SIGTERM.

    CRI-O sends it and reports nothing.
    """
    gate = Gate(tmp_path)
    script = "trap 'exit 7' USR1; trap 'exit 8' TERM; touch /tmp/listens; while :; do sleep 3600 & wait $!; done"
    container = make_container(
        script=script,
        lifecycle={"stopSignal": "SIGUSR1"},
        readinessProbe=on_exec("test -e /tmp/listens"),
        livenessProbe=on_exec("! test -e /gate/open", failureThreshold=1),
        volumeMounts=MOUNTS,
    )
    more: Json = {"os": {"name": "linux"}, "restartPolicy": "Never", "volumes": [gate.volume]}
    agent.put(make_pod("signalled", container, terminationGracePeriodSeconds=60, **more))
    [pod] = await agent.wait_running("signalled")
    gate.open()
    reported = container_status(pod).get("stopSignal", "")
    pod = await agent.wait_pod("signalled", "its end", lambda p: container_status(p)["state"].get("terminated"))
    sent = container_status(pod)["state"]["terminated"]["exitCode"]
    assert sent in {"SIGUSR1": (7,), "": (7, 8)}[reported]
    agent.remove("signalled")
