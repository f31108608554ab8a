"""What the CRI shows of Docker's containers."""

from __future__ import annotations

import pytest

from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet_cri_docker import labels, views
from pykubelet_cri_docker.engine import messages as docker

BEGAN, ENDED = "2026-11-29T08:00:00.000000001Z", "2026-11-29T08:00:01Z"


def status(**state: object) -> pb.ContainerStatus:
    config = pb.ContainerConfig(image=pb.ImageSpec(image="sha256:abc", user_specified_image="busybox:1"))
    own = docker.DockerConfig(labels=labels.container_labels(config, "s1", "/logs/0.log"))
    found = docker.DockerState(**state)  # type: ignore[arg-type]
    return views.show_container_status(
        docker.DockerContainer("c1", created=BEGAN, image="sha256:abc", state=found, config=own),
        pb.LinuxContainerResources(),
    )


@pytest.mark.parametrize(
    ("found", "state", "code", "reason"),
    [
        ({"status": "created"}, pb.CONTAINER_CREATED, 0, ""),
        ({"status": "running", "started_at": BEGAN}, pb.CONTAINER_RUNNING, 0, ""),
        ({"status": "paused", "started_at": BEGAN}, pb.CONTAINER_RUNNING, 0, ""),
        ({"status": "stopping", "started_at": BEGAN}, pb.CONTAINER_RUNNING, 0, ""),
        ({"status": "exited", "finished_at": ENDED}, pb.CONTAINER_EXITED, 0, "Completed"),
        ({"status": "exited", "exit_code": 3}, pb.CONTAINER_EXITED, 3, "Error"),
        ({"status": "exited", "exit_code": 137, "oom_killed": True}, pb.CONTAINER_EXITED, 137, "OOMKilled"),
        ({"status": "created", "exit_code": 127, "error": "no such file"}, pb.CONTAINER_EXITED, 128, "StartError"),
    ],
)
def test_states_and_reasons(found: dict[str, object], state: pb.ContainerState, code: int, reason: str) -> None:
    shown = status(**found)
    assert (shown.state, shown.exit_code, shown.reason) == (state, code, reason)


def test_times_are_nanoseconds_and_none_is_zero() -> None:
    shown = status(status="exited", started_at=BEGAN, finished_at="0001-01-01T00:00:00Z")
    assert shown.created_at == shown.started_at and shown.started_at % 10**9 == 1
    assert shown.finished_at == 0
    assert views.nanoseconds("yesterday") == 0


def test_the_image_has_the_name_in_the_pod() -> None:
    shown = status(status="running")
    assert (shown.image.image, shown.image_id, shown.log_path) == ("busybox:1", "sha256:abc", "/logs/0.log")


def test_names_of_images_that_are_none_are_left_out() -> None:
    shown = views.show_image(
        docker.ImageSummary("i", ["<none>:<none>"], ["<none>@<none>", "a@sha256:1"], 5), pinned=True
    )
    assert (list(shown.repo_tags), list(shown.repo_digests), shown.size, shown.pinned) == ([], ["a@sha256:1"], 5, True)


@pytest.mark.parametrize(
    ("user", "uid", "name"), [("", None, ""), ("0:0", 0, ""), ("1000", 1000, ""), ("web:grp", None, "web")]
)
def test_the_user_of_an_image(user: str, uid: int | None, name: str) -> None:
    shown = views.show_image_status(docker.DockerImage("i", config=docker.ImageConfig(user)), pinned=False)
    assert (shown.uid.value if shown.HasField("uid") else None, shown.username) == (uid, name)
