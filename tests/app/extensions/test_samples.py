"""The samples of examples/extensions that are functions, with the test kit that authors of extensions use."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

import pytest

from pykubelet.extension import Hold, Pod, PullAttempt, PullLater, PullNever, PullNow, Reject
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


def deadline(runtime: str, period: str, cpu: int) -> Pod:
    notes = {"deadline.example.com/runtime-us": runtime, "deadline.example.com/period-us": period}
    return make_pod("task", make_container(cpu=cpu), annotations=notes)


@pytest.mark.parametrize(
    ("runtime", "period", "cpu", "reason"),
    [
        ("2000", "10000", 200, ""),
        ("2000", "10000", 199, "InvalidDeadline"),
        ("20000", "10000", 3000, "InvalidDeadline"),
        ("500", "10000", 200, "InvalidDeadline"),
        ("two", "10000", 200, "InvalidDeadline"),
        ("10000", "10000", 1000, "OutOfDeadlineBandwidth"),
    ],
)
def test_deadline_admission(runtime: str, period: str, cpu: int, reason: str) -> None:
    extension = load(SAMPLES / "deadline_admission.py")
    node = make_node(cpu=4000, requested={"cpu": 3000})
    answer = extension.ask("admit", deadline(runtime, period, cpu), node)
    assert (answer.reason if answer is not None else "") == reason
    assert extension.ask("admit", make_pod(), node) is None


def test_the_quota_of_a_deadline_has_the_period_of_the_task() -> None:
    extension = load(SAMPLES / "deadline_admission.py")
    pod, values = deadline("2000", "10000", 200), MappingProxyType({"cpu.max": "max 100000"})
    assert extension.ask("cgroup", pod, pod.containers[0], values) == {"cpu.max": "2100 10000"}
    assert extension.ask("cgroup", make_pod(), make_container(), values) is None


def test_memory_tiering() -> None:
    extension = load(SAMPLES / "memory_tiering.py", {"cold_high": 0.25})
    hot = make_container("cache", memory=100 * MI)
    cold = make_container("archive", limits=MappingProxyType({"memory": 400 * MI}))
    plain = make_container("web", memory=10 * MI)
    notes = {"tier.example.com/cache": "hot", "tier.example.com/archive": "cold"}
    pod, values = make_pod("shop", hot, cold, plain, annotations=notes), MappingProxyType({"memory.max": "max"})
    assert extension.ask("cgroup", pod, hot, values) == {"memory.low": str(100 * MI)}
    assert extension.ask("cgroup", pod, cold, values) == {"memory.low": "0", "memory.high": str(100 * MI)}
    assert extension.ask("cgroup", pod, plain, values) is None
    assert extension.ask("cgroup", pod, None, values) == {"memory.low": str(100 * MI)}


def test_pull_priority() -> None:
    extension = load(SAMPLES / "pull_priority.py", {"refused": ["evil.example/"], "longest_s": 600})
    node = make_node(time=1000.0)

    def answer(image: str, pod: Pod) -> object:
        return extension.ask("pull", PullAttempt(image, pod, "main", waiting_since=900.0), node)

    assert answer("shop:1", make_pod(priority=7)) == PullNow(7)
    assert answer("shop:1", make_pod(priority=2_000_000_000)) == PullNow(1_000_000)
    assert isinstance(answer("evil.example/x", make_pod()), PullNever)
    soon = make_pod(annotations={"pull.example.com/not-before": "1970-01-01T00:17:30+00:00"})  # 1050
    assert answer("shop:1", soon) == PullLater(50.0, "for another 50 s")
    late = make_pod(annotations={"pull.example.com/not-before": "2026-12-01T00:00:00Z"})
    assert answer("shop:1", late) == PullLater(60.0, "for another 500 s")


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


def test_the_kit_asks_about_the_pods_that_the_agent_asks_about(tmp_path: Path) -> None:
    path = tmp_path / "strict.py"
    path.write_text(
        "from pykubelet.extension import Extension, Reject\n\n\n"
        "class Strict(Extension):\n    name, api, annotation = 'strict', '1.0', 'x.io/'\n\n"
        "    def admit(self, pod, node):\n        return Reject('No', '')\n"
    )
    strict = load(path)
    assert strict.ask("admit", make_pod(), make_node()) is None
    assert strict.ask("admit", make_pod(annotations={"x.io/a": "1"}), make_node()).reason == "No"
