"""Which pods exceed a limit of local storage, in which order limits are checked, and the texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from observe.eviction.samples import MI, fs, group, make_pod, make_use

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import ContainerID, PodRef, PodUID, SandboxID
from pykubelet.base.model.observed import ContainerView, ObservedState, PodView
from pykubelet.base.model.paths import Paths
from pykubelet.base.model.usage import ContainerUse, VolumeUse
from pykubelet.observe.eviction.limits import (
    CONTAINER_LIMIT,
    EMPTY_DIR_LIMIT,
    POD_LIMIT,
    excesses,
    has_storage_limits,
)
from pykubelet.observe.eviction.model import Candidate, FsLayout
from pykubelet.observe.stats.sizes import read_log_sizes


def limited(name: str = "pod", size: str | None = None, medium: str = "", own: str | None = None, **more: Any) -> Pod:
    """A container `main` with the limit `own`, and an emptyDir `data` of `size`."""
    container: dict[str, Any] = {"name": "main"}
    if own is not None:
        container["resources"] = {"limits": {"ephemeral-storage": own}}
    source = {"medium": medium} | ({"sizeLimit": size} if size is not None else {})
    volumes = [{"name": "data", "emptyDir": source}]
    return make_pod(name, {"containers": [container], "volumes": volumes} | more)


def check(pod: Pod, layout: FsLayout = FsLayout.SHARED, **used: int) -> tuple[str, str] | None:
    found = list(excesses([Candidate(pod, make_use("pod", **used))], layout))
    return (found[0].signal, found[0].message) if found else None


EMPTY_DIR = (EMPTY_DIR_LIMIT, 'Usage of EmptyDir volume "data" exceeds the limit "100Mi". ')
POD = (POD_LIMIT, "Pod ephemeral local storage usage exceeds the total limit of containers 100Mi. ")
SIDE = {"name": "side", "restartPolicy": "Always", "resources": {"limits": {"ephemeral-storage": "50Mi"}}}


@pytest.mark.parametrize(
    ("pod", "used", "found"),
    [
        (limited(), {"volume": 900 * MI}, None),
        (limited(size="100Mi"), {"volume": 100 * MI}, None),
        (limited(size="100Mi"), {"volume": 100 * MI + 1}, EMPTY_DIR),
        (limited(size="102400Ki"), {"volume": 101 * MI}, EMPTY_DIR),
        (limited(size="100Mi", medium="Memory"), {"volume": 101 * MI}, EMPTY_DIR),
        (limited(size="0"), {"volume": 101 * MI}, None),
        (limited(size="100Mi"), {"rootfs": 900 * MI, "logs": 900 * MI}, None),
        (limited(size="100Mi", own="100Mi"), {"volume": 101 * MI}, EMPTY_DIR),
        (limited(own="100Mi"), {"rootfs": 50 * MI, "logs": 50 * MI}, None),
        (limited(own="100Mi"), {"rootfs": 50 * MI, "logs": 51 * MI}, POD),
        (limited(own="100Mi"), {"rootfs": 40 * MI, "logs": 40 * MI, "volume": 40 * MI}, POD),
        (
            limited(own="50Mi", initContainers=[SIDE]),
            {"rootfs": 80 * MI},
            (CONTAINER_LIMIT, 'Container main exceeded its local ephemeral storage limit "50Mi". '),
        ),
        (limited(own="50Mi", initContainers=[SIDE]), {"rootfs": 101 * MI}, POD),
        (limited(size="100Mi", priority=2_000_000_000), {"volume": 101 * MI}, None),
    ],
)
def test_the_first_limit_that_is_exceeded(pod: Pod, used: dict[str, int], found: tuple[str, str] | None) -> None:
    assert check(pod, FsLayout.SHARED, **used) == found


def test_a_writable_layer_elsewhere_counts_for_the_pod_and_not_for_its_container() -> None:
    pod = limited(own="50Mi", initContainers=[SIDE])
    for layout in (FsLayout.DEDICATED, FsLayout.SPLIT):
        assert check(pod, layout, rootfs=80 * MI) is None
        assert check(pod, layout, rootfs=101 * MI) == POD
        assert check(pod, layout, logs=80 * MI) is not None


@pytest.mark.parametrize(
    ("policy", "found"),
    [
        ("Always", (CONTAINER_LIMIT, 'Container side exceeded its local ephemeral storage limit "50Mi". ')),
        ("", None),
    ],
)
def test_sidecars_have_a_limit_of_their_own_and_other_init_containers_have_none(
    policy: str, found: tuple[str, str] | None
) -> None:
    pod = limited(own="50Mi", initContainers=[SIDE | {"restartPolicy": policy}])
    side = ContainerUse("side", "id2", "image", "/x", 0.0, group(), fs(51 * MI), fs(0))
    use = make_use("pod")
    seen = list(excesses([Candidate(pod, replace(use, containers=(*use.containers, side)))], FsLayout.SHARED))
    assert [(excess.signal, excess.message) for excess in seen if excess.signal == CONTAINER_LIMIT] == (
        [found] if found else []
    )


def test_files_that_the_agent_made_count_for_the_pod_but_for_no_container() -> None:
    pod, use = limited(own="1Mi"), make_use("pod", rootfs=MI, logs=0)
    assert not list(excesses([Candidate(pod, use)], FsLayout.SHARED))
    (found,) = excesses([Candidate(pod, replace(use, own_files=fs(4096)))], FsLayout.SHARED)
    assert found.signal == POD_LIMIT


def test_many_short_logs_exceed_a_limit_by_the_blocks_that_they_take(tmp_path: Path) -> None:
    """A thousand files of one byte are 4 MB on most disks."""
    ref = PodRef("default", "pod", PodUID("pod"))
    paths = Paths(str(tmp_path), f"{tmp_path}/logs")
    logs = Path(paths.container_logs(ref, "main"))
    logs.mkdir(parents=True)
    for number in range(1000):
        (logs / str(number)).write_text("x")
    main = ContainerView(ContainerID("id"), "main", SandboxID("s"), ObservedState.RUNNING, 0, 1)
    (sizes,) = read_log_sizes(paths, [PodView(ref, (), (main,))], 0.0).values()
    found = check(limited(own="256Ki"), logs=sizes.logs["main"][0])
    assert found is not None and found[0] == POD_LIMIT


def test_what_was_not_measured_exceeds_nothing() -> None:
    pod = limited(size="1Mi", own="1Mi")
    use = make_use("pod")
    bare = replace(
        use, containers=tuple(replace(container, rootfs=None, logs=None) for container in use.containers), volumes=()
    )
    unknown = replace(bare, volumes=(VolumeUse("data", replace(fs(0), used=None)),))
    for measured in (None, bare, unknown):
        assert not list(excesses([Candidate(pod, measured)], FsLayout.SHARED))


def test_all_pods_that_exceed_a_limit_are_found() -> None:
    pods = [limited(name, size="1Mi") for name in ("a", "b", "c")]
    used = (2 * MI, 0, 3 * MI)
    seen = [Candidate(pod, make_use(pod.metadata.name, volume=n)) for pod, n in zip(pods, used, strict=True)]
    assert [excess.pod.metadata.name for excess in excesses(seen, FsLayout.SHARED)] == ["a", "c"]


@pytest.mark.parametrize(
    ("pod", "expected"),
    [(limited(), False), (limited(size="1Mi"), True), (limited(size="0"), False), (limited(own="1Mi"), True)],
)
def test_pods_without_limits_need_not_be_measured(pod: Pod, expected: bool) -> None:
    assert has_storage_limits(pod) is expected
