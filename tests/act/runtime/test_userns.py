"""User namespaces on disk and in the runtime: made, found again after a restart, given back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from act.runtime.failures import refusal_of
from act.runtime.rendering import SETTINGS, make_pod
from support.runtimes import memory_runtime

from pykubelet.act.runtime.lifecycle.decide_userns import MappingError, namespace_at
from pykubelet.act.runtime.lifecycle.metrics import STARTED_USERNS
from pykubelet.act.runtime.lifecycle.sandbox import Sandbox, SandboxCells, Sandboxes
from pykubelet.act.runtime.lifecycle.userns import UserNamespaceManager, reported_namespace
from pykubelet.act.runtime.render.context import UserNamespace
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.cells import Sink, make_cell
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.values import replace
from pykubelet.base.model.content import Content
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.base.model.lifecycle import StartError
from pykubelet.base.model.node import HandlerFeatures, RuntimeReady
from pykubelet.base.model.observed import SandboxView
from pykubelet.base.model.paths import Paths
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriCode
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.proc.subids import IdRange
from pykubelet.testing.cri.fake_handles import RuntimeFault
from pykubelet.testing.cri.in_memory import MemoryRuntime

pytestmark = pytest.mark.virtual_time

A, B, C = (PodUID(name) for name in ("uid-a", "uid-b", "uid-c"))
LENGTH = 65536
ABLE = RuntimeReady(checked=True, runtime_error="", handlers={"": HandlerFeatures(user_namespaces=True)})


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[MemoryRuntime]:
    with memory_runtime(tmp_path) as fake:
        yield fake


class Node:
    """One node's disk and runtime, for one agent after the other."""

    def __init__(self, cri: CriClient, root: Path) -> None:
        self.cri = cri
        self.paths = Paths(str(root / "root"), str(root / "logs"), str(root / "links"))
        self.ids = IdRange(LENGTH, 3 * LENGTH)
        self.recorder: Sink[KubeEvent] = Sink()

    def agent(self) -> UserNamespaceManager:
        async def read_range(ids_per_pod: int) -> IdRange:
            assert ids_per_pod == LENGTH
            return self.ids

        return UserNamespaceManager(self.cri, SingleFlight("test"), self.paths, LENGTH, read_range)

    def sandboxes(self, ready: RuntimeReady = ABLE) -> Sandboxes:
        settings = replace(SETTINGS, paths=self.paths)
        cells = SandboxCells(
            make_cell("node", SETTINGS.node)[0], make_cell("runtime", ready)[0], make_cell("content", Content())[0]
        )
        return Sandboxes(self.cri, SingleFlight("test"), settings, cells, "", self.recorder, userns=self.agent())

    def file(self, uid: PodUID) -> Path:
        return Path(self.paths.user_namespace(uid))

    def spoil(self, uid: PodUID, content: bytes) -> None:
        self.file(uid).parent.mkdir(parents=True, exist_ok=True)
        self.file(uid).write_bytes(content)


@pytest.fixture
async def node(runtime: MemoryRuntime, tmp_path: Path) -> AsyncIterator[Node]:
    cri = runtime.connect()
    yield Node(cri, tmp_path)
    await cri.close()


def slot(found: UserNamespace) -> int:
    return found.uids[0].host_id // LENGTH


def pod_of(uid: PodUID) -> Pod:
    return make_pod(metadata={"name": uid, "uid": uid}, hostUsers=False)


async def test_ranges_are_written_down_and_given_back(node: Node) -> None:
    agent = node.agent()
    assert [slot(await agent.allocate(uid)) for uid in (A, B, A)] == [1, 2, 1]
    assert json.loads(node.file(A).read_text()) == {
        "uidMappings": [{"hostId": 65536, "containerId": 0, "length": 65536}],
        "gidMappings": [{"hostId": 65536, "containerId": 0, "length": 65536}],
    }
    await agent.release(A)
    await agent.release(A)
    assert not node.file(A).exists()
    assert slot(await agent.allocate(C)) == 1


async def test_after_a_restart_everybody_keeps_what_they_have(node: Node) -> None:
    before = node.agent()
    for uid in (A, B, C):
        await before.allocate(uid)
    await before.release(A)
    after = node.agent()
    assert [slot(await after.allocate(uid)) for uid in (C, B, A)] == [3, 2, 1]


async def test_a_pod_that_ends_before_it_was_read_is_released_too(node: Node) -> None:
    await node.agent().allocate(A)
    after = node.agent()
    await after.release(A)
    assert slot(await after.allocate(B)) == 1


async def test_when_all_is_taken_the_pod_is_refused(node: Node) -> None:
    agent = node.agent()
    for uid in (A, B, C):
        await agent.allocate(uid)
    refused = await refusal_of(agent.allocate(PodUID("uid-d")))
    assert refused == StartError(
        "CreatePodSandboxError", "create user namespace: could not find an empty slot to allocate a user namespace"
    )
    assert not node.file(PodUID("uid-d")).exists()
    # A directory from before the restart that has been removed since.
    node.file(B).unlink()
    assert slot(await agent.allocate(PodUID("uid-d"))) == 2


@pytest.mark.parametrize("content", [b"", b"\x00" * 40, b'{"uidMappings":[', b"[]", b"x" * 70_000])
async def test_garbage_of_a_pod_that_does_not_run_is_replaced(node: Node, content: bytes) -> None:
    node.spoil(A, content)
    agent = node.agent()
    assert slot(await agent.allocate(B)) == 1
    assert slot(await agent.allocate(A)) == 2
    assert slot(await node.agent().allocate(A)) == 2


async def test_two_files_with_the_same_range(node: Node) -> None:
    await node.agent().allocate(A)
    node.spoil(B, node.file(A).read_bytes())
    agent = node.agent()
    assert slot(await agent.allocate(A)) == 1
    assert slot(await agent.allocate(B)) == 2


async def run(node: Node, sandboxes: Sandboxes, uid: PodUID) -> Sandbox:
    made = await sandboxes.create(pod_of(uid), 0, "/pods")
    assert isinstance(made, Sandbox), made
    return made


def mapped(made: Sandbox) -> int:
    options = made.config.linux.security_context.namespace_options.userns_options
    assert options.mode == pb.POD and options.uids == options.gids
    assert (options.uids[0].container_id, options.uids[0].length) == (0, LENGTH)
    return options.uids[0].host_id // LENGTH


async def test_sandboxes_are_made_and_adopted_with_their_ranges(node: Node, runtime: MemoryRuntime) -> None:
    before = node.sandboxes()
    first, second = await run(node, before, A), await run(node, before, B)
    assert (mapped(first), mapped(second)) == (1, 2)
    asked = runtime.called("RunPodSandbox")[-1].request.config
    assert asked.linux.security_context.namespace_options.userns_options.uids[0].host_id == 2 * LENGTH
    after = node.sandboxes()
    adopted = await after.adopt(pod_of(B), SandboxView(second.id, 0, True, 1), "/pods")
    assert isinstance(adopted, Sandbox)
    assert adopted.config == second.config
    assert await after.release(B) == ""
    assert not node.file(B).exists()


async def test_garbage_of_a_running_pod_is_restored_from_the_runtime(node: Node, runtime: MemoryRuntime) -> None:
    before = node.sandboxes()
    await run(node, before, A)
    running = await run(node, before, B)
    written = node.file(B).read_bytes()
    node.spoil(B, b"\xff\xfe")
    after = node.sandboxes()
    # C asks before B does, and must not get what B has.
    assert mapped(await run(node, after, C)) == 3
    adopted = await after.adopt(pod_of(B), SandboxView(running.id, 0, True, 1), "/pods")
    assert isinstance(adopted, Sandbox)
    assert mapped(adopted) == 2
    assert node.file(B).read_bytes() == written


async def test_a_lost_file_of_a_running_pod_is_written_again(node: Node) -> None:
    before = node.sandboxes()
    await run(node, before, A)
    running = await run(node, before, B)
    node.file(B).unlink()
    adopted = await node.sandboxes().adopt(pod_of(B), SandboxView(running.id, 0, True, 1), "/pods")
    assert isinstance(adopted, Sandbox)
    assert mapped(adopted) == 2
    assert node.file(B).exists()


async def test_while_the_runtime_cannot_be_asked_nothing_is_given_out(node: Node, runtime: MemoryRuntime) -> None:
    running = await run(node, node.sandboxes(), A)
    node.spoil(A, b"")
    fault = runtime.inject(RuntimeFault("ListPodSandbox", code=CriCode.UNAVAILABLE))
    after = node.sandboxes()
    refused = await refusal_of(after.create(pod_of(B), 0, "/pods"))
    assert refused.reason == "CreatePodSandboxError" and refused.message.startswith("user namespace: ")
    runtime.withdraw(fault)
    assert mapped(await run(node, after, B)) == 2
    adopted = await after.adopt(pod_of(A), SandboxView(running.id, 0, True, 1), "/pods")
    assert isinstance(adopted, Sandbox) and mapped(adopted) == 1


@pytest.mark.parametrize(
    ("handlers", "tail"),
    [({"": HandlerFeatures()}, ""), ({}, ': the handler "" is not known')],
)
async def test_runtimes_without_user_namespaces(node: Node, handlers: Any, tail: str) -> None:
    sandboxes = node.sandboxes(replace(ABLE, handlers=handlers))
    counted = STARTED_USERNS.value()
    refused = await refusal_of(sandboxes.create(pod_of(A), 0, "/pods"))
    assert STARTED_USERNS.value() == counted + 1
    message = "can't set `spec.hostUsers: false`, runtime does not support user namespaces" + tail
    assert refused == StartError("CreatePodSandboxError", message)
    assert [h.message for h in node.recorder.events] == [f"Failed to create pod sandbox: {message}"]
    assert not node.file(A).exists()


async def test_pods_in_the_hosts_namespace_have_no_file(node: Node) -> None:
    made = await node.sandboxes().create(make_pod(metadata={"uid": A}), 0, "/pods")
    assert isinstance(made, Sandbox)
    assert made.config.linux.security_context.namespace_options.userns_options.mode == pb.NODE
    assert not node.file(A).parent.exists()


async def test_a_node_whose_ids_cannot_be_used(node: Node) -> None:
    async def read_range(ids_per_pod: int) -> IdRange:
        raise HostError("getsubids", "kubelet", "", "user and group ids differ")

    manager = UserNamespaceManager(node.cri, SingleFlight("test"), node.paths, LENGTH, read_range)
    refused = await refusal_of(manager.allocate(A))
    assert refused.message == "user namespace: getsubids kubelet: user and group ids differ"


async def test_a_disk_that_takes_nothing_loses_no_range(node: Node) -> None:
    agent = node.agent()
    directory = node.file(A).parent.parent
    directory.parent.mkdir()
    directory.write_text("in the way")
    await refusal_of(agent.allocate(A))
    directory.unlink()
    assert slot(await agent.allocate(B)) == 1


def verbose(spec: Any) -> pb.PodSandboxStatusResponse:
    status = pb.PodSandboxStatus(id="s1")
    return pb.PodSandboxStatusResponse(status=status, info={} if spec is None else {"info": json.dumps(spec)})


def test_ranges_in_the_spec_that_runtimes_report() -> None:
    ranges = [{"containerID": 0, "hostID": 131072, "size": 65536}]
    spec = {"runtimeSpec": {"linux": {"uidMappings": ranges, "gidMappings": ranges}}}
    assert reported_namespace(verbose(spec)) == namespace_at(131072, 65536)


@pytest.mark.parametrize("spec", [None, [], {}, {"runtimeSpec": {"linux": {}}}, {"runtimeSpec": None}])
def test_runtimes_that_do_not_report_them(spec: Any) -> None:
    with pytest.raises(
        MappingError, match=r"^the runtime does not report the user namespace mappings of the sandbox s1$"
    ):
        reported_namespace(verbose(spec))
