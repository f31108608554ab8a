"""Decisions of the pod state machine about postStart hooks. Pure; part of `decide`.

Rules:
- A hook runs at least once. A hook that was cut off, by the end of the agent or of a sync, is run again while its container
  runs. Until it has ended, the container does not count as running.
- A hook of a container that has ended, or is being killed, is not run.
- Nothing is started beside a hook: what comes next depends on how the hook ends, and on the probes after it.
"""

from __future__ import annotations

from pykubelet.act.pods.model import PodWorkerState
from pykubelet.act.runtime.plan.plan import PodPlan
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import replace
from pykubelet.base.model.containers import every_container
from pykubelet.base.model.observed import PodView


def with_unhooked(state: PodWorkerState, view: PodView) -> PodWorkerState:
    """The state with those of its hooks that have not ended whose containers run in this view.

    Also those of containers that the runtime still shows running after the event of their exit: they must not be reported as running.
    """
    if not state.unhooked:
        return state
    hooked, ending = _hooked(state.pod), {exited.id for exited in view.pending_exits}
    left: dict[str, int] = {}
    for name, attempt in state.unhooked.items():
        newest = view.newest(name)
        if name not in hooked or newest is None or newest.attempt < attempt:
            continue
        if newest.is_running or newest.id in ending:
            left[name] = attempt
    return replace(state, unhooked=left)


def _hooked(pod: Pod) -> frozenset[str]:
    """The containers with a postStart hook."""
    containers = every_container(pod)
    return frozenset(c.name for c in containers if c.lifecycle is not None and c.lifecycle.postStart is not None)


def with_hooks(plan: PodPlan, state: PodWorkerState) -> PodPlan:
    """The plan with the hooks that have not ended, and without starts if there are any."""
    if not state.unhooked or plan.create_sandbox or plan.restart_all:
        return plan
    killed = {kill.container.name for kill in plan.kills}
    running = {container.name for container in state.view.running} if state.view is not None else set[str]()
    hooks = tuple(name for name in state.unhooked if name in running and name not in killed)
    return replace(plan, hooks=hooks, start_init=(), start=(), start_ephemeral=()) if hooks else plan
