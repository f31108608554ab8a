"""Device plugins: what is asked of them and what becomes of their answers, failures and ends, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from provide.placement.devices.plugin_node import LIMIT_S, R, check_neighbor, node
from support.device_plugins import device_plugin, healthy
from support.virtual_time import clock_of_loop

from pykubelet.base.kit.cells import make_cell
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.text import shorten
from pykubelet.base.kit.values import replace
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.placement import AssignedDevices, DeviceMount, DeviceNode, DeviceResource, Devices
from pykubelet.base.model.plugins import Plugins
from pykubelet.edges.plugins import deviceplugin_pb2 as pb
from pykubelet.provide.placement.devices.device_checkpoint import encode
from pykubelet.provide.placement.devices.device_files import DeviceFiles
from pykubelet.provide.placement.devices.device_manager import AllocateCall
from pykubelet.provide.placement.devices.device_plugins import (
    ALLOCATIONS,
    REGISTRATIONS,
    DeviceInputs,
    NodeDevicePlugins,
)
from pykubelet.provide.placement.devices.device_state import DeviceEntry, state_of
from pykubelet.provide.placement.managers import Managers
from pykubelet.provide.placement.provider import AllocationError, PreferredAllocationRequest

pytestmark = pytest.mark.virtual_time


async def test_a_plugin_registers_and_lists_its_devices(tmp_path: Path) -> None:
    counted = REGISTRATIONS.value(R)
    devices = [("a", "Healthy", [1, 0]), ("b", "Unhealthy", []), ("c", "Healthy", None), ("d", "Broken", [1])]
    async with node(tmp_path) as agent, device_plugin(tmp_path, devices=devices, options=["--prefers"]) as plugin:
        found = await agent.until_healthy("a", "c")
        assert found == DeviceResource(
            frozenset("ac"),
            frozenset("bd"),
            {"a": (0, 1), "b": (), "d": (1,)},
            {(0, 1): frozenset("a"), (1,): frozenset("d")},
            {"b": "Unhealthy", "d": "Broken"},
            prefers=True,
        )
        assert [found.health(name) for name in "abd?"] == ["Healthy", "Unhealthy", "Broken", "Healthy"]
        assert REGISTRATIONS.value(R) == counted + 1
        await plugin.list_devices(healthy("b", "x"))
        again = await agent.until_healthy("b", "x")
        assert (again.unhealthy, again.nodes, again.ill) == (frozenset(), {}, {})


@pytest.mark.parametrize(
    ("resource", "version", "problem"),
    [
        (R, "v1", 'requested API version "v1" is not supported by kubelet. Supported version is ["v1beta1"]'),
        ("device", "v1beta1", 'the ResourceName "device" is invalid'),
        ("requests.example.com/d", "v1beta1", 'the ResourceName "requests.example.com/d" is invalid'),
        ("d" * 9999, "v1beta1", f'the ResourceName "{"d" * 397}..." is invalid'),
        ("kubernetes.io/d", "v1beta1", 'the ResourceName "kubernetes.io/d" is invalid'),
        (R, "v1beta1", "failed to get device plugin options: rpc error: code = Unavailable desc = "),
    ],
)
async def test_registrations_that_are_refused(tmp_path: Path, resource: str, version: str, problem: str) -> None:
    async with (
        node(tmp_path) as agent,
        device_plugin(tmp_path, resource, version=version, follow=False) as plugin,  # it does not even serve
    ):
        await asyncio.wait_for(_exists(tmp_path / "device-plugins" / "kubelet.sock"), LIMIT_S)
        counted = REGISTRATIONS.value(shorten(resource, 400))
        assert (await plugin.register()).startswith(problem)
        assert REGISTRATIONS.value(shorten(resource, 400)) == counted + 1
        assert agent.plugins.refresh(agent.manager).resources == {}


async def _exists(path: Path) -> None:
    while not path.exists():  # noqa: ASYNC110 - a file has no event
        await asyncio.sleep(0.01)


async def test_a_plugin_whose_options_fail_is_refused(tmp_path: Path) -> None:
    async with node(tmp_path), device_plugin(tmp_path, follow=False, devices=healthy("a")) as plugin:
        await plugin.misbehave(options="fail not today")
        await plugin.order(follow=True)
        call, *_ = await plugin.wait_calls("Register", 1)
        expected = "rpc error: code = Internal desc = not today"
        assert call["error"] == f"failed to get device plugin options: {expected}"


async def test_a_registration_that_is_cancelled_closes_its_connection(tmp_path: Path) -> None:
    opened, closed = asyncio.Event(), asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.set()
        while await reader.read(4096):
            pass
        closed.set()
        writer.close()

    request = pb.RegisterRequest(version="v1beta1", endpoint="p.sock", resource_name=R).SerializeToString()
    async with node(tmp_path) as agent, await asyncio.start_unix_server(hang, tmp_path / "device-plugins" / "p.sock"):
        registering = asyncio.create_task(agent.plugins.register(request))
        await asyncio.wait_for(opened.wait(), LIMIT_S)
        registering.cancel()
        await asyncio.wait_for(closed.wait(), 5)


async def test_what_is_asked_and_answered(tmp_path: Path) -> None:
    response = {
        "envs": {"DEVICES": "{ids}"},
        "mounts": [{"container_path": "/m", "host_path": "/tmp", "read_only": True}],
        "devices": [{"container_path": "/dev/x", "host_path": "/dev/null", "permissions": "rw"}],
        "annotations": {"note": "{ids}"},
        "cdi": ["vendor.com/class={ids}"],
    }
    options = ["--prefers", "--pre-start"]
    async with (
        node(tmp_path) as agent,
        device_plugin(tmp_path, devices=healthy("a", "b"), response=response, options=options) as plugin,
    ):
        await agent.until_healthy("a", "b")
        request = PreferredAllocationRequest("u", "c", R, frozenset("ab"), frozenset(), 1)
        assert await agent.plugins.prefer(request) == frozenset("b")
        call, timed = AllocateCall("c", R, frozenset("b")), ALLOCATIONS.count(R)
        answer = await agent.plugins.allocate("u", call)
        assert isinstance(answer, bytes)
        state = state_of({"u": {"c": {R: DeviceEntry({-1: frozenset("b")})}}})
        manager = replace(agent.manager, state=state).with_response("u", call, answer)
        added = manager.options("u", "c")
        assert added == Devices(
            nodes=(DeviceNode("/dev/null", "/dev/x", "rw"),),
            mounts=(DeviceMount("/tmp", "/m", True),),
            env={"DEVICES": "b"},
            annotations={"note": "b"},
            cdi=("vendor.com/class=b",),
        )
        assigned = (AssignedDevices(R, {-1: frozenset("b")}),)
        assert await agent.plugins.pre_start(assigned) == ""
        assert plugin.calls("Allocate") == [{"call": "Allocate", "ids": [["b"]]}]
        assert plugin.calls("PreStartContainer") == [{"call": "PreStartContainer", "ids": ["b"]}]
        assert ALLOCATIONS.count(R) == timed + 1


async def test_failures_of_calls(tmp_path: Path) -> None:
    async with (
        node(tmp_path) as agent,
        device_plugin(tmp_path, devices=healthy("a", "b"), options=["--prefers", "--pre-start"]) as plugin,
    ):
        await agent.until_healthy("a", "b")
        request, call = (
            PreferredAllocationRequest("u", "c", R, frozenset("ab"), frozenset(), 1),
            AllocateCall("c", R, frozenset("a")),
        )
        assigned = (AssignedDevices(R, {-1: frozenset("a")}),)
        error = "rpc error: code = Internal desc = no"
        await plugin.misbehave(prefer="fail no", allocate="fail no", pre_start="fail no")
        refused = await agent.plugins.prefer(request)
        assert refused == AllocationError(f"device plugin GetPreferredAllocation rpc failed with err: {error}")
        assert await agent.plugins.allocate("u", call) == AllocationError(error)
        problem = await agent.plugins.pre_start(assigned)
        assert problem == f"device plugin PreStartContainer rpc failed with err: {error}"
        await plugin.misbehave(prefer="empty", allocate="empty")
        assert await agent.plugins.prefer(request) == frozenset()
        nothing = await agent.plugins.allocate("u", call)
        assert isinstance(nothing, AllocationError)
        assert nothing.text.startswith("no containers return in allocation response ")
        await plugin.misbehave(allocate="flood")
        large = await agent.plugins.allocate("u", call)
        assert isinstance(large, AllocationError)
        assert "received message larger than max" in large.text
        await plugin.order(behavior={"allocate": ""}, response={"envs": {"LONG": "x" * 300_000}})
        large = await agent.plugins.allocate("u", call)
        assert isinstance(large, AllocationError)
        assert large.text.endswith("bytes is larger than 262144")
        await plugin.kill()
        await agent.until_healthy()
        stopped = f"endpoint {R} has been stopped"
        assert await agent.plugins.allocate("u", call) == AllocationError(stopped)
        assert (await agent.plugins.pre_start(assigned)).endswith(stopped)
        unknown = AllocateCall("c", "example.com/other", frozenset("a"))
        assert await agent.plugins.allocate("u", unknown) == AllocationError("unknown Device Plugin example.com/other")
        missing = (AssignedDevices("example.com/other", {}),)
        expected = "endpoint not found in cache for a registered resource: example.com/other"
        assert await agent.plugins.pre_start(missing) == expected


async def test_a_plugin_that_ends_leaves_unhealthy_devices_until_it_is_back(tmp_path: Path) -> None:
    async with node(tmp_path) as agent:
        async with device_plugin(tmp_path, devices=[("a", "Healthy", None), ("b", "Unhealthy", None)]):
            await agent.until_healthy("a")
        gone = await agent.until_healthy()
        assert gone.is_stopped
        assert gone.unhealthy == frozenset("ab")
        assert [gone.health(name) for name in "ab"] == ["Healthy", "Unhealthy"]  # as they were last heard of
        async with device_plugin(tmp_path, devices=healthy("b", "c")):
            back = await agent.until_healthy("b", "c")
            assert (back.is_stopped, back.unhealthy) == (False, frozenset())


async def test_a_plugin_that_ends_its_list_is_not_asked_again(tmp_path: Path) -> None:
    async with node(tmp_path) as agent, device_plugin(tmp_path, devices=healthy("a")) as plugin:
        await agent.until_healthy("a")
        await plugin.misbehave(list="end")
        await agent.until_healthy()
        assert len(plugin.calls("ListAndWatch")) == 1
        # a list that fails before it begins makes the resource known, without devices
        async with device_plugin(tmp_path, "example.com/other", follow=False) as other:
            await other.misbehave(list="fail broken")
            await other.order(follow=True)
            now = await agent.until(lambda now: "example.com/other" in now.resources)
            assert now.resources["example.com/other"] == DeviceResource(is_stopped=True)


async def test_a_second_registration_replaces_the_first_plugin(tmp_path: Path) -> None:
    async with node(tmp_path) as agent, device_plugin(tmp_path, devices=healthy("a")) as first:
        await agent.until_healthy("a")
        async with device_plugin(tmp_path, devices=healthy("b")):
            await agent.until_healthy("b")
            await first.kill()
            assert (await agent.until_healthy("b")).healthy == frozenset("b")


async def test_the_agent_restarts_before_its_plugins(tmp_path: Path) -> None:
    socket = tmp_path / "device-plugins" / "kubelet.sock"
    async with device_plugin(tmp_path, devices=healthy("a", "b"), response={"envs": {"X": "1"}}) as plugin:
        async with node(tmp_path) as agent:
            await agent.until_healthy("a", "b")
            call = AllocateCall("c", R, frozenset("a"))
            answer = await agent.plugins.allocate("u", call)
            assert isinstance(answer, bytes)
            state = state_of({"u": {"c": {R: DeviceEntry({-1: frozenset("a")})}}})
            allocated = replace(agent.manager, state=state).with_response("u", call, answer)
            await agent.plugins.save(allocated)
        async with node(tmp_path) as agent:
            # what was allocated stays so; the resource has no devices until the plugin lists them again
            assert agent.manager.resources == {R: DeviceResource(is_stopped=True)}
            assert agent.manager.state == allocated.state
            assert agent.manager.options("u", "c").env == {"X": "1"}
            back = await agent.until_healthy("a", "b")
            assert not back.is_stopped
            assert len(plugin.calls("Allocate")) == 1
        assert not socket.exists()


def test_the_directory_is_cleaned_of_sockets_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    import socket

    flight, directory = SingleFlight("test"), tmp_path / "device-plugins"
    files = DeviceFiles(str(directory), flight)
    files.prepare()
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(directory / "old.sock"))
    (directory / "notes").write_text("kept")
    (directory / "kubelet_internal_checkpoint").write_text('{"Data": {}, "Checksum": 1}')
    files.prepare()
    names = sorted(path.name for path in directory.iterdir())
    # no file "DEPRECATION": upstream's plugin library takes it as a request not to register
    assert names == ["kubelet_internal_checkpoint", "notes"]
    assert directory.stat().st_mode & 0o777 == 0o750
    # a file that cannot be used is reported and set aside, and nothing is known then
    assert files.read() is None
    assert (directory / f"{names[0]}.corrupt-0").read_text() == '{"Data": {}, "Checksum": 1}'
    record, _ = caplog.records
    fields = getattr(record, "fields", {})
    assert (fields["path"], fields["error"]) == (str(directory / names[0]), "checkpoint is corrupted")
    assert "drain this node" in fields["consequence"]


async def test_plugins_register_through_the_plugin_watcher_too(tmp_path: Path) -> None:
    async with (
        node(tmp_path, watches=True) as agent,
        device_plugin(tmp_path, devices=healthy("a"), watched=True) as plugin,
    ):
        await agent.until_healthy("a")
        (call,) = await plugin.wait_calls("NotifyRegistrationStatus", 1)
        assert call["registered"]
        plugin.socket.unlink()
        assert (await agent.until_healthy()).is_stopped


async def test_a_watched_plugin_that_fails_is_tried_again_and_delays_no_other_one(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        hanging, failing = [
            await stack.enter_async_context(device_plugin(tmp_path, f"example.com/{name}", healthy("a"), watched=True))
            for name in ("hanging", "failing")
        ]
        await hanging.misbehave(options="hang")
        await failing.misbehave(options="fail not yet")
        async with node(tmp_path, watches=True) as agent:
            await hanging.wait_calls("GetDevicePluginOptions", 1)
            await failing.wait_calls("GetDevicePluginOptions", 1)
            await failing.misbehave(options="")
            await agent.until_healthy("a", resource="example.com/failing")
            assert len(failing.calls("GetDevicePluginOptions")) > 1


# plugins that misbehave


@pytest.mark.parametrize("how", ["hang", "fail broken"])
async def test_a_plugin_that_misbehaves_costs_no_other_one(tmp_path: Path, how: str) -> None:
    async with node(tmp_path) as agent, device_plugin(tmp_path, follow=False, devices=healthy("a")) as bad:
        await bad.misbehave(list=how, allocate="hang", options="hang" if how == "hang" else "")
        await bad.order(follow=True)
        await bad.wait_calls("GetDevicePluginOptions", 1)
        await check_neighbor(tmp_path, agent)


async def test_lists_that_cannot_be_used_end_the_plugin(tmp_path: Path) -> None:
    async with node(tmp_path) as agent, device_plugin(tmp_path, devices=healthy("a")) as plugin:
        await agent.until_healthy("a")
        await plugin.order(many=140_000)
        assert (await agent.until_healthy()).is_stopped


async def test_a_resource_whose_plugin_does_not_come_back_is_removed_after_five_minutes(tmp_path: Path) -> None:
    flight, (cell, _), (observed, _) = SingleFlight("test"), make_cell("plugins", Plugins()), make_cell("o", Observed())
    directory = tmp_path / "device-plugins"
    directory.mkdir()
    text = encode(state_of({"u": {"c": {R: DeviceEntry({-1: frozenset("a")}, b"")}}}), {R: frozenset("ab")})
    (directory / "kubelet_internal_checkpoint").write_text(text)
    plugins = NodeDevicePlugins(
        DeviceFiles(str(directory), flight), DeviceInputs(cell, observed), flight, clock_of_loop()
    )
    manager = plugins.start((0,))
    async with Supervisor("test") as tasks:
        tasks.start_root("plugins", plugins.run())
        await asyncio.sleep(299)
        before = plugins.refresh(manager)
        assert (before.resources, before.removed) == ({R: DeviceResource(is_stopped=True)}, frozenset())
        await asyncio.sleep(2)
        after = plugins.refresh(before)
        assert (after.resources, after.removed) == ({}, frozenset({R}))
        assert after.state == manager.state
        assert plugins.refresh(after) is after
        (directory / "kubelet_internal_checkpoint").write_text(encode(after.state, {}))
    restarted = NodeDevicePlugins(
        DeviceFiles(str(directory), flight), DeviceInputs(cell, observed), flight, clock_of_loop()
    )
    published = Managers(devices=restarted.start((0,))).publish({}, {})
    assert (published.devices, published.placed_resources) == ({}, frozenset({R}))
