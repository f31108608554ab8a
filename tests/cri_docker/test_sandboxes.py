"""Sandboxes of the CRI against a Docker Engine that answers as the test wants, in virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from cri_docker.parts import make_sandboxes
from cri_docker.test_engine import Docker, ok, serving

from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.net.grpc.status import Code, RpcError
from pykubelet_cri_docker import labels
from pykubelet_cri_docker.engine.transport import EngineError
from pykubelet_cri_docker.render_container import RenderFacts, render_sandbox
from pykubelet_cri_docker.sandboxes import PodSandboxes

pytestmark = pytest.mark.virtual_time
CONFIG = pb.PodSandboxConfig(metadata=pb.PodSandboxMetadata(name="web", uid="u", namespace="shop"))
NAME = labels.sandbox_name(CONFIG.metadata)
HANGS = b""
NO_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"


def on_host() -> pb.PodSandboxConfig:
    config = pb.PodSandboxConfig()
    config.CopyFrom(CONFIG)
    config.linux.security_context.namespace_options.network = pb.NODE
    return config


def inspected(config: pb.PodSandboxConfig, status: str = "running") -> bytes:
    own = render_sandbox(config, "pause", RenderFacts()).labels
    return ok(
        msgspec.json.encode(
            {"Id": "s1", "Name": "/k8s_POD_s1", "State": {"Status": status, "Pid": 7}, "Config": {"Labels": own}}
        )
    )


def listed(name: str = NAME, status: str = "running") -> bytes:
    own = render_sandbox(CONFIG, "pause", RenderFacts()).labels
    return ok(msgspec.json.encode([{"Id": "s1", "Names": [f"/{name}"], "State": status, "Labels": own}]))


def listings(sandboxes: bytes, containers: bytes) -> dict[str, bytes | list[bytes]]:
    """The answers to the lists of sandboxes, and of the containers in them."""
    return {"podsandbox": sandboxes, f"{labels.TYPE}%3Dcontainer": containers}


def removals(made: Docker) -> list[str]:
    return [request for request in made.requests if request.startswith("DELETE")]


async def shown(sandboxes: PodSandboxes) -> list[str]:
    return [item.id for item in await sandboxes.list(pb.PodSandboxFilter())]


async def test_a_sandbox_whose_start_hangs_is_not_shown_and_is_removed_later(tmp_path: Path) -> None:
    """Docker holds its lock of a container that it starts, so neither an inspection nor a removal returns."""
    answers: dict[str, bytes | list[bytes]] = {
        "/containers/create": ok(b'{"Id":"s1"}'),
        "/s1/start": HANGS,
        "/s1/json": HANGS,
        "/containers/json": listed(),
    }
    async with serving(tmp_path, answers) as (made, engine):
        sandboxes = make_sandboxes(engine, tmp_path)
        run = asyncio.create_task(sandboxes.run(on_host(), ""))
        await asyncio.sleep(1)
        assert await shown(sandboxes) == []
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert await shown(sandboxes) == [] and not removals(made)
        await sandboxes.stop("s1")
        await sandboxes.remove("s1")
        with pytest.raises(EngineError, match="No such sandbox: s1"):
            await sandboxes.status("s1")
        assert engine.lost.is_set()

        made.answers |= {"/s1/start": ok(b""), "/s1/json": inspected(on_host())}
        await sandboxes.remove_incomplete()
        assert removals(made) == ["DELETE /v1.41/containers/s1?v=1&force=1"]


@pytest.mark.parametrize(
    ("config", "status", "inside", "is_removed"),
    [
        (CONFIG, "running", b"[]", True),
        (CONFIG, "created", b"[]", True),
        (on_host(), "created", b"[]", True),
        (on_host(), "running", b"[]", False),
        (CONFIG, "exited", b"[]", False),
        (CONFIG, "running", b'[{"Id":"c1","Names":["/k8s_c1"]}]', False),
    ],
    ids=["no network", "not started", "host, not started", "host", "ended", "with a container"],
)
async def test_of_the_sandboxes_of_a_killed_program_those_that_are_not_complete_are_removed(
    tmp_path: Path, config: pb.PodSandboxConfig, status: str, inside: bytes, is_removed: bool
) -> None:
    """One with containers was complete, and its network was taken down: the client goes on with it."""
    answers = {"/s1/json": inspected(config, status), **listings(listed(status=status), ok(inside))}
    async with serving(tmp_path, answers) as (made, engine):
        await make_sandboxes(engine, tmp_path).remove_incomplete()
        assert bool(removals(made)) is is_removed


async def test_no_container_is_made_in_a_sandbox_without_its_network(tmp_path: Path) -> None:
    async with serving(tmp_path, {"/s1/json": inspected(CONFIG)}) as (_, engine):
        sandboxes = make_sandboxes(engine, tmp_path)
        with pytest.raises(EngineError, match="sandbox s1 is not running"):
            await sandboxes.inspect_ready("s1")
        assert (await sandboxes.status("s1")).state == pb.SANDBOX_NOTREADY


MISSING = ok(b'{"message":"No such image: pause:latest"}', "404 Not Found")
PULL = "POST /v1.41/images/create?fromImage=pause%3Alatest"


async def test_the_image_of_sandboxes_is_pulled_once_if_it_is_missing(tmp_path: Path) -> None:
    """A machine that has run no pods yet lacks it, and so does one after `docker image prune -a`."""
    answers: dict[str, bytes | list[bytes]] = {
        "/containers/create": [MISSING, MISSING, *[ok(b'{"Id":"s1"}')] * 2],
        "/s1/json": inspected(on_host()),
        "/images/pause/json": [MISSING, *[ok(b'{"Id":"sha256:1"}')] * 2],
    }
    async with serving(tmp_path, answers) as (made, engine):
        sandboxes = make_sandboxes(engine, tmp_path)
        ran = await asyncio.gather(sandboxes.run(on_host(), ""), sandboxes.run(on_host(), ""))
        assert list(ran) == ["s1", "s1"]
        assert made.requests.count(PULL) == 1


async def test_an_image_of_sandboxes_that_cannot_be_pulled_is_named(tmp_path: Path) -> None:
    answers: dict[str, bytes | list[bytes]] = {
        "/containers/create": MISSING,
        "/images/create": ok(b'{"message":"connection refused"}', "500 Internal Server Error"),
        "/images/pause/json": MISSING,
    }
    async with serving(tmp_path, answers) as (_, engine):
        with pytest.raises(EngineError, match='failed to pull image "pause": connection refused'):
            await make_sandboxes(engine, tmp_path).run(on_host(), "")


async def test_a_sandbox_that_is_being_stopped_is_not_ready(tmp_path: Path) -> None:
    """Otherwise a client that sees its containers end would start them again in it."""
    answers = {
        "/s1/json": inspected(on_host()),
        **listings(listed(), ok(b'[{"Id":"c1","Names":["/k8s_c1"],"State":"running"}]')),
        "/c1/stop": HANGS,
    }
    async with serving(tmp_path, answers) as (_, engine):
        sandboxes = make_sandboxes(engine, tmp_path)
        stop = asyncio.create_task(sandboxes.stop("s1"))
        await asyncio.sleep(1)
        (item,) = await sandboxes.list(pb.PodSandboxFilter())
        assert item.state == (await sandboxes.status("s1")).state == pb.SANDBOX_NOTREADY
        with pytest.raises(EngineError, match="sandbox s1 is not running"):
            await sandboxes.inspect_ready("s1")
        stop.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stop
        assert (await sandboxes.status("s1")).state == pb.SANDBOX_READY


async def test_a_name_in_use_names_its_holder(tmp_path: Path) -> None:
    """In containerd's words, from which the agent knows what to remove."""
    answers: dict[str, bytes | list[bytes]] = {
        "/containers/create": ok(b'{"message":"Conflict. The name is already in use"}', "409 Conflict"),
        f"/containers/{NAME}/json": inspected(CONFIG),
    }
    async with serving(tmp_path, answers) as (_, engine):
        with pytest.raises(RpcError, match=f'name "{NAME}" is reserved for "s1"') as caught:
            await make_sandboxes(engine, tmp_path).run(CONFIG, "")
        assert caught.value.code is Code.ALREADY_EXISTS


@pytest.mark.parametrize(
    ("removal", "why"),
    [(ok(b'{"message":"busy"}', "500 Oh"), "busy"), (NO_ANSWER, "not removed within 2 s")],
    ids=["refused", "no answer"],
)
async def test_the_log_has_why_a_sandbox_is_removed_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, removal: bytes, why: str
) -> None:
    config = pb.PodSandboxConfig(metadata=pb.PodSandboxMetadata(name="p", namespace="n", uid="u"))
    config.linux.security_context.namespace_options.network = pb.NODE
    found = msgspec.json.encode(
        {
            "Id": "s1",
            "Name": "/k8s_POD_s1",
            "State": {"Status": "created"},
            "Config": {"Labels": labels.sandbox_labels(config)},
        }
    )
    answers: dict[str, bytes | list[bytes]] = {
        "/containers/create": ok(b'{"Id":"s1"}', "201 Created"),
        "/containers/s1/start": ok(b'{"message":"no memory"}', "500 Oh"),
        "/containers/s1/json": ok(found),
        "/containers/s1?": removal,
    }
    async with serving(tmp_path, answers) as (_, engine):
        sandboxes = make_sandboxes(engine, tmp_path)
        with pytest.raises(EngineError, match="no memory"):
            await sandboxes.run(config, "")
        (logged,) = caplog.records
        assert getattr(logged, "fields", {})["error"] == why
