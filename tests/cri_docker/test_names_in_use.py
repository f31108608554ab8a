"""Names of sandboxes against a Docker Engine that answers as the test wants, in virtual time."""

from __future__ import annotations

from pathlib import Path

import pytest
from cri_docker.parts import make_sandboxes
from cri_docker.test_engine import ok, serving

from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.net.grpc.status import Code, RpcError
from pykubelet_cri_docker.engine.transport import EngineError

pytestmark = pytest.mark.virtual_time
CONFIG = pb.PodSandboxConfig(metadata=pb.PodSandboxMetadata(name="web", namespace="shop", uid="u", attempt=0))
NAME = "k8s_POD_web_shop_u_0"


@pytest.mark.parametrize("status", ["409 Conflict", "500 Internal Server Error"])
async def test_the_holder_of_a_name_is_named_whatever_status_the_engine_has_for_it(tmp_path: Path, status: str) -> None:
    answers = {"/containers/create": ok(b'{"message":"in use"}', status), f"/{NAME}/json": ok(b'{"Id":"s1"}')}
    async with serving(tmp_path, answers) as (_, engine):
        with pytest.raises(RpcError, match=f'"{NAME}" is reserved for "s1"') as caught:
            await make_sandboxes(engine, tmp_path).run(CONFIG, "")
        assert caught.value.code is Code.ALREADY_EXISTS


async def test_a_failure_with_a_free_name_stays_what_it_is(tmp_path: Path) -> None:
    none = ok(b'{"message":"No such container"}', "404 Not Found")
    answers = {"/containers/create": ok(b'{"message":"disk full"}', "500 Oh"), f"/{NAME}/json": none}
    async with serving(tmp_path, answers) as (_, engine):
        with pytest.raises(EngineError, match=r"^disk full$"):
            await make_sandboxes(engine, tmp_path).run(CONFIG, "")
