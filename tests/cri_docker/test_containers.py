"""Containers of the CRI against a Docker Engine that answers as the test wants, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from cri_docker.parts import make_containers
from cri_docker.test_engine import Docker, ok, serving

from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.net.grpc.status import RpcError
from pykubelet_cri_docker import labels
from pykubelet_cri_docker.apparmor import AppArmorFiles
from pykubelet_cri_docker.containers import Containers, prepare

pytestmark = pytest.mark.virtual_time


@asynccontextmanager
async def created(top: Path, log_path: Path) -> AsyncIterator[tuple[Docker, Containers]]:
    """The container c1, which was created and has its log at `log_path`."""
    own = {labels.TYPE: "container", labels.LOG_PATH: str(log_path)}
    found = msgspec.json.encode(
        {"Id": "c1", "Name": "/k8s_c1", "Names": ["/k8s_c1"], "State": {"Status": "created"}, "Config": {"Labels": own}}
    )
    async with serving(top, {"/containers/c1/json": ok(found)}) as (made, engine):
        yield made, make_containers(engine, top)


async def test_a_container_that_was_started_has_a_log(tmp_path: Path) -> None:
    log = tmp_path / "0.log"
    async with created(tmp_path, log) as (made, containers):
        await containers.start("c1")
        assert log.read_bytes() == b""
        assert "POST /v1.41/containers/c1/start" in made.requests


async def test_a_container_that_cannot_have_a_log_is_not_started(tmp_path: Path) -> None:
    async with created(tmp_path, tmp_path / "missing" / "0.log") as (made, containers):
        with pytest.raises(HostError, match=r"missing.*no such file"):
            await containers.start("c1")
        assert not [request for request in made.requests if "start" in request]


async def test_containers_that_are_removed_meanwhile_do_not_hold_up_the_others(tmp_path: Path) -> None:
    """After a start of the program, and after each sandbox that could not be completed."""
    own = {labels.TYPE: "container"}
    listed = [
        {"Id": name, "Name": f"/k8s_{name}", "Names": [f"/k8s_{name}"], "State": "exited", "Labels": own}
        for name in ("c1", "c2")
    ]
    gone = ok(b'{"message":"No such container"}', "404 Not Found")
    answers = {"/containers/json": ok(msgspec.json.encode(listed)), "/containers/c": gone}
    async with serving(tmp_path, answers) as (made, engine):
        await make_containers(engine, tmp_path).resume()
        for name in ("c1", "c2"):
            assert [request for request in made.requests if f"/containers/{name}/json" in request]


@pytest.mark.parametrize(
    ("enabled", "profile", "problem"),
    [
        ("Y", "own", ""),
        ("Y", "a name", ""),
        ("Y", "ow", "security_context.apparmor: the profile 'ow' is not loaded"),
        ("N", "own", "security_context.apparmor: AppArmor is not enabled, so there is no profile 'own'"),
        ("", "own", "security_context.apparmor: AppArmor is not enabled, so there is no profile 'own'"),
    ],
)
def test_a_profile_of_apparmor_is_loaded_or_refused(tmp_path: Path, enabled: str, profile: str, problem: str) -> None:
    kernel = AppArmorFiles(str(tmp_path / "enabled"), str(tmp_path / "profiles"))
    Path(kernel.enabled).write_text(f"{enabled}\n")
    Path(kernel.profiles).write_text("docker-default (enforce)\nown (complain)\na name (enforce)\n")
    config = pb.ContainerConfig()
    context = config.linux.security_context
    context.apparmor.profile_type, context.apparmor.localhost_ref = pb.SecurityProfile.Localhost, profile
    try:
        prepare(config, kernel)
        found = ""
    except RpcError as error:
        found = error.message
    assert found == problem
    context.privileged = True
    assert prepare(config, kernel) == ""
