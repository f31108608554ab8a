"""Volumes that a process extension provides: what it is asked, what pods wait for, and that it leads the agent nowhere else."""

from __future__ import annotations

import base64
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from provide.volumes.samples import NODE, claimed, make_pod, running
from provide.volumes.test_loop import UID, Agent, set_roster, started, stop_pod, until
from support.extension_process import FakeChannel, FakeProgram
from support.virtual_time import clock_of_loop

from pykubelet.app.extensions.guard import Board
from pykubelet.app.extensions.processes import first_shown, show_state
from pykubelet.base.api.codec import from_object
from pykubelet.base.api.core import Secret, Volume
from pykubelet.base.kit.cells import Sink
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.content import Content, ContentKind, ObjectKey, Present
from pykubelet.base.model.extensions import ExtensionState, ExtensionStates
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.base.model.paths import Paths
from pykubelet.base.model.plugins import FlexDrivers, Plugins
from pykubelet.base.model.waits import Owner, Wait
from pykubelet.edges.host.fs import mounts
from pykubelet.edges.plugins.extension_process import CALLS_AT_ONCE
from pykubelet.provide.volumes.flex.extension_calls import TEAR_DOWN_ALL_S, ProcessVolumes
from pykubelet.provide.volumes.flex.plan import ExtensionPlan
from pykubelet.provide.volumes.kind import Plan, RefusedPlan, UndecidedPlan
from pykubelet.provide.volumes.model import Inputs
from pykubelet.provide.volumes.plan import plan_volume

pytestmark = pytest.mark.virtual_time

READY = {"ready": True}
ON = ExtensionState("ext", "", "/opt/ext", ("volume",))


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "root"
    path.mkdir()
    yield path
    for mount in mounts.mounts_below(str(tmp_path)):
        mounts.unmount(mount.target)


def volume(driver: str = "extension/ext", **source: Any) -> Volume:
    return from_object(Volume, {"name": "data", "flexVolume": {"driver": driver, **source}})


def plan(wanted: Volume, *states: ExtensionState, content: Content | None = None) -> Plan:
    plugins = Plugins(flex=FlexDrivers(is_settled=True))
    inputs = Inputs(node=NODE, content=content or Content(), plugins=plugins, extensions=ExtensionStates(states))
    return plan_volume(make_pod(wanted), wanted, inputs, Paths("/k", "/logs"))


class Run:
    """The volume manager, and the process that it asks, `ext`."""

    def __init__(self, root: Path, program: FakeProgram) -> None:
        self.root, self.program = root, program

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[Agent]:
        clock, recorder = clock_of_loop(), Sink[KubeEvent]()
        process = self.program.process(clock)
        calls = {"ext": ProcessVolumes(process, clock)}
        async with Supervisor("process") as tasks, started(self.root, extensions=calls) as agent:
            board = Board(agent.extensions, recorder, clock)
            board.put(first_shown(process, "/opt/ext"))
            tasks.start_child("process", process.run())
            tasks.start_child("state", show_state(process, "/opt/ext", board))
            agent.observed.publish(running())
            yield agent


def wait_of(agent: Agent) -> Wait | None:
    pod = agent.mounts.get().pods.get(UID)
    return pod.waits[0] if pod is not None and pod.waits else None


async def wait_shown(agent: Agent, detail: str) -> Wait:
    await until(lambda: (wait := wait_of(agent)) is not None and detail in wait.detail)
    found = wait_of(agent)
    assert found is not None
    return found


async def set_up(agent: Agent, channel: FakeChannel) -> str:
    """Have the process set the volume up: its path."""
    channel.answer(await channel.asked("set_up"), READY)
    return (await agent.wait_ready()).volumes["data"].host_path


def directory(agent: Agent) -> str:
    return f"{agent.paths.pod_volumes(UID)}/extension~ext/data"


# Plans


def test_a_plan_has_what_the_pod_states() -> None:
    made = plan(volume(fsType="ext4", readOnly=True, options={"archive": "a"}), ON)
    assert isinstance(made, ExtensionPlan)
    assert made.path == "/k/pods/u1/volumes/extension~ext/data" and made.mounted.read_only
    assert (made.fs_type, made.options, made.driver) == ("ext4", {"archive": "a"}, "extension/ext")


def test_a_persistent_volume_has_its_own_name_and_the_claims_read_only() -> None:
    wanted, content = claimed(claim_name="data", flexVolume={"driver": "extension/ext", "options": {"a": "b"}})
    made = plan(wanted, ON, content=content)
    assert isinstance(made, ExtensionPlan) and made.path == "/k/pods/u1/volumes/extension~ext/pv"
    assert made.spec_name == "pv" and made.options == {"a": "b"}


def test_a_secret_is_read_first_and_not_shown() -> None:
    wanted = volume(secretRef={"name": "s"})
    key = ObjectKey(ContentKind.SECRET, "shop", "s")
    assert isinstance(plan(wanted, ON, content=Content(True)), UndecidedPlan)
    data = {"key": base64.b64encode(b"pass").decode()}
    found = Present(from_object(Secret, {"metadata": {"name": "s"}, "type": "extension/ext", "data": data}))
    made = plan(wanted, ON, content=Content(True, {key: found}))
    assert isinstance(made, ExtensionPlan) and made.secrets.data == {"key": b"pass"} and "pass" not in repr(made)


def test_an_extension_that_cannot_be_asked() -> None:
    refused = plan(volume())
    assert isinstance(refused, RefusedPlan) and refused.error.endswith(": no extension ext is loaded")
    starting = plan(volume(), ExtensionState("ext", "", "/opt/ext", (), "it has not answered hello yet"))
    assert starting == UndecidedPlan("extension ext: it has not answered hello yet")
    refused = plan(volume(), ExtensionState("ext", "", "/opt/ext", ("need",)))
    assert isinstance(refused, RefusedPlan) and refused.error == "extension ext provides no volumes"


# Whole lives


async def test_a_life_through_a_restart(root: Path) -> None:
    program = FakeProgram(("volume",))
    pod, run = make_pod(volume(readOnly=True, options={"archive": "a"})), Run(root, program)
    async with run.agent() as agent:
        set_roster(agent, pod)
        channel = await program.started()
        asked = await channel.asked("set_up")
        path = directory(agent)
        assert asked["pod"]["metadata"]["uid"] == "u1" and asked["pod"]["spec"]["volumes"][0]["name"] == "data"
        del asked["pod"], asked["id"]
        assert asked == {
            "call": "set_up",
            "volume": "data",
            "path": path,
            "readOnly": True,
            "fsType": "",
            "options": {"archive": "a"},
            "secrets": {},
        }
        assert os.stat(path).st_mode & 0o7777 == 0o777 and os.listdir(path) == []
        assert not agent.mounts.get().pods[UID].ready
        os.chmod(path, 0o700)
        Path(path, "file").write_text("x")
    async with run.agent() as agent:  # the first had no answer
        set_roster(agent, pod)
        channel = await program.started(2)
        assert await set_up(agent, channel) == path
        assert agent.mounts.get().pods[UID].volumes["data"].read_only
        assert os.listdir(path) == ["file"] and os.stat(path).st_mode & 0o7777 == 0o700, "it is the extension's"
        mounts.mount_tmpfs(f"{path}", 1 << 20)
    async with run.agent() as agent:  # the pod is gone, and was never set up in this run
        channel = await program.started(3)
        set_roster(agent)
        asked = await channel.asked("tear_down")
        assert (asked["pod"], asked["volume"], asked["path"]) == ({"metadata": {"uid": "u1"}}, "data", path)
        assert mounts.is_mount_point(path)
        channel.answer(asked, {})
        await agent.wait_gone(agent.paths.pod(UID))


async def test_a_pod_waits_for_what_the_extension_names(root: Path) -> None:
    program = FakeProgram(("volume",))
    pod = make_pod(volume())
    async with Run(root, program).agent() as agent:
        set_roster(agent, pod)
        channel = await program.started()
        asked = await channel.asked("set_up")
        channel.answer(asked, {"wait": "2 of 7 files are there", "again_s": 5})
        wait = await wait_shown(agent, "2 of 7")
        assert (wait.what, wait.owner, wait.subject, wait.reason) == ("volume", Owner.EXTENSION, "data", "")
        assert wait.detail == "2 of 7 files are there (extension ext)" and wait.next_step == "ask the extension again"
        assert wait.next_at is not None
        channel.answer(await channel.asked("set_up"), {"wait": "6 of 7 files are there", "again_s": 5})
        later = await wait_shown(agent, "6 of 7")
        assert later.since == wait.since and later.next_at is not None and later.next_at - wait.next_at >= 5
        assert agent.recorded.events == [], "it is no failure"
        await stop_pod_while_it_waits(agent, channel, pod)


async def stop_pod_while_it_waits(agent: Agent, channel: FakeChannel, pod: Any) -> None:
    """What is being set up is torn down at once, not when it would be asked again."""

    async def answer() -> None:
        channel.answer(await channel.asked("tear_down"), {})

    async with Supervisor("answers") as tasks:
        tasks.start_child("answer", answer())
        await stop_pod(agent, pod)
        await agent.wait_gone(directory(agent))


async def test_a_failure_is_an_event_and_tried_again(root: Path) -> None:
    program = FakeProgram(("volume",))
    async with Run(root, program).agent() as agent:
        set_roster(agent, make_pod(volume()))
        channel = await program.started()
        channel.emit({"id": (await channel.asked("set_up"))["id"], "error": "no such archive"})
        await until(lambda: bool(agent.recorded.events))
        text = 'MountVolume.SetUp failed for volume "data" : extension ext: no such archive'
        assert [event.message for event in agent.recorded.events] == [text]
        channel.answer(await channel.asked("set_up"), {"ready": "yes"})
        await wait_shown(agent, "the result of set_up is malformed")
        await set_up(agent, channel)


async def test_a_pod_waits_for_an_extension_that_is_away_and_goes_on_when_it_is_back(root: Path) -> None:
    program = FakeProgram(("volume",))
    async with Run(root, program).agent() as agent:
        channel = await program.started()
        channel.fail("it has ended: signal 9")
        program.broken = "it cannot be started"
        await until(lambda: "it cannot be started" in agent.extensions.get().extensions[0].error)
        set_roster(agent, make_pod(volume()))
        await wait_shown(agent, "extension ext: it has ended, and is started again (")
        assert agent.recorded.events == []
        program.broken = ""
        await set_up(agent, await program.started(2))


async def test_an_answer_that_is_missing_leaves_nothing_behind(root: Path) -> None:
    program = FakeProgram(("volume",))
    pod = make_pod(volume())
    async with Run(root, program).agent() as agent:
        set_roster(agent, pod)
        channel = await program.started()
        await channel.asked("set_up")
        await wait_shown(agent, "extension ext: no answer to set_up within 30 s")
        await stop_pod_while_it_waits(agent, channel, pod)


async def test_a_volume_ends_without_its_extension(root: Path) -> None:
    """It does not answer; then it is not loaded any more."""
    program, clock = FakeProgram(("volume",)), clock_of_loop
    pod = make_pod(volume())
    async with Run(root, program).agent() as agent:
        set_roster(agent, pod)
        path = await set_up(agent, await program.started())
        Path(path, "file").write_text("x")
        program.broken, began = "gone", clock().monotonic()
        program.runs[0].fail("it has ended")
        await stop_pod(agent, pod)
        await agent.wait_gone(path)
        assert TEAR_DOWN_ALL_S <= clock().monotonic() - began < TEAR_DOWN_ALL_S + 10
        program.broken = ""
        set_roster(agent, pod)
        await set_up(agent, await program.started(2))
        mounts.mount_tmpfs(path, 1 << 20)
    async with started(root) as agent:
        agent.observed.publish(running())
        set_roster(agent)
        await agent.wait_gone(agent.paths.pod(UID))


async def test_a_link_in_the_place_of_the_directory_leads_nowhere(root: Path, tmp_path: Path) -> None:
    program, other = FakeProgram(("volume",)), tmp_path / "other"
    other.mkdir()
    (other / "kept").write_text("x")
    mounts.mount_tmpfs(str(other), 1 << 20)
    (other / "also").write_text("x")
    pod = make_pod(volume())
    async with Run(root, program).agent() as agent:
        set_roster(agent, pod)
        channel = await program.started()
        asked = await channel.asked("set_up")
        path = Path(directory(agent))
        path.rmdir()
        path.symlink_to(other)
        channel.answer(asked, READY)
        await wait_shown(agent, "the directory of the volume was replaced by a symlink")
        assert "data" not in agent.mounts.get().pods[UID].volumes
        await stop_pod_while_it_waits(agent, channel, pod)
    assert not path.is_symlink() and mounts.is_mount_point(str(other)) and (other / "also").exists()


async def test_a_link_above_the_directory_leads_nowhere(root: Path, tmp_path: Path) -> None:
    program, other = FakeProgram(("volume",)), tmp_path / "other"
    (other / "data").mkdir(parents=True)
    (other / "data/kept").write_text("x")
    mounts.mount_tmpfs(str(other / "data"), 1 << 20)
    pod = make_pod(volume())
    async with Run(root, program).agent() as agent:
        set_roster(agent, pod)
        channel = await program.started()
        path = Path(await set_up(agent, channel))
        path.rmdir()
        path.parent.rmdir()
        path.parent.symlink_to(other)
        agent.observed.publish(running())
        set_roster(agent)
        channel.answer(await channel.asked("tear_down"), {})
        await wait_shown(agent, "link")
        assert mounts.is_mount_point(str(other / "data"))
        path.parent.unlink()
        channel.answer(await channel.asked("tear_down"), {})
        await agent.wait_gone(agent.paths.pod(UID))
    mounts.unmount(str(other / "data"))
    assert (other / "data/kept").exists()


async def test_what_is_mounted_below_the_directory_keeps_its_files(root: Path, tmp_path: Path) -> None:
    program, archive = FakeProgram(("volume",)), tmp_path / "archive"
    archive.mkdir()
    (archive / "file").write_text("x")
    pod = make_pod(volume())
    async with Run(root, program).agent() as agent:
        set_roster(agent, pod)
        channel = await program.started()
        path = await set_up(agent, channel)
        Path(path, "inner").mkdir()
        mounts.bind(str(archive), f"{path}/inner")
        await stop_pod_while_it_waits(agent, channel, pod)
    assert (archive / "file").exists()


async def test_more_volumes_than_calls_are_all_set_up(root: Path) -> None:
    program = FakeProgram(("volume",))
    many = [
        from_object(Volume, {"name": f"v{number}", "flexVolume": {"driver": "extension/ext"}})
        for number in range(CALLS_AT_ONCE + 10)
    ]
    async with Run(root, program).agent() as agent:
        set_roster(agent, make_pod(*many))
        channel = await program.started()
        for _ in many:
            channel.answer(await channel.asked("set_up"), READY)
        assert len((await agent.wait_ready()).volumes) == len(many)
