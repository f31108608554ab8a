"""What is remembered of containers that were measured: where their figures are, and the figures that later ones are compared with."""

from __future__ import annotations

from posixpath import dirname

import msgspec

from pykubelet.base.kit.values import Value
from pykubelet_cri_docker.engine import messages as docker

#: Readings this far apart are kept: a rate covers at least this time, if an older reading is known.
RATE_OVER_S = 1.0


class CpuReading(Value):
    """The CPU time in nanoseconds at a monotonic second."""

    at: float
    used_ns: int


class LayerSize(Value):
    """A writable layer. `at`: wall seconds; `walked_at`: monotonic seconds; `took_s`: how long the walk took."""

    at: float
    used: int
    inodes: int
    walked_at: float
    took_s: float


class ContainerPlaces(Value):
    """Where figures of a container are. `pid`: of its first process. `upper_dir`: its writable layer; empty if it is not
    known. `cgroup_parent`: the cgroup of its pod; empty if the pod has none.
    """

    pid: int
    upper_dir: str = ""
    cgroup_parent: str = ""
    on_host_network: bool = False


class Tracked(msgspec.Struct):
    """A sandbox or container. `seen_at`: the monotonic second at which it was measured last."""

    places: ContainerPlaces
    readings: tuple[CpuReading, ...] = ()
    layer: LayerSize | None = None
    seen_at: float = 0.0

    def rate(self, now: CpuReading) -> int | None:
        """The CPU use since an earlier reading, in billionths of a core; None without one. Keeps `now` for later calls."""
        earlier = self.readings
        base = next((r for r in reversed(earlier) if now.at - r.at >= RATE_OVER_S), earlier[0] if earlier else None)
        if not earlier or now.at - earlier[-1].at >= RATE_OVER_S:
            self.readings = (*earlier, now)[-2:]
        if base is None or now.at <= base.at or now.used_ns < base.used_ns:
            return None
        return int((now.used_ns - base.used_ns) / (now.at - base.at))


def places_of(found: docker.DockerContainer) -> ContainerPlaces | None:
    """The places of a container; None if it does not run."""
    if not found.state.pid:
        return None
    layer = found.graph_driver.data if found.graph_driver is not None else None
    host = found.host_config
    return ContainerPlaces(
        pid=found.state.pid,
        upper_dir=layer.upper_dir if layer is not None else "",
        cgroup_parent=host.cgroup_parent.strip("/"),
        on_host_network=host.network_mode == "host",
    )


def storage_of(upper_dir: str) -> str:
    """The directory of all writable layers, by that of one (`/var/lib/docker/overlay2/ID/diff`)."""
    return dirname(dirname(upper_dir))
