"""Images of Docker Engine under the rules of the CRI."""

from __future__ import annotations

from pathlib import Path

import pytest
from cri_docker.test_engine import ok, serving

from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet_cri_docker.engine.transport import EngineError
from pykubelet_cri_docker.images import Images, with_tag

BUSYBOX = ok(b'{"Id":"sha256:1","RepoTags":["busybox:1"]}')
GONE = ok(b'{"message":"No such image"}', "404 Not Found")
REFUSED = ok(b'{"message":"unrecognized image ID sha256:1"}', "500 Internal Server Error")


async def test_an_image_that_another_call_removes_at_the_same_time_is_removed(tmp_path: Path) -> None:
    answers = {"force=1": REFUSED, "/images/busybox%3A1/json": BUSYBOX, "/images/sha256%3A1/json": GONE}
    async with serving(tmp_path, answers) as (_, engine):
        await Images(engine, "pause").remove("busybox:1")


async def test_an_image_that_docker_does_not_remove_is_an_error(tmp_path: Path) -> None:
    async with serving(tmp_path, {"force=1": REFUSED, "/json": BUSYBOX}) as (_, engine):
        with pytest.raises(EngineError, match="unrecognized image ID"):
            await Images(engine, "pause").remove("busybox:1")


async def test_a_name_without_a_tag_pulls_only_the_latest(tmp_path: Path) -> None:
    async with serving(tmp_path, {"/json": BUSYBOX}) as (made, engine):
        assert await Images(engine, "pause").pull("busybox", pb.AuthConfig()) == "sha256:1"
        assert made.requests[1] == "POST /v1.41/images/create?fromImage=busybox%3Alatest"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("host:5000/busybox", "host:5000/busybox:latest"),
        ("host:5000/busybox:1", "host:5000/busybox:1"),
        ("busybox@sha256:1", "busybox@sha256:1"),
    ],
)
def test_a_port_is_no_tag(name: str, expected: str) -> None:
    assert with_tag(name) == expected
