"""Sandboxes of the CRI against a Docker Engine that answers as the test wants, in virtual time."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from cri_docker.parts import make_sandboxes
from cri_docker.test_engine import ok, serving

from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet_cri_docker import labels
from pykubelet_cri_docker.engine.transport import EngineError

pytestmark = pytest.mark.virtual_time
NO_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"


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
        {"Id": "s1", "State": {"Status": "created"}, "Config": {"Labels": labels.sandbox_labels(config)}}
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
