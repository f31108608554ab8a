"""Sequence diagrams of one pod's life: events in, commands out, with time that the test moves.

Every method that sends an event to the state machine returns the commands that follow, as texts:

    play = Playbook(pod())
    assert play.sees() == ["sync: sandbox 0; start app"]
    assert play.sync_ended("app") == []
"""

from __future__ import annotations

from dataclasses import dataclass, field

from act.pods.scenes import REF, WALL, view

from pykubelet.act.pods.decide import Rules, step
from pykubelet.act.pods.model import (
    AbandonSync,
    CleanEnded,
    CleanUp,
    Command,
    Event,
    KillRequested,
    PodWorkerState,
    ProbesChanged,
    ReportBackOff,
    ReportResize,
    ReportStay,
    RuntimeChanged,
    SpecChanged,
    StartFailed,
    StopEnded,
    StopPod,
    Sync,
    SyncEnded,
    TimerFired,
    WakeAt,
)
from pykubelet.act.runtime.plan.plan import Applied
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.values import replace
from pykubelet.base.model.containers import container_hash
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.lifecycle import KillReason, Stage, StartError, StatusOverride
from pykubelet.base.model.observed import ContainerEnd, ContainerView, SandboxView
from pykubelet.base.model.probes import ProbeResults
from pykubelet.base.model.sizing import size_of

RULES = Rules(hash_of=container_hash, crash=BackoffPolicy(10, 300), resync_s=60.0, probes=ProbeResults())


def described(command: Command, now: float) -> str:
    """A command in words; times are relative."""
    match command:
        case Sync(plan=plan, view=look, uncounted=useless):
            is_new = bool(plan.create_sandbox and useless)
            parts = [f"remove with its log {', '.join(container.id for container in useless)}"] if is_new else []
            parts += ["stop the pod"] if plan.stop_pod and not look.is_gone else []
            parts += ["restart all"] if plan.restart_all else []
            parts += [f"resize {', '.join(change.name for change in plan.resizes)}".strip()] if plan.resize_pod else []
            parts += [f"kill {kill.container.id} ({kill.cause})" for kill in plan.kills]
            parts += [f"remove {', '.join(sorted(plan.remove))}"] if plan.remove else []
            parts += [f"sandbox {plan.attempt}"] if plan.create_sandbox else []
            parts += [f"run the hook of {', '.join(plan.hooks)}"] if plan.hooks else []
            parts += [f"start {', '.join(plan.starts)}"] if plan.starts else []
            return "sync: " + "; ".join(parts)
        case AbandonSync(hard=hard):
            return "abandon now" if hard else "abandon at the next pause"
        case StopPod(grace_s=grace):
            return f"stop within {grace} s"
        case CleanUp(remove=remove):
            return "clean up and remove" if remove else "clean up"
        case WakeAt(at=at):
            return f"wake in {at - now:g} s"
        case ReportBackOff(container=name):
            return f"say {name} is held back"
        case ReportStay(container=name, verdict=verdict):
            return f"say {name} stays: {verdict.message} ({verdict.extension})"
        case ReportResize(progress=progress):
            return f"say the resize fails: {progress.error}" if progress.error else "say the resize is done"


@dataclass
class Playbook:
    """One pod, whose worker started at `now` (monotonic seconds) and `wall`; `state` may be looked at at any time."""

    pod: Pod
    now: float = 1000.0
    wall: float = WALL
    rules: Rules = RULES
    state: PodWorkerState = field(init=False)

    def __post_init__(self) -> None:
        self.state = PodWorkerState(ref=REF, pod=self.pod, stage=Stage.SYNCING, started_wall=self.wall)

    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.wall += seconds

    def hears(self, event: Event) -> list[str]:
        self.state, commands = step(self.state, event, self.now, self.rules)
        return [described(command, self.now) for command in commands]

    def sees(self, *views: SandboxView | ContainerView, ago: float = 0.0) -> list[str]:
        """A view of the runtime whose read began `ago` seconds before."""
        return self.hears(RuntimeChanged(view(*views, read_at=self.now - ago), self.wall))

    def hears_of_end(self, *views: SandboxView | ContainerView, code: int = 1) -> list[str]:
        """An event reports that the first container of this view has ended; the view does not show it yet."""
        first = next(item for item in views if isinstance(item, ContainerView))
        look = view(*views, read_at=self.now).add_pending_exits([ContainerEnd(first.id, code, int(self.wall * 1e9))])
        return self.hears(RuntimeChanged(look.with_pending_exits(), self.wall))

    def wakes(self) -> list[str]:
        return self.hears(TimerFired())

    def sync_ended(self, *started: str, pod_error: str = "", **failed: str | tuple[str, float]) -> list[str]:
        """`failed`: the waiting reason by container name, or the reason and in how many seconds to try again."""
        self.passes(0.001)
        failures = {}
        for name, how in failed.items():
            reason, retry_at = (how, None) if isinstance(how, str) else (how[0], self.now + how[1])
            failures[name] = StartFailed(StartError(reason, "no"), retry_at)
        error = StartError(pod_error, "no") if pod_error else None
        return self.hears(SyncEnded(started, failures, error))

    def start_refused(self, attempt: int = 0) -> list[str]:
        """The sync created container `app`, and the runtime could not start it."""
        self.passes(0.001)
        error = StartError("RunContainerError", "exec: not found")
        return self.hears(SyncEnded(failed={"app": StartFailed(error, unstarted=ContainerID(f"app-{attempt}"))}))

    def hook_failed(self, attempt: int = 0) -> list[str]:
        """The sync started container `app`, whose postStart hook failed, and stopped it again."""
        self.passes(0.001)
        error = StartError("PostStartHookError", "the hook failed")
        return self.hears(SyncEnded(failed={"app": StartFailed(error, instance=ContainerID(f"app-{attempt}"))}))

    def resized(self, of: Pod | None = None, *, error: str = "") -> list[str]:
        """The sync gave all that runs the size of `of` (the pod), or the runtime refused it."""
        self.passes(0.001)
        sizes = size_of(of or self.pod)
        here = self.state.view.running if self.state.view is not None else ()
        given = Applied({c.id: sizes.containers[c.name] for c in here}, sizes.whole)
        return self.hears(SyncEnded(resized=None if error else given, resize_error=error))

    def sync_abandoned(self) -> list[str]:
        self.passes(0.001)
        return self.hears(SyncEnded(unfinished=True))

    def stop_ended(self, error: str = "") -> list[str]:
        self.passes(0.001)
        return self.hears(StopEnded(error=error))

    def clean_ended(self, error: str = "") -> list[str]:
        self.passes(0.001)
        return self.hears(CleanEnded(error=error))

    def killed(
        self, reason: KillReason, grace_s: int | None = None, override: StatusOverride | None = None
    ) -> list[str]:
        return self.hears(KillRequested(reason, "test", grace_s, override))

    def spec_changed(self, to: Pod) -> list[str]:
        return self.hears(SpecChanged(to, "manifest changed"))

    def probes_changed(self, results: ProbeResults) -> list[str]:
        self.rules = replace(self.rules, probes=results)
        return self.hears(ProbesChanged(results))

    def errors(self) -> dict[str, str]:
        """The waiting reasons that people see, by container."""
        return {name: error.reason for name, error in self.state.start_errors.items()}

    def runs(self, *views: SandboxView | ContainerView) -> None:
        """Bring a pod to where the runtime shows `things` and there is nothing to do."""
        answer = self.sees(*views)
        if answer != [f"wake in {self.rules.resync_s:g} s"]:
            raise AssertionError(f"the pod is not at rest: {answer}")
