"""What the runtime is asked for when running containers get another size, and when it is not asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from act.pods.scenes import container, pod
from act.runtime.hands import Hands, hands

from pykubelet.act.runtime.lifecycle.resize import ContainerResizer
from pykubelet.act.runtime.lifecycle.sandbox import Sandbox
from pykubelet.act.runtime.plan.plan import ContainerResize
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.cells import make_cell
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.node import RuntimeReady
from pykubelet.base.model.sizing import Amounts
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriCode, CriError
from pykubelet.testing.cri.fake_handles import RuntimeFault

pytestmark = pytest.mark.virtual_time

MEBI = 1 << 20
RUNTIME, _ = make_cell("runtime", RuntimeReady())
LONG = {"command": ["sh", "-c", "sleep 1000"]}


def sized(cpu: str, memory: str) -> Pod:
    return pod(container("a", resources={"limits": {"cpu": cpu, "memory": memory}}, **LONG))


async def up(h: Hands, of: Pod) -> tuple[Sandbox, ContainerID]:
    home = await h.sandbox(of)
    return home, await h.started(of, of.spec.containers[0], home)


def change(instance: ContainerID, before: int, after: int) -> ContainerResize:
    return ContainerResize("a", instance, Amounts(memory_limit=before), Amounts(memory_limit=after))


async def test_a_running_container_gets_what_its_spec_requests(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        _, made = await up(h, sized("100m", "64Mi"))
        client = h.fake.connect()
        to = sized("200m", "128Mi")
        settings = h.sandboxes.settings()
        assert await ContainerResizer(client, RUNTIME).resize(to, change(made, 64 * MEBI, 128 * MEBI), settings) == ""
        (call,) = h.fake.called("UpdateContainerResources")
        linux: pb.LinuxContainerResources = call.request.linux
        assert (linux.cpu_quota, linux.cpu_period, linux.memory_limit_in_bytes) == (20_000, 100_000, 128 * MEBI)
        await client.close()


async def test_what_the_runtime_refuses_is_reported(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        home, made = await up(h, sized("100m", "64Mi"))
        client = h.fake.connect()
        h.fake.inject(RuntimeFault("UpdateContainerResources", code=CriCode.UNKNOWN, message="device or resource busy"))
        settings = h.sandboxes.settings()
        resizer = ContainerResizer(client, RUNTIME)
        problem = await resizer.resize(sized("1m", "1Mi"), change(made, 64 * MEBI, MEBI), settings)
        assert problem == "rpc error: code = Unknown desc = device or resource busy"
        assert await resizer.report_sandbox(sized("1m", "1Mi"), home, settings) == "", (
            "an older runtime has no such call"
        )
        await client.close()


class Objecting(CriClient):
    """A runtime that has the call, or answers as containerd does without it."""

    message = "not implemented yet"
    asked = 0

    async def update_pod_sandbox_resources(self, *_: object) -> None:
        self.asked += 1
        raise CriError(CriCode.UNKNOWN, self.message, "UpdatePodSandboxResources")


async def test_a_runtime_may_object_to_a_resize_but_not_for_want_of_the_call(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        home, _ = await up(h, sized("100m", "64Mi"))
        client = Objecting(h.fake.endpoint)
        runtime, restarted = make_cell("runtime", RuntimeReady())
        resizer, settings = ContainerResizer(client, runtime), h.sandboxes.settings()
        for _ in range(2):
            assert await resizer.report_sandbox(sized("1m", "1Mi"), home, settings) == ""
        assert client.asked == 1, "what it lacks it is not asked for again"
        restarted.publish(RuntimeReady(epoch=1))
        client.message = "a plugin objects"
        assert await resizer.report_sandbox(sized("1m", "1Mi"), home, settings) == (
            "failed to notify runtime for UpdatePodSandboxResources; resize rejected: "
            "rpc error: code = Unknown desc = a plugin objects"
        )
        await client.close()


async def test_memory_is_not_taken_from_a_container_that_uses_it(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        _, made = await up(h, sized("100m", "64Mi"))
        client = h.fake.connect()
        used = (await client.container_stats(made)).memory.usage_bytes.value
        assert used > 0
        resizer = ContainerResizer(client, RUNTIME)
        assert await resizer.refuse([change(made, 64 * MEBI, used + 1)], (used + 1, used)) == ""
        assert await resizer.refuse([], (9, 10)) == (
            "cannot decrease memory limits: attempting to set pod memory limit (9) below current usage (10)"
        )
        assert await resizer.refuse([change(made, 64 * MEBI, used)], None) == (
            f'cannot decrease memory limits: attempting to set container "a" memory limit ({used})'
            f" below current usage ({used})"
        )
        assert await resizer.refuse([change(made, 1, used)], None) == "", "more is never refused"
        await client.close()
