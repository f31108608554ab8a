"""The life of pods from manifests, from first start to the last trace, as a user sees it."""

from __future__ import annotations

import contextlib
import time
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.agent import (
    Agent,
    Json,
    RuntimeView,
    condition,
    container_status,
    is_ready,
    make_container,
    make_pod,
    runtime_client,
    waiting_reason,
)
from support.gate import MOUNTS, UNTIL_OPEN, Gate

from pykubelet.base.model.ids import SandboxID
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError

pytestmark = pytest.mark.integration

SLEEP = "while :; do sleep 3600 & wait $!; done"


def seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()


def noted(name: str, script: str = SLEEP, ending: str = "") -> str:
    """A script that notes its start and, on SIGTERM, its end in the shared file."""
    note = f"echo {name} ends >> /notes/order"
    return f"trap '{ending}{note}; exit 0' TERM; echo {name} >> /notes/order; {script}"


def note_volume(folder: Path) -> Json:
    return {"name": "notes", "hostPath": {"path": str(folder), "type": "DirectoryOrCreate"}}


NOTES = [{"name": "notes", "mountPath": "/notes"}]


def read_notes(folder: Path) -> list[str]:
    path = folder / "order"
    return path.read_text().splitlines() if path.exists() else []


async def test_init_containers_run_in_order_and_sidecars_end_last(agent: Agent, tmp_path: Path) -> None:
    def container(name: str, script: str, **spec: Any) -> Json:
        return make_container(name, script, volumeMounts=NOTES, **spec)

    pod = make_pod(
        "order",
        container("main", noted("main")),
        initContainers=[
            container("one", "sleep 0.2; echo one >> /notes/order"),
            container("side-a", noted("side-a"), restartPolicy="Always"),
            container("two", "echo two >> /notes/order"),
            container("side-b", noted("side-b"), restartPolicy="Always"),
        ],
        volumes=[note_volume(tmp_path)],
        terminationGracePeriodSeconds=60,
    )
    agent.put(pod)
    seen = await agent.wait_pod("order", "running", is_ready)
    assert condition(seen, "Initialized") == condition(seen, "Ready") == "True"
    await agent.wait_for("all started", lambda: len(read_notes(tmp_path)) >= 5)
    order = read_notes(tmp_path)
    assert [name for name in order if name in ("one", "two", "main")] == ["one", "two", "main"]
    assert order.index("one") < order.index("side-a") and order.index("two") < order.index("side-b")
    assert container_status(seen, "one")["state"]["terminated"]["reason"] == "Completed"
    assert container_status(seen, "side-a")["started"] is True

    agent.remove("order")
    await agent.wait_gone("order")
    assert read_notes(tmp_path)[5:] == ["main ends", "side-b ends", "side-a ends"]


async def test_a_failing_init_container_holds_back_what_comes_after(agent: Agent) -> None:
    agent.put(
        make_pod("init-fails", initContainers=[make_container("first", "exit 4")]),
        make_pod("init-never", initContainers=[make_container("first", "exit 4")], restartPolicy="Never"),
    )
    seen = await agent.wait_phase("init-never", "Failed")
    assert waiting_reason(seen) == "PodInitializing"
    seen = await agent.wait_pod(
        "init-fails", "back-off", lambda pod: waiting_reason(pod, "first") == "CrashLoopBackOff"
    )
    assert seen["status"]["phase"] == "Pending" and condition(seen, "Initialized") == "False"
    assert waiting_reason(seen) == "PodInitializing"
    assert not [c for c in (await agent.look()).of("init-fails-node").containers if c.metadata.name == "main"]
    agent.remove("init-fails", "init-never")


async def test_restart_policies(agent: Agent) -> None:
    once = "if [ -e /data/x ]; then exit 0; fi; touch /data/x; exit 5"
    data: Json = {"volumes": [{"name": "data", "emptyDir": {}}]}
    mounts: Json = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    agent.put(
        make_pod("never-good", make_container(script="exit 0"), restartPolicy="Never"),
        make_pod("never-bad", make_container(script="exit 7"), restartPolicy="Never"),
        make_pod("on-failure", make_container(script=once, **mounts), restartPolicy="OnFailure", **data),
        make_pod("always", make_container(script="exit 0"), restartPolicy="Always"),
        make_pod("mixed", make_container("job", "exit 0", restartPolicy="Never"), make_container("service")),
    )
    good = await agent.wait_phase("never-good", "Succeeded")
    assert container_status(good)["state"]["terminated"]["exitCode"] == 0
    assert condition(good, "Ready") == "False" and condition(good, "Initialized") == "True"
    assert {c["reason"] for c in good["status"]["conditions"] if c["type"] == "Ready"} == {"PodCompleted"}
    bad = await agent.wait_phase("never-bad", "Failed")
    assert container_status(bad)["state"]["terminated"]["exitCode"] == 7
    assert container_status(bad)["state"]["terminated"]["reason"] == "Error"
    retried = await agent.wait_phase("on-failure", "Succeeded")
    assert container_status(retried)["restartCount"] == 1
    assert container_status(retried)["state"]["terminated"]["exitCode"] == 0
    await agent.wait_pod("always", "restarted", lambda pod: container_status(pod)["restartCount"] >= 1)
    mixed = await agent.wait_pod("mixed", "job done", lambda p: "terminated" in container_status(p, "job")["state"])
    mixed = await agent.wait_pod("mixed", "service up", lambda pod: container_status(pod, "service").get("ready"))
    assert mixed["status"]["phase"] == "Running" and container_status(mixed, "job")["restartCount"] == 0
    view = await agent.wait_runtime("completed pods have no sandbox", lambda v: not v.of("never-good-node").ready)
    assert not view.of("never-good-node").running
    agent.remove("never-good", "never-bad", "on-failure", "always", "mixed")


async def test_a_crashing_container_restarts_at_once_then_waits_ten_seconds(agent: Agent) -> None:
    agent.put(make_pod("crash", make_container(script="exit 3")))
    seen = await agent.wait_pod("crash", "held back", lambda pod: waiting_reason(pod) == "CrashLoopBackOff")
    status = container_status(seen)
    assert status["restartCount"] == 1, "the first restart does not wait"
    assert status["lastState"]["terminated"]["exitCode"] == 3
    message = status["state"]["waiting"]["message"]
    assert message.startswith("back-off 10s restarting failed container=main pod=crash-node_default(")
    assert condition(seen, "Ready") == "False" and condition(seen, "ContainersReady") == "False"

    def held() -> Json | None:
        waits = agent.explain("crash")["waits"]
        return next((wait for wait in waits if wait["reason"] == "CrashLoopBackOff" and wait["next_at"]), None)

    wait = await agent.wait_for("the wait is reported", held)
    assert wait["subject"] == "main"
    ended = seconds(status["lastState"]["terminated"]["finishedAt"])
    assert ended + 9 <= wait["next_at"] <= ended + 12
    agent.remove("crash")


async def test_pods_end_within_their_grace(agent: Agent, tmp_path: Path) -> None:
    polite = make_container(script=noted("polite", ending="sleep 0.5; "), volumeMounts=NOTES)
    stubborn = make_container(script="trap '' TERM; while :; do sleep 1; done")
    agent.put(
        make_pod("polite", polite, terminationGracePeriodSeconds=60, volumes=[note_volume(tmp_path)]),
        make_pod("stubborn", stubborn, terminationGracePeriodSeconds=2),
    )
    await agent.wait_running("polite", "stubborn")
    await agent.wait_for("polite is up", lambda: read_notes(tmp_path))
    began = time.monotonic()
    agent.remove("polite", "stubborn")
    await agent.wait_runtime("polite ended", lambda view: not view.of("polite-node").running)
    assert read_notes(tmp_path)[1:] == ["polite ends"]
    assert (await agent.look()).of("stubborn-node").running or time.monotonic() - began > 2
    await agent.wait_runtime("stubborn was killed", lambda view: not view.of("stubborn-node").running)
    assert time.monotonic() - began >= 2
    await agent.wait_gone("polite", "stubborn")


async def test_a_changed_manifest_ends_the_old_pod_before_the_new_one_starts(agent: Agent, tmp_path: Path) -> None:
    def version(number: int) -> Json:
        script = noted(f"v{number}", ending="sleep 0.7; ")
        container = make_container(script=script, volumeMounts=NOTES)
        return make_pod("changed", container, volumes=[note_volume(tmp_path)], terminationGracePeriodSeconds=60)

    agent.put(version(1))
    [old] = await agent.wait_running("changed")
    await agent.wait_for("v1 runs", lambda: read_notes(tmp_path) == ["v1"])
    agent.put(version(2))
    await agent.wait_for("v2 runs", lambda: "v2" in read_notes(tmp_path))
    assert read_notes(tmp_path) == ["v1", "v1 ends", "v2"]
    new = await agent.wait_pod("changed", "a new one", lambda pod: pod["metadata"]["uid"] != old["metadata"]["uid"])
    new = await agent.wait_pod("changed", "running", is_ready)
    assert container_status(new)["restartCount"] == 0
    agent.remove("changed")
    await agent.wait_gone("changed")


async def kill_sandbox(agent: Agent, pod: str) -> None:
    [sandbox] = (await agent.look()).of(pod).ready
    await agent.kill_sandbox(sandbox.id)


async def test_a_dead_sandbox_is_replaced_and_the_containers_with_it(agent: Agent) -> None:
    agent.put(make_pod("beheaded"))
    [before] = await agent.wait_running("beheaded")
    await kill_sandbox(agent, "beheaded-node")
    after = await agent.wait_pod(
        "beheaded", "runs again", lambda pod: is_ready(pod) and container_status(pod)["restartCount"] == 1
    )
    assert container_status(after)["containerID"] != container_status(before)["containerID"]
    view = (await agent.look()).of("beheaded-node")
    assert [s.metadata.attempt for s in view.ready] == [1]
    assert view.running_names() == ["beheaded-node/main"]
    agent.remove("beheaded")


async def test_in_a_new_sandbox_init_containers_and_sidecars_come_first_again(agent: Agent, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    gate.open()
    up = {"exec": {"command": ["test", "-e", "/tmp/up"]}}
    sidecar = make_container(
        "mesh",
        f"({UNTIL_OPEN}; touch /tmp/up) & trap exit TERM; while :; do sleep 0.1; done",
        restartPolicy="Always",
        startupProbe={**up, "periodSeconds": 1, "failureThreshold": 100},
        volumeMounts=MOUNTS,
    )
    first = make_container("first", "true")
    agent.put(make_pod("anew", initContainers=[first, sidecar], volumes=[gate.volume]))
    await agent.wait_running("anew")
    gate.close()
    await kill_sandbox(agent, "anew-node")

    def is_held(pod: Json) -> bool:
        mesh = container_status(pod, "mesh")
        return mesh["restartCount"] == 1 and "running" in mesh["state"] and not mesh["started"]

    held = await agent.wait_pod("anew", "the sidecar runs again", is_held)
    assert held["status"]["phase"] == "Pending"
    assert "terminated" in container_status(held, "main")["state"]
    gate.open()
    after = await agent.wait_pod("anew", "runs again", is_ready)
    assert after["status"]["phase"] == "Running"
    for name in ("first", "mesh", "main"):
        again = container_status(after, name)
        assert again["restartCount"] == 1 and "terminated" in again["lastState"]
    agent.remove("anew")


async def test_a_killed_container_restarts_in_its_sandbox(agent: Agent) -> None:
    agent.put(make_pod("shot"))
    await agent.wait_running("shot")
    [before] = (await agent.look()).of("shot-node").running
    await agent.kill_container(before.id)
    seen = await agent.wait_pod("shot", "again", lambda p: is_ready(p) and container_status(p)["restartCount"] == 1)
    assert container_status(seen)["lastState"]["terminated"]["exitCode"] == 137
    view = (await agent.look()).of("shot-node")
    assert [s.id for s in view.ready] == [before.pod_sandbox_id]
    agent.remove("shot")


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("is_removed", [False, True], ids=["stopped", "removed"])
async def test_the_end_of_a_sandbox_from_outside_restarts_each_container_once(
    count: int, is_removed: bool, agent: Agent
) -> None:
    """The runtime kills the containers one after the other, and the sandbox last."""
    names = [f"c{number}" for number in range(count)]
    agent.put(make_pod("ousted", *(make_container(name, script="while :; do sleep 3600; done") for name in names)))
    await agent.wait_running("ousted")
    [before] = (await agent.look()).of("ousted-node").ready
    async with runtime_client(agent.testbed) as client:
        end = client.remove_pod_sandbox if is_removed else client.stop_pod_sandbox
        with contextlib.suppress(CriError):  # the agent may remove a dead container at the same time
            await end(SandboxID(before.id))

    def runs_anew(view: RuntimeView) -> bool:
        pod = view.of("ousted-node")
        return len(pod.ready) == 1 and pod.ready[0].id != before.id and len(pod.running) == count

    await agent.wait_runtime("it runs in a new sandbox", runs_anew, within=8)
    seen = await agent.wait_pod(
        "ousted", "ready", lambda pod: is_ready(pod) and container_status(pod, "c0")["restartCount"]
    )
    for name in names:
        status = container_status(seen, name)
        assert status["restartCount"] == 1
        assert status["lastState"]["terminated"]["exitCode"] == 137
    await agent.wait_for("it waits for nothing", lambda: not agent.explain("ousted")["waits"])
    agent.remove("ousted")
    await agent.wait_gone("ousted")


async def test_a_post_start_hook_does_not_keep_a_pod_in_a_sandbox_that_was_stopped(agent: Agent) -> None:
    hook = {"postStart": {"sleep": {"seconds": 3000}}}
    script = "trap 'exit 0' TERM; while :; do sleep 0.1; done"
    agent.put(make_pod("hooked", make_container(script=script, lifecycle=hook), terminationGracePeriodSeconds=3600))
    await agent.wait_runtime("it runs", lambda view: len(view.of("hooked-node").running) == 1)
    [before] = (await agent.look()).of("hooked-node").ready
    async with runtime_client(agent.testbed) as client:
        await client.stop_pod_sandbox(SandboxID(before.id))

    def runs_anew(view: RuntimeView) -> bool:
        pod = view.of("hooked-node")
        return len(pod.ready) == 1 and pod.ready[0].id != before.id and len(pod.running) == 1

    await agent.wait_runtime("it runs in a new sandbox", runs_anew)
    agent.remove("hooked")
    await agent.wait_gone("hooked")


def is_ready_again(times: int, pod: Json) -> bool:
    return is_ready(pod) and container_status(pod)["restartCount"] == times


async def test_of_containers_that_ended_only_the_newest_is_kept_with_its_log(agent: Agent) -> None:
    agent.put(make_pod("kept"))
    await agent.wait_running("kept")
    for count in (1, 2):
        [container] = (await agent.look()).of("kept-node").running
        await agent.kill_container(container.id)
        await agent.wait_pod("kept", "again", partial(is_ready_again, count))
    [logs] = agent.logs.glob("*_kept-node_*/main")

    def is_so(view: RuntimeView) -> bool:
        attempts = sorted(c.metadata.attempt for c in view.of("kept-node").containers)
        return attempts == [1, 2] and sorted(path.name for path in logs.iterdir()) == ["1.log", "2.log"]

    await agent.wait_runtime("only the newest dead container and its log are kept", is_so)
    agent.remove("kept")
    await agent.wait_gone("kept")


async def test_termination_messages(agent: Agent) -> None:
    fallback = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    agent.put(
        make_pod(
            "messages",
            make_container("file", "echo -n from the file > /dev/termination-log; exit 1"),
            make_container("own", "echo -n own > /tmp/why; exit 1", terminationMessagePath="/tmp/why"),
            make_container("logs", "echo from the log; exit 1", **fallback),
            make_container("good", "echo not reported; exit 0", **fallback),
            restartPolicy="Never",
        )
    )
    seen = await agent.wait_phase("messages", "Failed")
    output = {
        name: container_status(seen, name)["state"]["terminated"].get("message") for name in ("file", "own", "logs")
    }
    assert output == {"file": "from the file", "own": "own", "logs": "from the log\n"}
    assert "message" not in container_status(seen, "good")["state"]["terminated"]
    agent.remove("messages")


async def test_a_pod_past_its_deadline_fails(agent: Agent) -> None:
    agent.put(make_pod("late", activeDeadlineSeconds=2))
    seen = await agent.wait_phase("late", "Failed")
    assert seen["status"]["reason"] == "DeadlineExceeded"
    await agent.wait_runtime("its container ended", lambda view: not view.of("late-node").running)
    agent.remove("late")


async def test_the_status_of_a_running_pod(agent: Agent) -> None:
    agent.put(make_pod("status", make_container(resources={"limits": {"cpu": "100m", "memory": "32Mi"}})))
    [pod] = await agent.wait_running("status")
    status = pod["status"]
    assert pod["metadata"]["annotations"]["kubernetes.io/config.source"] == "file"
    assert pod["metadata"]["annotations"]["kubernetes.io/config.hash"] == pod["metadata"]["uid"]
    assert pod["spec"]["nodeName"] == "node"
    assert status["qosClass"] == "Guaranteed"
    assert {c["type"]: c["status"] for c in status["conditions"]} == dict.fromkeys(
        ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"), "True"
    )
    sandbox_id = (await agent.look()).of("status-node").ready[0].id
    client = CriClient(agent.testbed.endpoint)
    try:
        network = (await client.pod_sandbox_status(sandbox_id)).status.network
    finally:
        await client.close()
    assert status["podIP"] == network.ip and status["podIPs"][0] == {"ip": network.ip}
    assert status["hostIP"]
    [entry] = status["containerStatuses"]
    assert entry["containerID"].partition("://")[0] in ("containerd", "cri-o", "docker") and entry["imageID"]
    assert entry["image"] == "localhost/busybox:1"
    assert entry["started"] is True and entry["restartCount"] == 0
    assert seconds(entry["state"]["running"]["startedAt"]) >= seconds(status["startTime"]) - 1
    agent.remove("status")


async def test_removal_leaves_nothing(agent: Agent) -> None:
    memory = {"name": "memory", "emptyDir": {"medium": "Memory"}}
    container = make_container(volumeMounts=[{"name": "memory", "mountPath": "/m", "subPath": "a"}])
    agent.put(make_pod("traceless", container, volumes=[memory]))
    await agent.wait_running("traceless")
    assert agent.leftovers(), "the pod has directories, a cgroup, logs and mounts while it runs"
    await agent.remove_all()
