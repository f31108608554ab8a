"""What `/metrics` reads off the cells."""

from __future__ import annotations

from report.samples import entry, lifecycle, make_pod
from serve.metrics.test_golden import everything_used

from pykubelet.base.api.codec import from_object
from pykubelet.base.api.core import Volume
from pykubelet.base.kit.values import replace
from pykubelet.base.model.certificates import CertificateStage, PodCertificate
from pykubelet.base.model.content import Absent, CertificateKey, CertificateRecord, Content, Present
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.lifecycle import KillReason, Lifecycles, Stage
from pykubelet.base.model.mounts import MountedVolume, Mounts, PodMounts
from pykubelet.base.model.node import NodeView
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.roster import Roster, pod_ref
from pykubelet.base.model.sizing import PendingResize, ResizeProgress
from pykubelet.base.model.statuses import Statuses
from pykubelet.base.model.usage import FileSystemUse, VolumeUse
from pykubelet.provide.volumes.plan import PLUGINS
from pykubelet.serve.metrics.kubelet import MetricsInputs, kubelet_families

VOLUMES = tuple(
    from_object(Volume, volume)
    for volume in (
        {"name": "scratch", "emptyDir": {}},
        {"name": "etc", "hostPath": {"path": "/etc"}},
        {"name": "more", "emptyDir": {}},
    )
)
POD = make_pod(volumes=VOLUMES)
REPORTED = MetricsInputs(
    Roster(), Lifecycles(), Observed(), Statuses(), NodeView("n", "n"), {}, "v1.36.0", 2, volume_plugins=PLUGINS
)
ByLabels = dict[tuple[str, ...], float]


def values(reported: MetricsInputs, name: str) -> ByLabels:
    """By the values of the labels."""
    family = next(family for family in kubelet_families(reported) if family.name == name)
    return {tuple(value for _, value in sample.labels): sample.value for sample in family.samples}


def test_volumes_that_are_wanted_and_those_in_place() -> None:
    uid = pod_ref(POD).uid
    ending = make_pod(name="gone", uid="gone", volumes=VOLUMES)
    lives = Lifecycles({uid: lifecycle(POD), pod_ref(ending).uid: lifecycle(ending, Stage.TERMINATED)})
    mounts = Mounts({uid: PodMounts({"scratch": MountedVolume("scratch", "emptyDir", "/s")})})
    assert values(replace(REPORTED, lifecycles=lives, mounts=mounts), "volume_manager_total_volumes") == {
        ("kubernetes.io/empty-dir", "actual_state_of_world"): 1,
        ("kubernetes.io/empty-dir", "desired_state_of_world"): 2,
        ("kubernetes.io/host-path", "desired_state_of_world"): 1,
    }


def test_certificates_of_pods_by_signer_and_state() -> None:
    def key(index: int, signer: str) -> CertificateKey:
        return CertificateKey(PodUID("u"), "shop", "web", "v", index, signer)

    def issued(refresh_at: float, not_after: float) -> CertificateRecord:
        return CertificateRecord(CertificateStage.FRESH, Present(PodCertificate("k", "c", refresh_at, not_after)))

    records = {
        key(0, "a/b"): issued(5000.0, 9000.0),
        key(1, "a/b"): issued(4401.0, 9000.0),
        key(2, "a/b"): issued(4399.0, 9000.0),
        key(3, "a/b"): issued(1000.0, 4999.0),
        key(4, "a/b"): CertificateRecord(),
        key(5, "c/d"): CertificateRecord(CertificateStage.DENIED, Absent("no")),
        key(6, "c/d"): CertificateRecord(CertificateStage.FAILED, Absent("no")),
    }
    reported = replace(REPORTED, now=5000.0, content=Content(True, certificates=records))
    assert values(reported, "kubelet_podcertificate_states") == {
        ("a/b", "fresh"): 2,
        ("a/b", "overdue_for_refresh"): 1,
        ("a/b", "expired"): 1,
        ("a/b", "not_yet_issued"): 1,
        ("c/d", "denied"): 1,
        ("c/d", "failed"): 1,
    }


def test_pods_in_work_by_how_they_came_to_be_there() -> None:
    """Readers compare the whole family, zeros too."""
    away = make_pod(uid="away", static=False)
    found = replace(lifecycle(make_pod(uid="found"), Stage.TERMINATING), kill_reason=KillReason.ORPHANED)
    lives = (lifecycle(POD), lifecycle(away, Stage.TERMINATING), found)
    reported = replace(
        REPORTED,
        roster=Roster({pod_ref(POD).uid: entry(POD)}),
        lifecycles=Lifecycles({life.ref.uid: life for life in lives}),
    )
    output = values(reported, "kubelet_working_pods")
    assert len(output) == 15
    assert {labels: number for labels, number in output.items() if number} == {
        ("desired", "sync", "true"): 1,
        ("orphan", "terminating", ""): 1,
        ("runtime_only", "terminating", "unknown"): 1,
    }


def test_resizes_that_wait_and_that_are_under_way() -> None:
    uid = pod_ref(POD).uid
    waiting = replace(entry(POD), pending=PendingResize("Deferred", "no capacity", 2, 0.0))
    lives = Lifecycles({uid: replace(lifecycle(POD), resize=ResizeProgress(2))})
    reported = replace(REPORTED, roster=Roster({uid: waiting}), lifecycles=lives)
    assert values(reported, "kubelet_pod_pending_resizes") == {("normal", "deferred"): 1}
    assert values(reported, "kubelet_pod_in_progress_resizes") == {(): 1}
    assert values(REPORTED, "kubelet_pod_in_progress_resizes") == {(): 0}


def test_logs_as_far_as_they_were_looked_at() -> None:
    name = "kubelet_container_log_filesystem_used_bytes"
    assert values(REPORTED, name) == {}
    assert values(replace(REPORTED, usage=everything_used()), name) == {("app", "default", "web", "uid-1"): 10}


def test_usage_of_claims_as_the_first_pod_shows_it() -> None:
    usage = everything_used()
    (uid, pod), *_ = usage.pods.items()
    of_claim = VolumeUse(
        "v", FileSystemUse(1.0, 1000, 500, 400, 50, 40, 10), ("shop", "data"), is_local=False, is_abnormal=True
    )
    again = VolumeUse("w", FileSystemUse(1.0, 7), ("shop", "data"), is_local=False, is_abnormal=False)
    block = VolumeUse("b", FileSystemUse(1.0, capacity=8), ("shop", "raw"), is_local=False)
    plain = VolumeUse("p", FileSystemUse(1.0, 1))
    now = replace(REPORTED, usage=replace(usage, pods={uid: replace(pod, volumes=(of_claim, again, block, plain))}))
    stats = "kubelet_volume_stats_"
    assert values(now, f"{stats}capacity_bytes") == {("shop", "data"): 1000, ("shop", "raw"): 8}
    assert values(now, f"{stats}available_bytes") == {("shop", "data"): 500}
    assert values(now, f"{stats}used_bytes") == {("shop", "data"): 400}
    assert values(now, f"{stats}inodes") == {("shop", "data"): 50}
    assert values(now, f"{stats}inodes_free") == {("shop", "data"): 40}
    assert values(now, f"{stats}inodes_used") == {("shop", "data"): 10}
    assert values(now, f"{stats}health_status_abnormal") == {("shop", "data"): 1}
