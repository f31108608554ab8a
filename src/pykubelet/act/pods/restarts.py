"""Asks the extensions whether and when a container starts again after an exit, once for each exit. Pure.

They are asked when the rules of `act/runtime/plan` would start the container again, and when the runtime has reported the exit itself, and
not only an event of it: its reason counts. The answer is part of the pod's state as long as the runtime shows the instance. Not asked: for
instances that were killed to be started again, for new sandboxes, and for exits that restart the whole pod.
"""

from __future__ import annotations

from collections.abc import Callable

from pykubelet.act.pods.backoff import BackOffInputs, CrashBackOffs, PastExit, RestartVerdict
from pykubelet.act.runtime.plan.plan import PodPlan
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.containers import find_container
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.observed import ContainerView, ObservedState, PodView

#: The exits of a container of which extensions learn.
MAX_PAST = 10


class RestartFacts(Value):
    """An exit after which a container would start again.

    `restarts`: how often it was started again before. `past`: its last exits, this one first. `delay_s`: the seconds from the exit to the
    start without an extension.
    """

    pod: Pod
    container: str
    restarts: int
    past: tuple[PastExit, ...]
    delay_s: float


#: Asks the extensions about an exit; None: the built-in rules decide.
AskForRestart = Callable[[RestartFacts], RestartVerdict | None]


class AskedExits(Value):
    """`plan`: without the starts of containers with an exit that is known from an event alone. `never`: new ones by container name."""

    back_offs: CrashBackOffs
    plan: PodPlan
    never: dict[str, RestartVerdict]


def ask_about_exits(
    ask: AskForRestart, back_offs: CrashBackOffs, plan: PodPlan, inputs: BackOffInputs, killed: frozenset[ContainerID]
) -> AskedExits:
    """Ask about the exits of the containers that the plan starts, unless they were asked about before. `killed`: to be started again."""
    view, never, unsure = inputs.view, dict[str, RestartVerdict](), set[str]()
    if view is None or plan.create_sandbox or plan.restart_all:
        return AskedExits(back_offs, plan, never)
    pending = {end.id for end in view.pending_exits}
    for name in plan.starts:
        newest = view.newest(name)
        if newest is None or newest.state is not ObservedState.EXITED or newest.id in killed:
            continue
        if newest.id in back_offs.verdicts or find_container(inputs.pod, name) is None:
            continue
        if newest.id in pending:
            unsure.add(name)
            continue
        past = _past_of(name, view, back_offs)
        delay = back_offs.delay_of(name, inputs)
        delay_s = max(0.0, delay.free_at - back_offs.exits[newest.id]) if delay.ended == newest.id else 0.0
        verdict = ask(RestartFacts(inputs.pod, name, newest.restart_count, past, delay_s))
        back_offs = replace(
            back_offs,
            verdicts={**back_offs.verdicts, newest.id: verdict},
            past={**back_offs.past, name: past},
        )
        if verdict is not None and verdict.delay_s is None:
            never[name] = verdict
    if unsure:
        plan = replace(
            plan,
            start_init=tuple(name for name in plan.start_init if name not in unsure),
            start=tuple(name for name in plan.start if name not in unsure),
        )
    return AskedExits(back_offs, plan, never)


def _past_of(name: str, view: PodView, back_offs: CrashBackOffs) -> tuple[PastExit, ...]:
    """The last exits of a container, newest first: those known from before, and those that the runtime still shows."""
    known = back_offs.past.get(name, ())
    have = {exit.instance for exit in known}
    new = [
        _past_exit(found)
        for found in view.instances(name)
        if found.state is ObservedState.EXITED and found.id not in have
    ]
    return (*new, *known)[:MAX_PAST]


def _past_exit(found: ContainerView) -> PastExit:
    return PastExit(found.id, found.exit_code, found.reason, found.started_at / 1e9, found.finished_at / 1e9)
