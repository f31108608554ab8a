"""A node with a few pods in different states, as the socket's answers see it."""

from __future__ import annotations

from dataclasses import dataclass, field

from report.samples import UID, WALL, container, entry, exited, facts, lifecycle, make_pod, running, view

from pykubelet.base.api import core
from pykubelet.base.kit.cells import CellWriter, LazyCellWriter, make_cell, make_lazy_cell
from pykubelet.base.kit.clock import ManualClock
from pykubelet.base.model.diagnostics import Diagnostics, PodDiagnostics, of_waits
from pykubelet.base.model.ids import PodRef, PodUID
from pykubelet.base.model.kube_events import Occurrence, Recent, normal, warning
from pykubelet.base.model.lifecycle import KillReason, Lifecycles, PodLifecycle, Stage
from pykubelet.base.model.mounts import Mounts, PodMounts
from pykubelet.base.model.node import NodeView, RuntimeReady
from pykubelet.base.model.observed import Observed, PodView
from pykubelet.base.model.remarks import Remark
from pykubelet.base.model.roster import ManifestProblem, Roster
from pykubelet.base.model.statuses import Statuses
from pykubelet.base.model.waits import Owner, TimelineEntry, Wait
from pykubelet.report.status.project import project_status
from pykubelet.serve.explain.documents import AskInputs, DiagnosticCells

NOW = WALL + 100
WELL = RuntimeReady(checked=True, runtime_error="", name="containerd", version="1.7.24", since=WALL)
PULL = Wait("image", Owner.IMAGE_MANAGER, WALL + 88, "busybox", detail="pulling")


@dataclass
class World:
    """Writing ends to change it, and the reading ends that the answers are made from."""

    roster: CellWriter[Roster]
    lifecycles: CellWriter[Lifecycles]
    mounts: CellWriter[Mounts]
    runtime: CellWriter[RuntimeReady]
    workers: LazyCellWriter[Diagnostics]
    volumes: LazyCellWriter[Diagnostics]
    inputs: AskInputs
    clock: ManualClock = field(default_factory=lambda: ManualClock(wall=NOW))


def make_world(sources_ready: bool = True) -> World:
    web, old_db = make_pod(restartPolicy="Always"), make_pod(name="db", uid="db-old")
    new_db, late = make_pod(name="db", uid="db-new"), make_pod(container("main"), name="late", uid="late-1")
    back_off = Wait(
        "container start",
        Owner.POD_WORKER,
        WALL + 90,
        "app",
        "CrashLoopBackOff",
        "back-off 20s restarting failed container=app pod=web_default(uid-1)",
        "start again",
        NOW + 12,
    )
    timeline = (TimelineEntry(WALL, "taken up"), TimelineEntry(WALL + 1, "start app", "new pod"))
    lives = [
        lifecycle(web, errors={"app": ("CrashLoopBackOff", back_off.detail)}),
        lifecycle(old_db, Stage.TERMINATING, kill_reason=KillReason.REMOVED),
        lifecycle(new_db),
        lifecycle(late),
    ]
    older = Wait("older pod of the same name", Owner.POD_WORKER, WALL + 95, "db-old")
    volumes, image = (
        Wait("volumes", Owner.VOLUME_MANAGER, WALL + 50),
        Wait("image", Owner.IMAGE_MANAGER, WALL + 60, "main"),
    )
    workers = Diagnostics(
        {
            UID: PodDiagnostics((back_off,), timeline),
            PodUID("db-new"): PodDiagnostics((older,)),
            PodUID("late-1"): PodDiagnostics((volumes, image)),
        }
    )
    pods = (web, old_db, new_db, late)
    views = {
        UID: view(exited("app", 1, number=2), exited("app", 3, number=1)),
        PodUID("db-old"): view(running(), ref=PodRef("default", "db", PodUID("db-old"))),
    }
    return _world(pods, lives, views, workers, sources_ready)


def _world(
    pods: tuple[core.Pod, ...],
    lives: list[PodLifecycle],
    views: dict[PodUID, PodView],
    known: Diagnostics,
    sources_ready: bool,
) -> World:
    desired = {PodUID(p.metadata.uid): entry(p) for p in pods if p.metadata.uid != "db-old"}
    problems = (ManifestProblem("/etc/manifests/bad.yaml", "spec.containers", "Required value"),)
    remark = Remark("/etc/manifests/web.yaml", "spec.hostNetwrk", "unknown field, ignored", str(UID))
    about_config = Remark("/etc/kubelet.yaml", "maxPod", 'unknown field, ignored; did you mean "maxPods"?')
    statuses = {
        life.ref.uid: project_status(facts(pod, views.get(life.ref.uid), lifecycle=life))
        for pod, life in zip(pods, lives, strict=True)
    }
    web = PodRef("default", "web", UID)
    happened = (
        Occurrence(
            normal("Pulled", "Image is present", web, "spec.containers{app}"), "Image is present", WALL, WALL + 0.5
        ),
        Occurrence(warning("BackOff", "held back", web), "held back", WALL + 2, WALL + 91, 7),
    )
    started = Occurrence(normal("Starting", "Starting kubelet."), "Starting kubelet.", WALL, WALL)
    roster, roster_end = make_cell("roster", Roster(desired, sources_ready, problems, remarks=(remark,)))
    lifecycles, lifecycles_end = make_cell("lifecycles", Lifecycles({life.ref.uid: life for life in lives}))
    late = PodMounts(
        waits=(Wait("volume", Owner.VOLUME_MANAGER, WALL + 51, "data", "FailedMount", "hostPath /x is no directory"),)
    )
    mounts, mounts_end = make_cell("mounts", Mounts({PodUID("late-1"): late}))
    runtime, runtime_end = make_cell("runtime", WELL)
    workers, workers_end = make_lazy_cell("workers", known)
    volumes, volumes_end = make_lazy_cell("volumes", Diagnostics())
    inputs = AskInputs(
        roster=roster,
        lifecycles=lifecycles,
        observed=make_cell("observed", Observed(views, 1.0))[0],
        mounts=mounts,
        statuses=make_cell("statuses", Statuses(statuses))[0],
        recent=make_cell("recent", Recent({UID: happened}, (started,)))[0],
        node=make_cell("node", NodeView("local", "local", ("192.0.2.1",), {"cpu": 2000}, {"cpu": 1900}))[0],
        runtime=runtime,
        diagnostics=DiagnosticCells(
            workers,
            make_lazy_cell("placement", Diagnostics())[0],
            volumes,
            (make_lazy_cell("images", of_waits({PodUID("late-1"): (PULL,)}))[0],),
        ),
        remarks=(about_config,),
    )
    return World(roster_end, lifecycles_end, mounts_end, runtime_end, workers_end, volumes_end, inputs)
