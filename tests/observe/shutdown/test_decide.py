"""Which group a pod belongs to, what the configuration means, and the record of the last shutdown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from report.samples import make_pod

from pykubelet.base.kit.durations import MILLISECOND, SECOND, Duration
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.model.lifecycle import Lifecycles, PodLifecycle, Stage
from pykubelet.base.model.roster import pod_ref
from pykubelet.config.kubelet import KubeletConfiguration, ShutdownGracePeriodByPodPriority
from pykubelet.config.settings import Settings
from pykubelet.observe.shutdown.decide import ShutdownGroup, delay_s, pods_by_group, shutdown_groups
from pykubelet.observe.shutdown.record import END_TIME, START_TIME, ShutdownRecord

PLAIN, CRITICAL, BY_PRIORITY = (
    "shutdownGracePeriod",
    "shutdownGracePeriodCriticalPods",
    "shutdownGracePeriodByPodPriority",
)
TEN_S = Duration(10 * SECOND)
CLASSES = (
    ShutdownGracePeriodByPodPriority(priority=100000, shutdownGracePeriodSeconds=10),
    ShutdownGracePeriodByPodPriority(priority=0, shutdownGracePeriodSeconds=60),
    ShutdownGracePeriodByPodPriority(priority=10000, shutdownGracePeriodSeconds=180),
)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, []),
        ({PLAIN: Duration(30 * SECOND)}, [(0, 30), (2_000_000_000, 0)]),
        (
            {PLAIN: Duration(30 * SECOND), CRITICAL: TEN_S},
            [(0, 20), (2_000_000_000, 10)],
        ),
        (
            {
                PLAIN: Duration(30500 * MILLISECOND),
                CRITICAL: TEN_S,
            },
            [(0, 20), (2_000_000_000, 10)],
        ),
        ({BY_PRIORITY: CLASSES}, [(0, 60), (10000, 180), (100000, 10)]),
        ({BY_PRIORITY: (ShutdownGracePeriodByPodPriority(priority=5),)}, []),
    ],
)
def test_the_groups_of_a_configuration(config: dict[str, Any], expected: list[tuple[int, int]]) -> None:
    groups = shutdown_groups(Settings(config=KubeletConfiguration(**config)))
    assert [(group.priority, group.grace_s) for group in groups] == expected


@pytest.mark.parametrize(
    ("priority", "group"),
    [(None, 0), (-5, 0), (0, 0), (9999, 0), (10000, 10000), (99999, 10000), (2_000_001_000, 100000)],
)
def test_a_pod_ends_with_the_highest_priority_that_is_not_above_its_own(priority: int | None, group: int) -> None:
    groups = tuple(ShutdownGroup(lowest, 5) for lowest in (0, 10000, 100000))
    pod = make_pod(priority=priority)
    lives = Lifecycles({pod_ref(pod).uid: PodLifecycle(pod_ref(pod), pod, Stage.SYNCING, 0.0, 0.0)})
    assert [members.group.priority for members in pods_by_group(lives, groups)] == [group]


def test_pods_that_are_over_are_left_out_and_the_delay_is_the_sum() -> None:
    groups = (ShutdownGroup(0, 5), ShutdownGroup(10, 7))
    pod = make_pod()
    lives = Lifecycles({pod_ref(pod).uid: PodLifecycle(pod_ref(pod), pod, Stage.FINISHED, 0.0, 0.0)})
    assert pods_by_group(lives, groups) == ()
    assert delay_s(groups) == 12


async def test_the_record_survives_a_restart_and_damage_is_no_obstacle(tmp_path: Path) -> None:
    path, flight = tmp_path / "graceful_node_shutdown_state", SingleFlight("test")
    await ShutdownRecord(str(path), flight).load()
    assert (START_TIME.value(), END_TIME.value()) == (0.0, 0.0)
    record = ShutdownRecord(str(path), flight)
    await record.began(1_767_323_045.0)
    await record.ended(1_767_323_050.0)
    assert path.read_text() == '{"startTime":"2026-01-02T03:04:05Z","endTime":"2026-01-02T03:04:10Z"}'
    START_TIME.set(0.0)
    await ShutdownRecord(str(path), flight).load()
    assert (START_TIME.value(), END_TIME.value()) == (1_767_323_045.0, 1_767_323_050.0)
    path.write_text("{")
    await ShutdownRecord(str(path), flight).load()
    await record.began(1_767_323_060.0)
    assert '"endTime":"0001-01-01T00:00:00Z"' in path.read_text()


def test_the_shutdown_does_not_wait_for_a_pod_in_quarantine() -> None:
    pod = make_pod()
    why = "the agent has ended 2 times"
    life = PodLifecycle(pod_ref(pod), pod, Stage.SYNCING, 0.0, 0.0, has_worker=False, quarantine=why)
    assert pods_by_group(Lifecycles({life.ref.uid: life}), (ShutdownGroup(0, 60),)) == ()
