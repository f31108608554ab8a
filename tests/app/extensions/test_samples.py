"""The samples of examples/extensions that are functions, with the test kit that authors of extensions use."""

from __future__ import annotations

from pathlib import Path

import pytest

from pykubelet.extension import Hold, Reject
from pykubelet.extension.testing import load, make_candidate, make_container, make_node, make_pod

SAMPLES = Path(__file__).parents[3] / "examples/extensions"
MI = 1 << 20


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_a_sample_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 100


def test_carbon_admission() -> None:
    carbon = load(SAMPLES / "carbon_admission.py", {"again_s": 30})
    most, start_by = "carbon.example.com/most", "carbon.example.com/start-by"
    pod = make_pod(annotations={most: "200", start_by: "2026-12-01T06:00:00Z"}, created_at=1_796_100_000.0)
    dirty = make_node(labels={"carbon.example.com/intensity": "450"}, time=1_796_100_600.0)
    assert carbon.ask("admit", pod, dirty) == Hold("clean power", "450 g of CO2 for each kWh, 200 at most", 30)
    assert carbon.ask("admit", pod, make_node(labels={"carbon.example.com/intensity": "120"})) is None
    assert carbon.ask("admit", make_pod(), dirty) is None
    late = make_node(labels={"carbon.example.com/intensity": "450"}, time=1_796_104_800.0)  # 06:00:00Z
    assert carbon.ask("admit", pod, late) is None
    assert isinstance(carbon.ask("admit", make_pod(annotations={most: "much"}), dirty), Reject)


def test_eviction_by_stall() -> None:
    stall = load(SAMPLES / "stall_eviction.py")
    large = make_candidate("large", memory=900 * MI)
    noisy = make_candidate("noisy", memory=100 * MI, stalls={"memory": 40.0})
    fair = make_pod("fair", make_container(memory=400 * MI))
    users = [large, make_candidate("fair", memory=300 * MI, stalls={"memory": 40.0}, requests=fair.requests), noisy]
    order = stall.ask("rank_for_eviction", users, "memory.available")
    assert [candidate.pod.name for candidate in order] == ["noisy", "fair", "large"]
    assert stall.ask("rank_for_eviction", users, "nodefs.available") is None
    assert stall.ask("rank_for_eviction", [large], "memory.available") is None


def test_the_kit_fails_where_the_agent_would(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    head = "from pykubelet.extension import Extension\nclass Bad(Extension):\n    name, api = 'bad', '1.0'\n"
    path.write_text(head + "    def admit(self, pod, node):\n        return eval(pod.name)\n")
    bad = load(path)
    for name, problem in (
        ("1", "the answer must be Reject, Hold or None"),
        ("1/0", "ZeroDivisionError: division by zero"),
    ):
        with pytest.raises(AssertionError, match=f"bad fails in admit: {problem}"):
            bad.ask("admit", make_pod(name), make_node())
    with pytest.raises(AssertionError, match="bad does not define rank_for_eviction: it defines admit"):
        bad.ask("rank_for_eviction", [], "memory.available")
    path.write_text("x = 1\n")
    with pytest.raises(AssertionError, match="it must define one class"):
        load(path)
