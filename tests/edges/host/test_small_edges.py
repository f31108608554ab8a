"""Sub-ids, kernel parameters, the agent's own OOM score, and one HTTP GET."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from pykubelet.act.runtime.lifecycle.decide_userns import IdSlots, MappingError, namespace_at
from pykubelet.act.runtime.render.context import UserNamespace
from pykubelet.base.model.ids import PodUID
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.proc import oom, subids, sysctl
from pykubelet.edges.host.proc.subids import IdRange
from pykubelet.edges.host.services.httpget import HttpError, http_get

pytestmark = pytest.mark.virtual_time

BLOCK, LAST_ID = 65536, 4294967294
NONE = UserNamespace((), ())


def test_subids_line_and_rules() -> None:
    found = subids.parse_subids("0: kubelet 65536 7208960\n")
    assert found == IdRange(65536, 7208960)
    assert subids.check_range(found, found, BLOCK).slots(BLOCK) == 110
    assert subids.default_range(BLOCK) == IdRange(BLOCK, LAST_ID + 1 - BLOCK)


@pytest.mark.parametrize("ids_per_pod", [BLOCK, 2 * BLOCK, 1 << 30, (1 << 31) - BLOCK])
@pytest.mark.parametrize("length", [None, 1 << 32, 1 << 40])
def test_every_slot_can_be_mapped(ids_per_pod: int, length: int | None) -> None:
    """The kernel refuses a mapping with the id 4294967295."""
    found = subids.default_range(ids_per_pod) if length is None else IdRange(ids_per_pod, length)
    slots = IdSlots(found.first, ids_per_pod, found.slots(ids_per_pod))
    assert slots.count > 0
    ends = slots.first + slots.count * ids_per_pod - 1
    assert LAST_ID - ids_per_pod < ends <= LAST_ID
    uid, last = PodUID("last"), slots.first + (slots.count - 1) * ids_per_pod
    (mapped,) = (slots.record(uid, namespace_at(last, ids_per_pod)).namespace_of(uid) or NONE).uids
    assert mapped.host_id + mapped.length - 1 <= LAST_ID
    with pytest.raises(MappingError, match="out of range"):
        slots.record(uid, namespace_at(last + ids_per_pod, ids_per_pod))


def test_a_node_without_a_slot_is_reported() -> None:
    found = subids.default_range(1 << 31)
    slots = IdSlots(found.first, 1 << 31, found.slots(1 << 31))
    with pytest.raises(MappingError, match=r"could not find an empty slot .*: the node has no 2147483648 IDs"):
        slots.take(PodUID("first"))


@pytest.mark.parametrize(
    "text", ["", "0: kubelet 1 2\n1: kubelet 3 4\n", "0: kubelet one 2\n", "Error fetching ranges"]
)
def test_subids_answers_that_cannot_be_used(text: str) -> None:
    with pytest.raises(ValueError, match=r"exactly one range|cannot read"):
        subids.parse_subids(text)


@pytest.mark.parametrize(
    ("users", "groups", "why"),
    [
        (IdRange(BLOCK, BLOCK), IdRange(BLOCK, 2 * BLOCK), "differ"),
        (IdRange(0, BLOCK), IdRange(0, BLOCK), "below the first"),
        (IdRange(BLOCK + 1, BLOCK), IdRange(BLOCK + 1, BLOCK), "multiples"),
        (IdRange(BLOCK, BLOCK + 1), IdRange(BLOCK, BLOCK + 1), "multiples"),
        (IdRange(BLOCK, 0), IdRange(BLOCK, 0), "multiples"),
    ],
)
def test_subids_ranges_that_break_a_rule(users: IdRange, groups: IdRange, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        subids.check_range(users, groups, BLOCK)


async def test_subids_of_an_unknown_user_are_the_default() -> None:
    assert await subids.read_subids(BLOCK, user="no-such-user-here") == subids.default_range(BLOCK)


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    for name, value in sysctl.KERNEL_DEFAULTS:
        file = tmp_path / "proc" / "sys" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{value}\n")
    return tmp_path


def test_kernel_defaults_are_checked_and_set(kernel: Path) -> None:
    assert sysctl.check_kernel_defaults(str(kernel)) == ()
    (kernel / "proc/sys/vm/overcommit_memory").write_text("0\n")
    (wrong,) = sysctl.check_kernel_defaults(str(kernel))
    assert str(wrong) == "invalid kernel flag: vm/overcommit_memory, expected value: 1, actual value: 0"
    assert sysctl.set_kernel_defaults(str(kernel)) == (wrong,)
    assert sysctl.check_kernel_defaults(str(kernel)) == ()
    (kernel / "proc/sys/kernel/panic").unlink()
    with pytest.raises(HostError):
        sysctl.check_kernel_defaults(str(kernel))


def test_refused_oom_score_is_a_value(tmp_path: Path) -> None:
    refused = oom.write_own_oom_score(-999, proc=str(tmp_path))
    assert refused is not None and refused.is_not_found
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "oom_score_adj").write_text("0")
    assert oom.write_own_oom_score(-999, proc=str(tmp_path)) is None
    assert (tmp_path / "self" / "oom_score_adj").read_text() == "-999"


def test_a_refused_limit_of_open_files_is_a_value_and_what_is_allowed_is_set() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, hard), hard))
    try:
        refused = oom.raise_open_files(1 << 40)
        assert refused is not None and refused.errno_name == "EPERM" and f"it is {hard}:" in str(refused)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/slow":
            await asyncio.sleep(30)
        if request.path == "/large":
            return web.Response(body=b"x" * 2000)
        if request.path == "/broken":
            assert request.transport is not None
            request.transport.close()
        return web.Response(status=404, text=",".join(request.headers.getall("X-Two", [])))

    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    yield f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[attr-defined]
    await runner.cleanup()


async def test_get_with_headers_of_several_values(url: str) -> None:
    answer = await http_get(f"{url}/", {"X-Two": ("a", "b")})
    assert (answer.status, answer.reason, answer.body) == (404, "Not Found", b"a,b")


@pytest.mark.parametrize(
    ("path", "why"), [("/slow", "no answer within 0.2 s"), ("/large", "larger than 1000 bytes"), ("/broken", "broken")]
)
async def test_get_that_fails_has_a_reason(url: str, path: str, why: str) -> None:
    with pytest.raises(HttpError, match=why):
        await http_get(url + path, timeout_s=0.2 if path == "/slow" else 30.0, limit=1000)


async def test_get_without_a_server_and_of_nonsense() -> None:
    for address in ("http://127.0.0.1:1/", "no url at all"):
        with pytest.raises(HttpError, match=address[:10]):
            await http_get(address)
