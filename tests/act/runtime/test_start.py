"""Starting one container: its files, its events, and the reason each failure leads to."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from act.pods.scenes import REF, UID, container, exited, pod
from act.runtime.hands import Hands, hands
from support.file_calls import observed_file_calls
from support.virtual_time import VirtualLoop

from pykubelet.act.runtime.lifecycle.hooks import HookRunner
from pykubelet.act.runtime.lifecycle.start import ContainerFiles, ContainerStarter
from pykubelet.act.runtime.render.render_config import HEAVY
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import replace
from pykubelet.base.model.lifecycle import StartError
from pykubelet.base.model.observed import MountView, SandboxView
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.errors import CriCode, CriError
from pykubelet.testing.cri.fake_handles import RuntimeFault
from pykubelet.testing.cri.in_memory import MemoryCriClient

pytestmark = pytest.mark.virtual_time

APP = container("app", command=["sh", "-c", "sleep 1000"])


def failure(outcome: object) -> tuple[str, str]:
    assert isinstance(outcome, StartError), outcome
    return outcome.reason, outcome.message


async def test_a_container_starts_and_reports_it(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        of = pod(APP)
        made = await h.started(of, APP, await h.sandbox(of))
        running = h.fake.state.need(made)
        assert running.state == pb.CONTAINER_RUNNING
        assert running.config.image.image == "busybox:1"
        assert running.config.log_path == "app/0.log"
        assert h.events() == [
            ("Created", "Container created", "spec.containers{app}"),
            ("Started", "Container started", "spec.containers{app}"),
        ]


async def test_its_files_are_there_before_it_starts(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        of = pod(APP)
        made = await h.started(of, APP, await h.sandbox(of))
        mounts = {m.container_path: m for m in h.fake.state.need(made).config.mounts}
        log = mounts["/dev/termination-log"].host_path
        assert os.path.dirname(log) == h.paths.container(UID, "app")
        assert oct(os.stat(log).st_mode & 0o777) == "0o666"
        assert len(os.path.basename(log)) == 8
        assert mounts["/etc/hosts"].host_path == h.paths.etc_hosts(UID)
        assert "10.88.0" in read(h.paths.etc_hosts(UID))
        assert oct(os.stat(h.paths.etc_hosts(UID)).st_mode & 0o777) == "0o644"


def read(path: str) -> str:
    with open(path) as file:
        return file.read()


async def test_each_instance_has_a_termination_file_of_its_own(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        of = pod(APP)
        await h.sandbox(of)
        first, second = await h.prepare(of, APP), await h.prepare(of, APP)
        assert isinstance(first, ContainerFiles)
        assert isinstance(second, ContainerFiles)
        assert first.termination_log != second.termination_log


async def test_message_files_that_no_instance_has_do_not_pile_up(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        of = pod(APP)
        await h.sandbox(of)
        first = await h.prepare(of, APP)
        assert isinstance(first, ContainerFiles)
        mounts = (MountView("/dev/termination-log", first.termination_log),)
        instances = [replace(exited("app"), mounts=mounts)]
        for _ in range(3):
            files = await h.prepare(of, APP, *instances)
            assert isinstance(files, ContainerFiles)
            newest = files.termination_log
        left = sorted(os.listdir(h.paths.container(UID, "app")))
        assert left == sorted(os.path.basename(path) for path in (first.termination_log, newest))
        await h.prepare(of, APP, exited("app", attempt=1), *instances)
        assert len(os.listdir(h.paths.container(UID, "app"))) == 3, "the mounts of the newest instance are unknown"


async def test_files_wait_for_those_of_a_start_that_was_given_up(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        of = pod(APP)
        await h.sandbox(of)
        loop, pace, key = asyncio.get_running_loop(), threading.Event(), f"files:{UID}:app"
        assert isinstance(loop, VirtualLoop)
        loop.hung.add(key)
        given_up = asyncio.ensure_future(h.flight.run(key, pace.wait, 30.0))
        await asyncio.sleep(0.05)
        given_up.cancel()

        def end() -> None:
            loop.hung.clear()
            pace.set()

        loop.call_later(0.1, end)
        assert isinstance(await h.prepare(of, APP), ContainerFiles)


async def test_a_container_with_its_own_hosts_file_keeps_it(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        own = container("app", volumeMounts=[{"name": "v", "mountPath": "/etc/hosts"}])
        of = pod(own, volumes=[{"name": "v", "emptyDir": {}}])
        assert not await h.hosts(of, own, await h.sandbox(of))


async def test_the_link_to_the_log_carries_pod_container_and_id(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        of = pod(APP)
        made = await h.started(of, APP, await h.sandbox(of))
        link = f"{h.paths.log_links}/web_shop_app-{made}.log"
        assert os.readlink(link) == f"{h.paths.logs}/shop_web_{UID}/app/0.log"


# Restart counts


async def test_the_restart_count_follows_the_newest_instance(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        of = pod(APP)
        await h.sandbox(of)
        files = await h.prepare(of, APP, exited("app", attempt=4))
        assert isinstance(files, ContainerFiles)
        assert files.restart_count == 5


async def test_a_runtime_that_forgot_its_containers_does_not_reset_the_count(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        of = pod(APP)
        await h.sandbox(of)
        logs = Path(h.paths.pod_logs(REF)) / "app"
        make(logs / "0.log", logs / "7.log", logs / "3.log.20260101-000000.gz", logs / "odd.txt")
        files = await h.prepare(of, APP)
        assert isinstance(files, ContainerFiles)
        assert files.restart_count == 8


async def test_the_count_goes_on_when_the_newest_instance_was_removed_and_an_earlier_one_was_not(
    tmp_path: Path,
) -> None:
    async with hands(tmp_path) as h:
        of = pod(APP)
        await h.sandbox(of)
        logs = Path(h.paths.pod_logs(REF)) / "app"
        make(logs / "4.log", logs / "5.log")
        files = await h.prepare(of, APP, exited("app", attempt=4))
        assert isinstance(files, ContainerFiles)
        assert files.restart_count == 6


@pytest.mark.parametrize("name", ["99999999999.log", "4294967295.log", "2147483647.log", "-5.log", "0x7.log", "٧.log"])
async def test_names_that_no_log_of_a_runtime_has_do_not_count(tmp_path: Path, name: str) -> None:
    async with hands(tmp_path) as h:
        of = pod(APP)
        await h.sandbox(of)
        logs = Path(h.paths.pod_logs(REF)) / "app"
        make(logs / name, logs / "2.log", tmp_path / "elsewhere.log")
        (logs / "40.log").mkdir()
        (logs / "41.log").symlink_to(tmp_path / "elsewhere.log")
        os.mkfifo(logs / "42.log")
        files = await h.prepare(of, APP)
        assert isinstance(files, ContainerFiles)
        assert files.restart_count == 3


async def test_no_file_is_touched_on_the_event_loop(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        of = pod(APP)
        with observed_file_calls() as calls:
            home = await h.sandbox(of)
            await h.started(of, APP, home)
            await h.sandboxes.adopt(of, SandboxView(home.id, 0, True, 1), "/kubepods/x")
        own = f"{h.paths.pod_logs(REF)}/app"  # where the double of the runtime writes
        assert [call for call in calls if own not in call] == []


@pytest.mark.parametrize(("variables", "threads"), [(10, 0), (HEAVY, 1)])
async def test_a_large_configuration_is_made_in_a_thread(variables: int, threads: int, tmp_path: Path) -> None:
    app = container("app", env=[{"name": f"V{n}", "value": "x"} for n in range(variables)])
    begun: list[str] = []
    async with hands(tmp_path) as h:
        run_next = h.flight.run_next

        async def noted(key: str, *args: Any) -> Any:
            begun.append(key)
            return await run_next(key, *args)

        h.flight.run_next = noted  # type: ignore[assignment, method-assign]
        of = pod(app)
        made = await h.started(of, app, await h.sandbox(of))
        assert len(h.fake.state.need(made).config.envs) >= variables
    assert sum(key.startswith("render:") for key in begun) == threads


def make(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")


# What goes wrong


async def fails(h: Hands, of: Pod) -> tuple[str, str]:
    return failure(await h.start(of, of.spec.containers[0], await h.sandbox(of)))


async def test_a_container_that_cannot_be_created(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        h.fake.inject(RuntimeFault("CreateContainer", code=CriCode.UNKNOWN, message="no such device"))
        assert await fails(h, pod(APP)) == ("CreateContainerError", "no such device")
        assert h.events() == [("Failed", "Error: no such device", "spec.containers{app}")]


async def test_a_container_that_cannot_be_started(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        h.fake.inject(RuntimeFault("StartContainer", code=CriCode.UNKNOWN, message="exec: not found"))
        assert await fails(h, pod(APP)) == ("RunContainerError", "exec: not found")
        assert h.reasons() == ["Created", "Failed"]
        assert h.events()[1][1] == "Error: exec: not found"


class NamesTheInstance(MemoryCriClient):
    async def start_container(self, container_id: str) -> None:
        raise CriError(CriCode.UNKNOWN, f"cannot start {container_id}", "StartContainer")


async def test_an_event_names_the_container_not_its_instance(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        client = NamesTheInstance(h.fake)
        h.starter = ContainerStarter(client, HookRunner(client, h.recorder), h.stopper, h.flight, h.recorder)
        reason, message = await fails(h, pod(APP))
        (made,) = h.fake.state.containers
        assert (reason, message) == ("RunContainerError", f"cannot start {made}")
        assert h.events()[1][1] == "Error: cannot start app"
        await client.close()


async def test_a_container_whose_request_cannot_be_made(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        bad = container("app", volumeMounts=[{"name": "missing", "mountPath": "/x"}])
        reason, _ = await fails(h, pod(bad))
        assert reason == "CreateContainerConfigError"
        assert not h.fake.called("CreateContainer")


async def test_a_pod_directory_that_cannot_be_written(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        Path(h.paths.root).write_text("a file in the way")
        reason, message = await fails(h, pod(APP))
        assert reason == "CreateContainerConfigError"
        assert "not a directory" in message


async def test_a_name_that_the_runtime_still_holds_leads_to_the_next_attempt(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        of = pod(APP)
        home = await h.sandbox(of)
        h.fake.state.reserved["app_web_shop_uid-1_0"] = "half-made"
        made = await h.started(of, APP, home)
        config = h.fake.state.need(made).config
        assert (config.metadata.attempt, config.log_path) == (1, "app/1.log")
        [message] = [message for reason, message, _ in h.events() if reason == "Failed"]
        assert message.endswith('name "app_web_shop_uid-1_0" is reserved for "half-made"')
        assert os.readlink(f"{h.paths.log_links}/web_shop_app-{made}.log").endswith("/app/1.log")


async def test_it_gives_up_when_all_names_are_held(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        for attempt in range(10):
            h.fake.state.reserved[f"app_web_shop_uid-1_{attempt}"] = "half-made"
        reason, message = await fails(h, pod(APP))
        assert reason == "CreateContainerError"
        assert message.startswith("the runtime holds the names of attempts 0 to 4: ")
        assert message.endswith('name "app_web_shop_uid-1_4" is reserved for "half-made"')


# postStart


def hooked(*command: str) -> Pod:
    lifecycle = {"postStart": {"exec": {"command": list(command)}}}
    return pod(container("app", command=["sh", "-c", "sleep 1000"], lifecycle=lifecycle))


async def test_a_hook_that_succeeds(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        of = hooked("true")
        await h.started(of, of.spec.containers[0], await h.sandbox(of))
        assert h.reasons() == ["Created", "Started"]


async def test_a_hook_that_fails_ends_its_container(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        reason, message = await fails(h, hooked("false"))
        assert reason == "PostStartHookError"
        assert "exited with 1" in message
        assert h.events()[-2:] == [
            ("FailedPostStartHook", "PostStartHook failed", "spec.containers{app}"),
            ("Killing", "FailedPostStartHook", "spec.containers{app}"),
        ]
        assert h.fake.container("app").state == pb.CONTAINER_EXITED


@pytest.mark.parametrize("host_network", [True, False])
async def test_the_hosts_file_of_a_pod_on_the_hosts_network_is_the_nodes(host_network: bool, tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        of = pod(APP, hostNetwork=host_network)
        await h.prepare(of, APP)
        path = await h.hosts(of, APP, await h.sandbox(of))
        header = (
            "# Kubernetes-managed hosts file (host network)." if host_network else "# Kubernetes-managed hosts file."
        )
        assert read(path).splitlines()[0] == header
