"""Docker's events in the form of the CRI, in virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from cri_docker.logs.docker_file import DockerFile
from cri_docker.parts import make_containers, make_logs, make_sandboxes
from cri_docker.test_engine import ok, serving

from pykubelet.base.kit.supervise import Supervisor
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet_cri_docker import labels
from pykubelet_cri_docker.events import RECONNECT_S, ContainerEvents, since_of

pytestmark = pytest.mark.virtual_time
LATER = 4_000_000_000 * 10**9


def line(action: str, number: int, **own: str) -> bytes:
    event = {
        "Type": "container",
        "Action": action,
        "Actor": {
            "ID": "c1",
            "Attributes": {"name": "k8s_c1", labels.TYPE: "container", labels.SANDBOX_ID: "s1", **own},
        },
        "timeNano": LATER + number,
    }
    return msgspec.json.encode(event) + b"\n"


async def test_events_have_the_statuses_of_their_pod_and_none_is_lost_or_repeated(tmp_path: Path) -> None:
    config = pb.PodSandboxConfig(metadata=pb.PodSandboxMetadata(name="web", namespace="shop", uid="u", attempt=0))
    of_container = {labels.TYPE: "container", labels.SANDBOX_ID: "s1"}
    of_sandbox = msgspec.json.encode(
        {
            "Id": "s1",
            "Name": "/k8s_POD_s1",
            "State": {"Status": "running"},
            "Config": {"Labels": labels.sandbox_labels(config)},
        }
    )
    exited = {"Status": "exited", "ExitCode": 3, "FinishedAt": "2026-11-29T08:00:00.5Z"}
    answers = {
        "/events": ok(
            line("start", 1)
            + line("die", 2, **{labels.TYPE: "other"})
            + line("die", 2, name="happy")
            + line("exec_create: x", 3)
        ),
        "/containers/s1/json": ok(of_sandbox),
        "/containers/c1/json": ok(
            msgspec.json.encode(
                {
                    "Id": "c1",
                    "Name": "/k8s_c1",
                    "Names": ["/k8s_c1"],
                    "State": exited,
                    "Config": {"Labels": of_container},
                }
            )
        ),
        "/containers/json": ok(
            msgspec.json.encode(
                [{"Id": "c1", "Name": "/k8s_c1", "Names": ["/k8s_c1"], "State": "exited", "Labels": of_container}]
            )
        ),
    }
    async with serving(tmp_path, answers) as (made, engine):
        sandboxes, containers = make_sandboxes(engine, tmp_path), make_containers(engine, tmp_path)
        events = ContainerEvents(engine, sandboxes, containers).follow()
        first = await anext(events)
        assert (first.container_id, first.container_event_type) == ("c1", pb.CONTAINER_STARTED_EVENT)
        assert first.pod_sandbox_status.metadata.name == "web"
        (status,) = first.containers_statuses
        assert (status.state, status.exit_code, status.reason) == (pb.CONTAINER_EXITED, 3, "Error")

        made.answers["/events"] = ok(line("start", 1) + line("destroy", 4))
        del made.answers["/containers/s1/json"]
        made.answers["/containers/s1"] = ok(b'{"message":"gone"}', "404 Not Found")
        began = asyncio.get_running_loop().time()
        second = await anext(events)
        assert asyncio.get_running_loop().time() - began == pytest.approx(RECONNECT_S, abs=0.1)
        assert (second.container_event_type, second.created_at) == (pb.CONTAINER_DELETED_EVENT, LATER + 4)
        assert not second.HasField("pod_sandbox_status"), "it has gone"
        asked = [request for request in made.requests if "/events" in request]
        assert f"since={since_of(LATER + 3)}" in asked[1]
        await events.aclose()


async def test_podmans_words_are_understood(tmp_path: Path) -> None:
    answers = {"/events": ok(line("die", 1) + line("cleanup", 2) + line("remove", 3)), "/containers": ok(b"[]")}
    async with serving(tmp_path, answers) as (made, engine):
        sandboxes, containers = make_sandboxes(engine, tmp_path), make_containers(engine, tmp_path)
        events = ContainerEvents(engine, sandboxes, containers).follow()
        found = [(await anext(events)).container_event_type for _ in range(2)]
        assert found == [pb.CONTAINER_STOPPED_EVENT, pb.CONTAINER_DELETED_EVENT]
        (asked,) = (request for request in made.requests if "/events" in request)
        assert "died" in asked and "remove" in asked, "its filter has other words than its events"
        await events.aclose()


async def test_the_log_has_what_was_written_before_an_event_shows_its_container(tmp_path: Path) -> None:
    docker, target = DockerFile(tmp_path / "docker"), tmp_path / "pod" / "0.log"
    target.parent.mkdir()
    docker.write("text\n")
    own = {labels.TYPE: "container", labels.SANDBOX_ID: "s1", labels.LOG_PATH: str(target)}
    shown = {"Id": "c1", "Name": "/k8s_c1", "Names": ["/k8s_c1"], "State": {"Status": "running"}}
    sandbox = {
        "Id": "s1",
        "Name": "/k8s_POD_s1",
        "State": {"Status": "running"},
        "Config": {"Labels": labels.sandbox_labels(pb.PodSandboxConfig())},
    }
    answers = {
        "/events": ok(line("start", 1)),
        "/containers/s1/json": ok(msgspec.json.encode(sandbox)),
        "/containers/c1/json": ok(
            msgspec.json.encode({**shown, "LogPath": str(docker.path), "Config": {"Labels": own}})
        ),
        "/containers/json": ok(msgspec.json.encode([{**shown, "State": "running", "Labels": own}])),
    }
    logs = make_logs(tmp_path)
    async with serving(tmp_path, answers) as (_, engine), Supervisor("test") as tasks:
        logs.start(tasks)
        sandboxes, containers = make_sandboxes(engine, tmp_path), make_containers(engine, tmp_path, logs=logs)
        events = ContainerEvents(engine, sandboxes, containers).follow()
        (status,) = (await anext(events)).containers_statuses
        assert status.state == pb.CONTAINER_RUNNING
        assert target.read_bytes() == docker.lines
        await events.aclose()
    await logs.close()
