"""What the socket answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from report.samples import WALL, container, exited, facts, lifecycle, make_pod, running, view
from serve.world import NOW, PULL, WELL, make_world

from pykubelet.base.api import core
from pykubelet.base.kit.values import replace
from pykubelet.base.model.lifecycle import Lifecycles, Stage
from pykubelet.base.model.node import RuntimeReady
from pykubelet.base.model.probes import ProbeKind, ProbeResults
from pykubelet.base.model.roster import Rejection, Roster, RosterPod
from pykubelet.base.model.waits import Owner, Wait
from pykubelet.net.http.server import Request
from pykubelet.report.status.project import project_status
from pykubelet.serve.explain.documents import ask_routes
from pykubelet.serve.explain.waits import admission_waits, node_waits, pod_waits


def ask(path: str, **fields: Any) -> Any:
    world = make_world(**fields)
    answer = asyncio.run(ask_routes(world.inputs, world.clock)(Request("GET", path)))
    return json.loads(answer.body) if answer.status == 200 else answer.status


def test_all_pods_in_short() -> None:
    document = ask("/pods")
    assert (document["node"], document["time"], document["waits"]) == ("local", NOW, [])
    rows = [(p["namespace"], p["name"], p["uid"], p["ready"], p["status"], p["restarts"]) for p in document["pods"]]
    assert rows == [
        ("default", "db", "db-new", "0/1", "ContainerCreating", 0),
        ("default", "db", "db-old", "1/1", "Terminating", 0),
        ("default", "late", "late-1", "0/1", "ContainerCreating", 0),
        ("default", "web", "uid-1", "0/1", "CrashLoopBackOff", 2),
    ]
    assert [p["desired"] for p in document["pods"]] == [True, False, True, True]
    assert document["problems"] == [
        {
            "origin": "/etc/manifests/bad.yaml",
            "field_path": "spec.containers",
            "reason": "Required value",
            "document": "",
        }
    ]


def test_a_pods_summary() -> None:
    (web,) = (p for p in ask("/pods")["pods"] if p["name"] == "web")
    assert web == {
        "namespace": "default",
        "name": "web",
        "uid": "uid-1",
        "source": "file",
        "desired": True,
        "phase": "Running",
        "status": "CrashLoopBackOff",
        "reason": "",
        "message": "",
        "ready": "0/1",
        "restarts": 2,
        "created": WALL,
        "stage": "syncing",
        "stage_since": WALL,
        "kill_reason": None,
        "ip": "10.0.0.9",
        "waits": [
            {
                "what": "container start",
                "owner": "pod worker",
                "module": "act/pods",
                "since": WALL + 90,
                "subject": "app",
                "reason": "CrashLoopBackOff",
                "detail": "back-off 20s restarting failed container=app pod=web_default(uid-1)",
                "next_step": "start again",
                "next_at": NOW + 12,
            }
        ],
    }


def test_a_pod_in_full() -> None:
    document = ask("/pods/uid-1")
    (app,) = document["containers"]
    assert (app["name"], app["kind"], app["state"], app["reason"]) == ("app", "regular", "waiting", "CrashLoopBackOff")
    assert (app["last"]["state"], app["last"]["exit_code"], app["last"]["reason"]) == ("terminated", 1, "Error")
    assert document["sandboxes"][0]["ips"] == ["10.0.0.9"]
    assert [remark["field_path"] for remark in document["remarks"]] == ["spec.hostNetwrk"]
    assert ask("/pods/late-1")["remarks"] == []
    timeline = [
        (line["at"] - WALL, line["what"], line.get("event"), line.get("count")) for line in document["timeline"]
    ]
    assert timeline == [
        (0.0, "taken up", None, None),
        (0.5, "Image is present", "Pulled", 1),
        (1.0, "start app", None, None),
        (91.0, "held back", "BackOff", 7),
    ]


def test_what_is_not_there_is_not_found() -> None:
    assert ask("/pods/missing") == 404
    assert ask("/else") == 404


def test_the_node() -> None:
    document = ask("/node")
    assert (document["name"], document["ips"], document["waits"]) == ("local", ["192.0.2.1"], [])
    assert document["runtime"]["version"] == "1.7.24"
    assert [(line["event"], line["what"]) for line in document["timeline"]] == [("Starting", "Starting kubelet.")]


def test_the_detailed_wait_of_a_component_replaces_the_coarse_one() -> None:
    (late,) = (p for p in ask("/pods")["pods"] if p["name"] == "late")
    assert [(w["what"], w["subject"], w["reason"]) for w in late["waits"]] == [
        ("volume", "data", "FailedMount"),
        ("image", "busybox", ""),
    ]


# Waits

PROBED = container(readinessProbe=core.Probe(), startupProbe=core.Probe())
NO_PROBES = ProbeResults()
ALL_PROBES = ProbeResults({}, frozenset(ProbeKind))


@pytest.mark.parametrize(
    ("pod", "seen", "probes", "expected"),
    [
        (make_pod(), view(running()), ALL_PROBES, []),
        (make_pod(), view(), ALL_PROBES, []),
        (make_pod(PROBED), view(running()), ALL_PROBES, [("startup probe", "app")]),
        (make_pod(PROBED), view(running()), NO_PROBES, []),
        (
            make_pod(container(readinessProbe=core.Probe())),
            view(running()),
            ALL_PROBES,
            [("readiness probe", "app")],
        ),
        (make_pod(init=(container("i"),)), view(running("i")), ALL_PROBES, [("init container to end", "i")]),
        (make_pod(init=(container("i"),)), view(exited("i")), ALL_PROBES, []),
    ],
)
def test_running_containers_that_hold_the_pod_up_are_waits(
    pod: core.Pod, seen: Any, probes: ProbeResults, expected: list[tuple[str, str]]
) -> None:
    life = lifecycle(pod)
    status = project_status(facts(pod, seen, lifecycle=life, probes=probes))
    waits = pod_waits(life, (), (), status)
    assert [(w.what, w.subject) for w in waits] == expected
    assert {w.since for w in waits} <= {WALL + 1}


@pytest.mark.parametrize(
    ("source", "reason", "step"),
    [
        ("file", "NodePorts", "admit the pod when that has changed"),
        ("file", "AppArmor", "decide again at the next start of the agent"),
        ("api", "NodePorts", ""),
    ],
)
def test_a_static_pod_that_is_rejected_waits_for_its_admission(source: str, reason: str, step: str) -> None:
    pod = make_pod(static=source == "file")
    entry = RosterPod(pod, source, WALL, Rejection(reason, "why"))
    life = lifecycle(pod, Stage.FINISHED)
    waits = admission_waits(entry, life)
    expected = [("admission", reason, "why", step, life.stage_since)] if step else []
    assert [(w.what, w.reason, w.detail, w.next_step, w.since) for w in waits] == expected
    assert admission_waits(replace(entry, rejection=None), life) == ()


def test_readiness_gates_are_waited_for() -> None:
    pod = make_pod(readinessGates=(core.PodReadinessGate(conditionType="g"),))
    life = lifecycle(pod)
    (wait,) = pod_waits(life, (), (), project_status(facts(pod, view(running()), lifecycle=life)))
    assert (wait.what, wait.reason) == ("readiness gates", "ReadinessGatesNotReady")


def test_a_pod_that_is_ended_does_not_wait_for_probes() -> None:
    pod = make_pod(PROBED)
    life = lifecycle(pod, Stage.TERMINATING)
    status = project_status(facts(pod, view(running()), lifecycle=life, probes=ALL_PROBES))
    assert pod_waits(life, (), (PULL,), status) == (PULL,)


LATE = "the runtime has not answered the question for all its pods since then"


@pytest.mark.parametrize(
    ("runtime", "expected"),
    [
        (WELL, []),
        (RuntimeReady(answer_error="no socket"), [("container runtime", "no socket")]),
        (replace(WELL, answer_error="gone"), [("container runtime", "gone")]),
        (replace(WELL, network_error="no cni"), [("pod network", "no cni")]),
        (replace(WELL, runtime_error="down"), [("container runtime", "")]),
        (replace(WELL, unseen_since=WALL), [("look at all pods", LATE)]),
    ],
)
def test_what_the_whole_node_waits_for(runtime: RuntimeReady, expected: list[tuple[str, str]]) -> None:
    waits = node_waits(runtime, Roster(sources_ready=True), WALL)
    assert [(w.what, w.detail) for w in waits] == expected


def test_explain_shows_the_next_request_to_the_runtime_and_when_a_late_relist_makes_the_node_not_ready() -> None:
    runtime = replace(WELL, runtime_error="down", next_at=NOW + 1, unseen_since=WALL)
    asked, late = node_waits(runtime, Roster(sources_ready=True), WALL)
    assert (asked.next_step, asked.next_at) == ("ask again", NOW + 1)
    assert (late.next_step, late.next_at) == ("ask again, and call the node not ready", WALL + 180)
    (lost,) = node_waits(replace(WELL, pleg_error="PLEG", unseen_since=WALL), Roster(sources_ready=True), WALL)
    assert (lost.reason, lost.next_at) == ("PLEG", None)


def test_sources_that_have_not_delivered_are_waited_for() -> None:
    assert [w["what"] for w in ask("/pods", sources_ready=False)["waits"]] == ["pod sources"]


async def test_a_pod_that_is_no_longer_desired_is_shown_until_it_is_gone() -> None:
    world = make_world()
    world.roster.publish(Roster({}, True))
    route = ask_routes(world.inputs, world.clock)
    assert len(json.loads((await route(Request("GET", "/pods"))).body)["pods"]) == 4
    world.lifecycles.publish(Lifecycles({}))
    assert json.loads((await route(Request("GET", "/pods"))).body)["pods"] == []


def test_equal_waits_of_two_components_are_one() -> None:
    pod = make_pod()
    wait = Wait("x", Owner.POD_WORKER, WALL)
    assert pod_waits(lifecycle(pod), (), (wait, wait), core.PodStatus()) == (wait,)
