"""Sandboxes: made once, under a name that is free, with addresses; failures have the message of the runtime."""

from __future__ import annotations

from pathlib import Path

import pytest
from act.pods.scenes import REF, pod
from act.runtime.failures import refusal_of
from act.runtime.hands import hands

from pykubelet.act.runtime.lifecycle.sandbox import Sandbox
from pykubelet.base.kit.cells import make_cell
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import SandboxID
from pykubelet.base.model.lifecycle import StartError
from pykubelet.base.model.mounts import MountedVolume, Mounts, PodMounts
from pykubelet.base.model.observed import SandboxView
from pykubelet.edges.cri.errors import CriCode
from pykubelet.edges.host.fs.files import list_dir
from pykubelet.testing.cri.fake_handles import RuntimeFault

pytestmark = pytest.mark.virtual_time


async def test_a_sandbox_has_addresses_and_a_log_directory(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        made = await h.sandboxes.create(pod(), 3, "/kubepods/besteffort/poduid-1")
        assert isinstance(made, Sandbox)
        assert made.ips[0].startswith("10.88.")
        config = h.fake.state.sandboxes[made.id].config
        assert config.metadata.attempt == 3
        assert config.linux.cgroup_parent == "/kubepods/besteffort/poduid-1"
        assert config.log_directory == h.paths.pod_logs(REF)
        assert [entry.name for entry in list_dir(h.paths.logs)] == ["shop_web_uid-1"]
        assert not h.recorder.events


async def test_a_pod_on_the_hosts_network_asks_for_no_address(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        made = await h.sandboxes.create(pod(hostNetwork=True, securityContext={}), 0, "")
        assert isinstance(made, Sandbox)
        assert made.ips == ()
        assert not h.fake.called("PodSandboxStatus")


async def test_names_that_are_still_held_are_passed_over(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        for attempt in (0, 1):
            h.fake.state.reserved[f"web_shop_uid-1_{attempt}"] = "half-made"
        made = await h.sandboxes.create(pod(), 0, "")
        assert isinstance(made, Sandbox)
        assert made.context.attempt == 2
        assert h.fake.state.sandboxes[made.id].config.metadata.attempt == 2


async def test_it_gives_up_when_all_names_are_held(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        for attempt in range(10):
            h.fake.state.reserved[f"web_shop_uid-1_{attempt}"] = "half-made"
        made = await refusal_of(h.sandboxes.create(pod(), 0, ""))
        assert made == StartError("CreatePodSandboxError", "the runtime holds the names of attempts 0 to 4")


async def test_what_the_runtime_answers_is_reported(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        h.fake.inject(RuntimeFault("RunPodSandbox", code=CriCode.UNKNOWN, message="no network"))
        made = await refusal_of(h.sandboxes.create(pod(), 0, ""))
        assert made == StartError("CreatePodSandboxError", "rpc error: code = Unknown desc = no network")
        message = "Failed to create pod sandbox: rpc error: code = Unknown desc = no network"
        assert h.events() == [("FailedCreatePodSandBox", message, "")]


async def test_a_status_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        h.fake.inject(RuntimeFault("PodSandboxStatus", code=CriCode.INTERNAL, message="boom"))
        await refusal_of(h.sandboxes.create(pod(), 0, ""))
        message = "Unable to get pod sandbox status: rpc error: code = Internal desc = boom"
        assert h.events() == [("FailedPodSandBoxStatus", message, "")]


async def test_a_log_directory_that_cannot_be_made(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        Path(h.paths.logs).write_text("a file in the way")
        made = await refusal_of(h.sandboxes.create(pod(), 0, ""))
        assert "not a directory" in made.message
        assert not h.fake.called("RunPodSandbox")


async def test_an_adopted_sandbox_is_described_like_a_new_one(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        made = await h.sandbox(pod())
        adopted = await h.sandboxes.adopt(pod(), SandboxView(SandboxID(made.id), 0, True, 1, made.ips), "/kubepods/x")
        assert made.seen is not None
        assert made.seen.ips == made.ips
        assert adopted == replace(made, seen=None)
        assert len(h.fake.called("RunPodSandbox")) == 1


async def test_only_a_start_needs_the_resolver_file(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        made = await h.sandbox(pod())
        view = SandboxView(SandboxID(made.id), 0, True, 1, made.ips)
        Path(h.resolv_conf).unlink()
        assert "resolv" in (await refusal_of(h.sandboxes.adopt(pod(), view, "/kubepods/x"))).message
        resized = await h.sandboxes.adopt(pod(), view, "/kubepods/x", for_starts=False)
        assert (resized.id, resized.context) == (made.id, made.context)


async def test_groups_of_persistent_volumes_reach_sandbox_and_containers(tmp_path: Path) -> None:
    volumes = {n: MountedVolume(n, "local", "/p", group=g) for n, g in (("a", 30), ("b", 20), ("c", 30), ("d", None))}
    mounts, writer = make_cell("mounts", Mounts({REF.uid: PodMounts({"a": volumes["a"]}, ready=True)}))
    of = pod(securityContext={"supplementalGroups": [20]})
    async with hands(tmp_path, mounts=mounts) as h:
        made = await h.sandboxes.create(of, 0, "")
        assert isinstance(made, Sandbox)
        context = h.fake.state.sandboxes[made.id].config.linux.security_context
        assert list(context.supplemental_groups) == [30, 20]

        writer.publish(Mounts({REF.uid: PodMounts({**volumes, "e": MountedVolume("e", "nfs", "/e", group=40)})}))
        made = h.sandboxes.with_volume_groups(of, made)
        container = h.fake.state.containers[await h.started(of, of.spec.containers[0], made)]
        assert list(container.config.linux.security_context.supplemental_groups) == [20, 30, 40]


async def test_the_hosts_resolver_file_is_read_each_time(tmp_path: Path) -> None:
    async with hands(tmp_path) as h:
        for server in ("192.0.2.53", "192.0.2.54"):
            Path(h.resolv_conf).write_text(f"nameserver {server}\n")
            made = await h.sandboxes.create(pod(), len(h.fake.state.sandboxes), "")
            assert isinstance(made, Sandbox)
            assert list(made.config.dns_config.servers) == [server]
