"""Situations that people have reported, on a real runtime. Each is one file beside this one (docs/recipes/field-report.md)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.agent import Agent
from support.situations import NotSo, Run, read_situation

pytestmark = pytest.mark.integration

SETTINGS = {"serializeImagePulls": False, "volumeStatsAggPeriod": "1s"}
FILES = {path.stem: path for path in sorted(Path(__file__).parent.glob("*.yaml"))}
Errors = dict[str, BaseException | None]


@pytest.fixture(scope="module")
def errors(agent: Agent, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Errors:
    """How the situations of this run went."""
    chosen = sorted({item.callspec.params["name"] for item in request.session.items if item.path == request.path})  # type: ignore[attr-defined]
    folder = tmp_path_factory.mktemp("situations")

    async def run() -> Errors:
        return await Run(agent, folder).all(read_situation(FILES[name]) for name in chosen)

    with asyncio.Runner() as runner:
        return runner.run(run())


@pytest.mark.parametrize("name", FILES)
def test_a_situation_ends_as_it_should(errors: Errors, name: str) -> None:
    error = errors[name]
    if isinstance(error, NotSo):
        pytest.fail(str(error), pytrace=False)
    if error is not None:
        raise error
