"""The examples of docs/extensions/points.md: each is loaded as a file, and decides as its section states."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pykubelet.app.extensions.load import POINTS, load_extensions
from pykubelet.app.extensions.points import CHECKS
from pykubelet.extension import (
    Container,
    CpuMachine,
    CpuRequest,
    EvictionCandidate,
    Exit,
    Image,
    MemoryChoice,
    MemoryMachine,
    MemoryNode,
    MemoryRequest,
    Node,
    Pod,
    PullAttempt,
    PullNow,
    Reject,
    RestartHistory,
    RestartNever,
    Usage,
)

PAGE = Path(__file__).parents[3] / "docs" / "extensions" / "points.md"
MAX_LINES = 15
POD, NODE = Pod("shop", "web", "1", labels={"batch": "yes"}), Node("node", labels={"price": "high"})
SMALL, LARGE = EvictionCandidate(POD, Usage(memory=1)), EvictionCandidate(POD, Usage(memory=2))
IMAGES = (Image("a", size=1), Image("b", size=2))
#: By point: what its example gets, and what it answers.
SAMPLES: dict[str, tuple[tuple[Any, ...], Callable[[Any], bool]]] = {
    "admit": ((POD, NODE), lambda answer: answer == Reject("TooExpensive", "power is expensive now")),
    "rank_for_eviction": (((SMALL, LARGE), "memory.available"), lambda answer: list(answer) == [LARGE, SMALL]),
    "place": ((CpuRequest(POD, Container("main"), 1), CpuMachine((), frozenset({1, 2}))), lambda answer: answer == {2}),
    "place_memory": (
        (
            MemoryRequest(
                POD,
                Container("main"),
                {"memory": 4096},
                tuple(MemoryChoice(frozenset(nodes), len(nodes) == 1) for nodes in ({0}, {1}, {0, 1})),
            ),
            MemoryMachine((MemoryNode(0, {"memory": 8192}, {}), MemoryNode(1, {"memory": 9000}, {}))),
        ),
        lambda answer: answer == {1},
    ),
    "cgroup": (
        (Pod("shop", "web", "1", labels={"tier": "cold"}), Container("main"), {"memory.max": "4096"}),
        lambda answer: answer == {"memory.high": "2048", "memory.low": "0"},
    ),
    "pull": ((PullAttempt("app:1", POD, "main"), NODE), lambda answer: answer == PullNow(0)),
    "restart": (
        (Container("main"), RestartHistory(POD, 2, (Exit(1),))),
        lambda answer: answer == RestartNever("it has failed three times"),
    ),
    "rank_images_for_removal": ((IMAGES,), lambda answer: list(answer) == [IMAGES[1], IMAGES[0]]),
}


def sections() -> dict[str, str]:
    """The sections of the points, by name."""
    parts = re.split(r"^## `(\w+)`$", PAGE.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_each_section_is_of_a_point_and_has_an_example() -> None:
    assert set(SAMPLES) == set(sections()) == set(POINTS) == set(CHECKS)


@pytest.mark.parametrize("point", SAMPLES)
def test_an_example_decides_as_its_section_states(point: str, tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", sections()[point], flags=re.DOTALL)
    assert code.count("\n") <= MAX_LINES
    path = tmp_path / f"{point}.py"
    path.write_text(code)
    (loaded,) = load_extensions([str(path)]).extensions
    assert loaded.points == (point,)
    arguments, is_right = SAMPLES[point]
    assert is_right(getattr(loaded.extension, point)(*arguments))


@pytest.mark.parametrize("point", SAMPLES)
def test_a_section_states_what_it_gets_and_answers_and_what_a_failure_means(point: str) -> None:
    assert all(word in sections()[point] for word in ("**Gets**", "**Answers**", "**If it fails**"))
