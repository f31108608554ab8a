"""The reference kubelet stops and our agent starts on the same root directory, and the other way around: the pods do not notice.

Needs a kubelet 1.36: `REFERENCE_KUBELET=/usr/bin/kubelet pytest tests/agent/test_takeover.py`. `PYKUBELET_TAKEOVERS` is the number
of changes from one to the other, each with other pods; `PYKUBELET_SEED` chooses them.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest
import yaml
from support.agent import WAIT_S, Json, NotYet, condition, is_ready, make_container, make_pod, sweep, waiting_reason
from support.device_plugins import PluginProcess, device_plugin, healthy
from support.reference import (
    REFERENCE,
    WHY_SKIPPED,
    EitherAgent,
    entries_of,
    instances,
    is_unready,
    lasting,
    newest_start,
)
from testbed.private_runtime import Testbed

from pykubelet.base.api.times import parse_time

pytestmark = [pytest.mark.integration, pytest.mark.skipif(not REFERENCE, reason=WHY_SKIPPED)]

TAKEOVERS = int(os.environ.get("PYKUBELET_TAKEOVERS", "4"))
SEED = int(os.environ.get("PYKUBELET_SEED", "1"))
#: How long the pods are watched after a takeover, once all are reported.
WATCH_S = 2.0
#: How often the first container of a pod fails before it runs.
RESTARTS = "example.com/restarts"
DEVICE = "example.com/device"
STEADY, CRASHING, ENDED = "steady", "crashing", "ended"
SETTINGS: dict[str, object] = {
    "cpuManagerPolicy": "static",
    "reservedSystemCPUs": "0",
    "cpuManagerReconcilePeriod": "1s",
    "syncFrequency": "2s",
}


@pytest.fixture
async def agent(testbed: Testbed) -> AsyncIterator[EitherAgent]:
    await sweep(testbed)
    made = EitherAgent(testbed, Path(testbed.folder) / "takeover", SETTINGS)
    yield made
    await made.clear()


async def test_pods_do_not_notice_who_runs_them(agent: EitherAgent) -> None:
    chance = random.Random(SEED)
    pods: dict[str, str] = {}
    agent.is_reference = True
    agent.start()
    async with device_plugin(agent.root, DEVICE, healthy(*"abcdefghijklmnop")) as plugin:
        await change_agents(agent, plugin, chance, pods)
    await agent.remove_all()
    agent.stop()


async def test_pods_whose_manifests_have_fields_that_the_kubelet_ignores_go_on(testbed: Testbed) -> None:
    """Typos, fields given twice and further documents in manifests and the configuration; both make the same pod of each."""
    await sweep(testbed)
    agent = EitherAgent(testbed, Path(testbed.folder) / "ignored", SETTINGS | {"maxPod": 5}, is_reference=True)
    try:
        for name, text in ODD_MANIFESTS.items():
            agent.put_text(name, text)
        agent.start()
        await agent.wait_running(*ODD_PODS)
        pods, ids = odd_facts(agent), instances(await agent.look())
        for _ in range(2):
            report = agent.takeover_check() if agent.is_reference else None
            assert report is None or report.returncode == 0, report.stdout
            agent.stop()
            agent.is_reference = not agent.is_reference
            agent.start()
            await agent.wait_running(*ODD_PODS)
            assert odd_facts(agent) == pods, agent.who
            await asyncio.sleep(WATCH_S)
            assert instances(await agent.look()) == ids, agent.who
        agent.stop()
    finally:
        await agent.clear()


def odd_facts(agent: EitherAgent) -> dict[str, Json]:
    """By pod: what a duplicate field decides, and its UID."""
    return {
        name: {
            "uid": pod["metadata"]["uid"],
            "labels": pod["metadata"].get("labels"),
            "env": pod["spec"]["containers"][0].get("env"),
            "grace": pod["spec"]["terminationGracePeriodSeconds"],
        }
        for name, pod in agent.pods().items()
    }


def as_yaml(pod: Json, more: str = "") -> str:
    return str(yaml.safe_dump(pod, sort_keys=False)) + more


ODD_PODS = ("typo", "twice", "merged", "first")
ODD_MANIFESTS = {
    "typo.yaml": as_yaml(make_pod("typo", hostNetwrk=True), "spex: {a: 1}\n"),
    # in YAML the last value counts alone
    "twice.yaml": as_yaml(
        make_pod("twice"), "  terminationGracePeriodSeconds: 3\n  terminationGracePeriodSeconds: 4\n"
    ),
    # in JSON maps are merged, and lists by position
    "merged.json": json.dumps(make_pod("merged", make_container(env=[{"name": "A", "value": "1"}])))[:-1]
    + ', "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"env": [{"name": "B"}]}]}, "status": null}',
    "two.yaml": as_yaml(make_pod("first"), "---\n" + as_yaml(make_pod("second"))),
}


async def change_agents(agent: EitherAgent, plugin: PluginProcess, chance: random.Random, pods: dict[str, str]) -> None:
    for number in range(TAKEOVERS):
        await plugin.wait_calls("Register", number + 1)
        for index in range(2):
            kind, pod = a_pod(chance, f"p{number}-{index}", pods)
            pods[pod["metadata"]["name"]] = kind
            agent.put(pod)
        await settle(agent, pods)
        gone = chance.sample(sorted(pods), max(0, len(pods) - 5))
        if chance.random() < 0.5:  # removed while one of them runs, or while none does
            await remove(agent, pods, gone)
            gone = []
        await take_over(agent, pods, gone, f"takeover {number} (PYKUBELET_SEED={SEED})")


async def remove(agent: EitherAgent, pods: dict[str, str], names: list[str]) -> None:
    agent.remove(*names)
    for name in names:
        del pods[name]
    await agent.wait_gone(*names)


async def take_over(agent: EitherAgent, pods: dict[str, str], gone: list[str], what: str) -> None:
    """Stop the one agent and start the other. The pods in `gone` have lost their manifests when it comes."""
    before = {name: pod["status"] for name, pod in agent.pods().items()}
    ids, devices = instances(await agent.look()), agent.devices()
    uids = {name: pod["metadata"]["uid"] for name, pod in agent.pods().items()}
    at = time.time()
    ages = {
        name: at - parse_time(newest_start(status)) if newest_start(status) else 0.0 for name, status in before.items()
    }
    if agent.is_reference:
        report = json.loads(agent.takeover_check().stdout)
        changes = [finding for finding in report["findings"] if finding["severity"] != "note"]
        assert not changes, f"{what}: {changes}"
    held = f"{what}, from {agent.who}: {sorted(pods.items())}"
    agent.stop()
    agent.is_reference = not agent.is_reference
    agent.remove(*gone)
    for name in gone:
        del pods[name]
    agent.start()
    kept = {name for name, kind in pods.items() if kind != CRASHING}

    def reported() -> bool:
        now = {name: pod["status"] for name, pod in agent.pods().items()}
        for name in pods:
            status = now.get(name, {})
            # without an API server, the reference waits for the first result of every probe
            unready = not agent.is_reference and is_unready(before[name], status, ages[name])
            assert not unready, f"{held}: {name} is not ready: {status}"
            behind = bool(entries_of(status)) and restarts(status) < restarts(before[name])
            assert not behind, f"{held}: {name} restarted {restarts(before[name])} times: {status}"
        return all(lasting(now.get(name, {})) == lasting(before[name]) for name in kept)

    try:
        await agent.wait_for("all pods are reported again", reported, within=WAIT_S / 2)
    except NotYet as error:
        now = {name: lasting(pod["status"]) for name, pod in agent.pods().items()}
        other = {name: differences(lasting(before[name]), now.get(name, {})) for name in kept}
        raise AssertionError(f"{held}: {[item for item in other.items() if item[1]]}") from error
    if gone:
        await agent.wait_gone(*gone)
    until = time.monotonic() + WATCH_S
    await agent.wait_for("watched", lambda: reported() and time.monotonic() > until)
    found, have = instances(await agent.look()), agent.devices()
    for (uid, container), given in devices.items():
        assert uid not in [uids[name] for name in pods] or have.get((uid, container)) == given, f"{held}: {uid}"
    for name in kept:
        full = f"{name}-node"
        assert found.get(full) == ids.get(full), f"{held}: {name}"


def differences(before: Json, now: Json, path: str = "") -> list[str]:
    """What has another value, with both."""
    found = []
    for key in {**before, **now}:
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            found += differences(old, new, f"{path}.{key}")
        elif old != new:
            found.append(f"{path}.{key}: {old} -> {new}")
    return found


def restarts(status: Json) -> int:
    return sum(entry["restartCount"] for entry in entries_of(status))


async def settle(agent: EitherAgent, pods: Mapping[str, str]) -> None:
    """Wait until every pod is as it will stay."""
    done: dict[str, Callable[[Json], bool]] = {
        STEADY: lambda pod: (
            is_ready(pod)
            and condition(pod, "Ready") == "True"
            and restarts(pod["status"]) >= int(pod["metadata"]["annotations"][RESTARTS])
        ),
        CRASHING: lambda pod: waiting_reason(pod) == "CrashLoopBackOff",
        ENDED: lambda pod: (
            pod["status"]["phase"] in ("Succeeded", "Failed") and condition(pod, "PodReadyToStartContainers") == "False"
        ),
    }
    for name, kind in pods.items():
        if kind != CRASHING or name not in agent.pods():
            await agent.wait_pod(name, kind, done[kind])


# The pods


def a_pod(chance: random.Random, name: str, others: Mapping[str, str]) -> tuple[str, Json]:
    """A pod of a random kind, with random containers and volumes, and how it will settle."""
    kind = chance.choices([STEADY, CRASHING, ENDED], [8, 1, 2])[0]
    if kind == CRASHING:
        return kind, make_pod(name, make_container(script="exit 4"))
    if kind == ENDED:
        policy = chance.choice(["Never", "OnFailure"])
        code = chance.choice([0, 3]) if policy == "Never" else 0
        return kind, make_pod(
            name, make_container(script=f"echo over > /dev/termination-log; exit {code}"), restartPolicy=policy
        )
    volumes, mounts = some_volumes(chance)
    containers = [make_container("main", some_script(chance), volumeMounts=mounts)]
    containers += [make_container(f"c{number}", volumeMounts=mounts[:1]) for number in range(chance.randrange(3))]
    for container in containers:
        container |= some_probes(chance)
    spec: Json = {"volumes": volumes}
    init = []
    if chance.random() < 0.4:
        init.append(make_container("first", "echo first > /dev/termination-log"))
    if chance.random() < 0.4:
        init.append(make_container("side", restartPolicy="Always", **some_probes(chance)))
    if init:
        spec["initContainers"] = init
    if chance.random() < 0.2:
        spec["hostNetwork"] = True
    else:
        spec["hostAliases"] = [{"ip": "192.0.2.1", "hostnames": ["a.example.com"]}]
    if chance.random() < 0.3:
        spec["securityContext"] = {"fsGroup": 2000, "supplementalGroups": [3000]}
    if chance.random() < 0.4:
        containers[0]["resources"] = {"requests": {"memory": "16Mi"}, "limits": {"memory": "64Mi"}}
    elif not any(other.endswith("exclusive") for other in others):
        name += "-exclusive"  # the only CPU that is not reserved
        amounts = {"cpu": "1", "memory": "32Mi"}
        containers[1:] = []
        spec.pop("initContainers", None)
        containers[0]["resources"] = {"requests": amounts, "limits": amounts}
    if chance.random() < 0.4:
        resources = containers[0].setdefault("resources", {})
        for which in ("requests", "limits"):
            resources[which] = {**resources.get(which, {}), DEVICE: "1"}
    return STEADY, make_pod(
        name, *containers, annotations={RESTARTS: str(int("once" in containers[0]["command"][-1]))}, **spec
    )


def some_script(chance: random.Random) -> str:
    """Of the first container: one that sleeps, or one that does so after it has failed once."""
    sleep = 'trap "exit 0" TERM; while :; do sleep 3600 & wait $!; done'
    return chance.choice(["", f"if [ -e /v0/once ]; then {sleep}; fi; touch /v0/once; exit 3"])


def some_probes(chance: random.Random) -> Json:
    probe = {"exec": {"command": ["true"]}, "periodSeconds": 1, "timeoutSeconds": 10}
    kinds = ["startupProbe", "readinessProbe", "livenessProbe"]
    return dict.fromkeys(chance.sample(kinds, chance.randrange(4)), probe)


def some_volumes(chance: random.Random) -> tuple[list[Json], list[Json]]:
    """Volumes and their mounts; the first one is an emptyDir. Without an API server, the reference mounts no projected ones."""
    sources: list[Json] = [
        {"emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"hostPath": {"path": "/etc", "type": "Directory"}},
        {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.annotations"}}]}},
    ]
    chosen: list[Json] = [{"emptyDir": {}}, *chance.sample(sources, chance.randrange(len(sources) + 1))]
    volumes = [{"name": f"v{number}", **source} for number, source in enumerate(chosen)]
    mounts = [{"name": volume["name"], "mountPath": f"/{volume['name']}"} for volume in volumes]
    if chance.random() < 0.5:
        mounts[0]["subPath"] = "below"
    return volumes, mounts
