"""exec, attach, port-forward and run: which container is meant, and what is printed where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlencode

import pytest
from report.samples import UID
from serve.world import make_world

from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.errors import CriCode, CriError
from pykubelet.net.http.server import Request, Response
from pykubelet.serve.endpoints.known_pods import KnownPods
from pykubelet.serve.streaming.streams import Streams, forwarded_ports


class Runtime:
    """Refuses everything, and answers with the request."""

    async def exec_url(self, request: pb.ExecRequest) -> str:
        raise CriError(CriCode.NOT_FOUND, f"asked for {request.container_id}", "Exec")

    async def attach_url(self, request: pb.AttachRequest) -> str:
        raise CriError(CriCode.RESOURCE_EXHAUSTED, f"asked for {request.container_id}", "Attach")

    async def port_forward_url(self, sandbox_id: str, ports: Sequence[int] = ()) -> str:
        raise CriError(CriCode.UNKNOWN, f"asked for {sandbox_id} {list(ports)}", "PortForward")

    async def exec_sync(self, container_id: str, command: Sequence[str], timeout_s: int = 0) -> pb.ExecSyncResponse:
        return pb.ExecSyncResponse(stdout=" ".join(command).encode(), exit_code=0)


async def ask(path: str, **query: list[str]) -> tuple[int, str]:
    inputs = make_world().inputs
    pods = KnownPods(inputs.roster, inputs.lifecycles, inputs.observed, inputs.statuses)
    streams = Streams(pods, Runtime(), 60.0, websockets=True)
    verbs = {"exec": streams.exec, "attach": streams.attach, "portForward": streams.port_forward, "run": streams.run}
    answer = await verbs[path.split("/")[1]](Request("POST", path, urlencode({"output": ["1"], **query}, doseq=True)))
    assert isinstance(answer, Response)
    return answer.status, answer.body.decode()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/exec/default/missing/app", (404, "pod does not exist")),
        ("/exec/default/missing/uid/app", (404, "pod does not exist")),
        ("/exec/default/db/missing", (500, 'container not found ("missing")')),
        ("/exec/default/db/wrong-uid/app", (500, 'container not found ("app")')),
        ("/run/default/db/wrong-uid/app", (500, 'container not found ("app")')),
        ("/attach/default/db/wrong-uid/app", (500, "container app not found in pod db_default")),
        ("/portForward/default/missing/uid", (404, "pod does not exist")),
        ("/portForward/default/web/wrong-uid", (404, "pod not found")),
    ],
)
async def test_what_is_not_there(path: str, expected: tuple[int, str]) -> None:
    assert await ask(path) == expected


async def test_of_two_pods_of_one_name_the_uid_decides() -> None:
    status, answered = await ask("/exec/default/db/db-old/app")
    assert (status, "asked for" in answered) == (404, True), answered
    assert await ask("/exec/default/db/app") == (500, 'container not found ("app")')  # the newer one does not run yet
    assert await ask("/run/default/db/db-old/app", cmd=["ls -l"]) == (200, "ls -l")


async def test_what_is_no_stream_is_refused() -> None:
    assert await ask("/exec/default/db/db-old/app", output=["0"]) == (
        400,
        "you must specify at least 1 of stdin, stdout, stderr",
    )
    assert (await ask("/attach/default/db/db-old/app"))[0] == 429
    assert (await ask(f"/portForward/default/web/{UID}"))[0] == 500


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("80,0000443", [80, 443]),
        ("65535", [65535]),
        ("0", None),
        ("65536", None),
        ("0000019999999", None),
        ("9" * 5000, None),
        ("²", None),
        ("８０", None),
        ("+80", None),
        ("80,", None),
    ],
)
def test_ports_of_a_forward_are_numbers_of_ports(given: str, expected: list[int] | None) -> None:
    query = urlencode({"port": given})
    found = forwarded_ports(Request("GET", "/portForward/default/web", query, {"upgrade": "websocket"}))
    if expected is not None:
        assert found == expected
    else:
        assert isinstance(found, Response) and found.status == 400 and len(found.body) < 300
