"""CPU rates, and where figures of containers are."""

from __future__ import annotations

import pytest

from pykubelet_cri_docker.engine import messages as docker
from pykubelet_cri_docker.stats.tracked import ContainerPlaces, CpuReading, Tracked, places_of, storage_of


@pytest.mark.parametrize(
    ("readings", "rates"),
    [
        ([(0.0, 0)], [None]),
        ([(0.0, 0), (10.0, 5_000_000_000)], [None, 500_000_000]),
        ([(0.0, 0), (10.0, 0), (20.0, 10_000_000_000)], [None, 0, 1_000_000_000]),
        # a second client soon after the first gets a rate of at least a second
        ([(0.0, 0), (10.0, 0), (10.1, 9_000_000_000)], [None, 0, int(9_000_000_000 / 10.1)]),
        ([(0.0, 0), (0.5, 1_000_000_000)], [None, 2_000_000_000]),
        # started again under the same ID
        ([(0.0, 100), (10.0, 50), (20.0, 10_000_000_050)], [None, None, 1_000_000_000]),
        ([(5.0, 1), (5.0, 2)], [None, None]),
    ],
)
def test_a_rate_is_between_two_readings(readings: list[tuple[float, int]], rates: list[int | None]) -> None:
    tracked = Tracked(ContainerPlaces(1))
    assert [tracked.rate(CpuReading(at, used)) for at, used in readings] == rates


def test_few_readings_are_kept() -> None:
    tracked = Tracked(ContainerPlaces(1))
    for second in range(1000):
        tracked.rate(CpuReading(second / 10, second))
    assert len(tracked.readings) == 2


def test_places_are_those_of_what_runs() -> None:
    overlay = docker.GraphDriver(docker.GraphDriver.Overlay("/var/lib/docker/overlay2/ab/diff"))
    host = docker.DockerHostConfig(network_mode="host", cgroup_parent="/kubepods/pod1/")
    running = docker.DockerContainer(
        "c", state=docker.DockerState("running", pid=7), graph_driver=overlay, host_config=host
    )
    assert places_of(running) == ContainerPlaces(7, "/var/lib/docker/overlay2/ab/diff", "kubepods/pod1", True)
    assert storage_of("/var/lib/docker/overlay2/ab/diff") == "/var/lib/docker/overlay2"
    assert places_of(docker.DockerContainer("c", state=docker.DockerState("exited"))) is None


@pytest.mark.parametrize("driver", [None, docker.GraphDriver(None), docker.GraphDriver(docker.GraphDriver.Overlay())])
def test_other_storage_drivers_have_no_layer_to_walk(driver: docker.GraphDriver | None) -> None:
    found = places_of(docker.DockerContainer("c", state=docker.DockerState("running", pid=7), graph_driver=driver))
    assert found is not None and found.upper_dir == ""
