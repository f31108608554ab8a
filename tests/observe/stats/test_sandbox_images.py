"""The images of pause containers, from a double of the runtime's verbose status."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import pytest

from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriCode, CriError
from pykubelet.observe.stats.sandbox_images import SandboxImages, image_of


@dataclass
class Runtime:
    failures: dict[str, CriCode] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    async def pod_sandbox_status(self, sandbox_id: str, verbose: bool = False) -> pb.PodSandboxStatusResponse:
        assert verbose
        self.asked.append(sandbox_id)
        if sandbox_id in self.failures:
            raise CriError(self.failures[sandbox_id], "no", "PodSandboxStatus")
        return pb.PodSandboxStatusResponse(info={"info": f'{{"pid":7,"image":"pause:{sandbox_id}","config":{{}}}}'})


async def test_each_sandbox_is_asked_for_once_and_forgotten_when_it_is_gone() -> None:
    runtime = Runtime()
    images = SandboxImages(cast(CriClient, runtime))
    await images.learn(["a", "b"])
    await images.learn(["b", "c"])
    assert images.known == {"b": "pause:b", "c": "pause:c"}
    assert runtime.asked == ["a", "b", "c"]


async def test_a_sandbox_that_is_gone_costs_only_itself_and_a_runtime_that_is_away_is_asked_again() -> None:
    runtime = Runtime({"a": CriCode.NOT_FOUND, "c": CriCode.UNAVAILABLE})
    images = SandboxImages(cast(CriClient, runtime))
    await images.learn(["a", "b", "c", "d"])
    assert images.known == {"b": "pause:b"}
    runtime.failures.clear()
    await images.learn(["b", "c", "d"])
    assert images.known == {"b": "pause:b", "c": "pause:c", "d": "pause:d"}


@pytest.mark.parametrize("info", [{}, {"info": "not JSON"}, {"info": '{"image": 7}'}, {"info": "[]"}])
def test_what_a_runtime_does_not_report_is_empty(info: dict[str, str]) -> None:
    assert image_of(pb.PodSandboxStatusResponse(info=info)) == ""
