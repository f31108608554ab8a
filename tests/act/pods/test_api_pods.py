"""Pods of the API server in act/pods: deleted there, ended there, gone from there."""

from __future__ import annotations

from pathlib import Path

import pytest
from act.pods.node import named, node, static
from act.pods.scenes import container, pod

from pykubelet.base.api.core import Pod, PodStatus
from pykubelet.base.kit.values import replace
from pykubelet.base.model.lifecycle import KillReason, Stage

pytestmark = pytest.mark.virtual_time

WEB = named(pod(), "web")


def deleted(of: Pod, grace_s: int = 1) -> Pod:
    meta = replace(of.metadata, deletionTimestamp="2026-01-01T00:00:00Z", deletionGracePeriodSeconds=grace_s)
    return replace(of, metadata=meta)


def ended(of: Pod, phase: str = "Succeeded") -> Pod:
    return replace(of, status=PodStatus(phase=phase))


async def test_a_deleted_pod_stays_known_as_finished_until_it_is_gone_from_the_api(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.want(WEB)
        await n.wait_running("web")
        n.want(deleted(WEB))
        life = await n.wait_life("web", lambda life: life.stage is Stage.FINISHED)
        assert life.kill_reason is KillReason.DELETED
        assert not n.sandboxes("web")
        n.want(named(pod(), "other"))
        await n.wait_running("other")
        assert n.life("web") is not None
        assert not n.sandboxes("web")
        n.unwant("web")
        await n.wait_gone("web")


async def test_a_pod_that_is_deleted_at_first_sight_never_starts(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.want(deleted(WEB))
        await n.wait_life("web", lambda life: life.stage is Stage.FINISHED)
        assert n.images.asked == []
        n.unwant("web")
        await n.wait_gone("web")


async def test_a_pod_that_has_ended_in_the_api_never_starts_again(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.want(ended(WEB))
        life = await n.wait_life("web", lambda life: life.stage is Stage.FINISHED)
        assert (life.kill_reason, life.terminal) == (KillReason.COMPLETED, True)
        assert n.images.asked == []
        n.want(deleted(ended(WEB)))
        await n.wait_life("web", lambda life: life.kill_reason is KillReason.DELETED)
        n.unwant("web")
        await n.wait_gone("web")


async def test_a_pod_that_was_ended_in_the_api_is_ended_here(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.want(WEB)
        await n.wait_running("web")
        n.want(ended(WEB, "Failed"))
        await n.wait_life("web", lambda life: life.stage is Stage.FINISHED)
        assert not n.running("web")


async def test_a_pod_gone_from_the_api_is_ended_and_forgotten(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.want(WEB)
        await n.wait_running("web")
        n.unwant("web")
        await n.wait_gone("web")
        assert n.containers("web") == [] and not n.groups.pods and not n.logs(WEB)


async def test_a_pod_of_the_same_name_does_not_wait_for_the_one_before(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.want(WEB)
        await n.wait_running("web")
        n.want(deleted(WEB, 30))
        n.want(named(pod(), "web", "uid-2"))
        await n.wait_for(lambda: "uid-2" in n.sandboxes("web"))
        assert n.sandboxes("web").count("uid-2") == 1


async def test_a_static_pod_does_not_wait_for_a_pod_of_the_api_of_its_name(tmp_path: Path) -> None:
    async with node(tmp_path) as n:
        n.want(WEB)
        await n.wait_running("web")
        n.want(static(pod(), "web", "static-1"))
        await n.wait_for(lambda: "static-1" in n.sandboxes("web"))
        assert sorted(n.sandboxes("web")) == ["static-1", "uid-web"], "both are there"


async def test_a_shorter_grace_hurries_the_end(tmp_path: Path) -> None:
    deaf = named(pod(container(command=["sh", "-c", "trap '' TERM; serve"])), "web")
    async with node(tmp_path) as n:
        n.want(deaf)
        await n.wait_running("web")
        n.want(deleted(deaf, 60))
        await n.wait_for(lambda: bool(n.fake.called("StopContainer")))
        assert n.running("web"), "it has a minute"
        n.want(deleted(deaf, 1))
        await n.wait_life("web", lambda life: life.stage is Stage.FINISHED)
        assert not n.running("web")
