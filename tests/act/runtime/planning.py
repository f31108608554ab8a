"""Plans in few words, for the tests of `plan_pod`."""

from __future__ import annotations

from collections.abc import Collection

from pykubelet.act.runtime.plan.plan import KillCause, PodPlan, plan_pod
from pykubelet.base.api.core import Pod
from pykubelet.base.model.containers import container_hash
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.observed import PodView
from pykubelet.base.model.probes import ProbeResults


def plan(
    of: Pod, look: PodView, results: ProbeResults | None = None, to_restart: Collection[ContainerID] = ()
) -> PodPlan:
    return plan_pod(of, look, results or ProbeResults(), container_hash, to_restart=to_restart)


def kills(made: PodPlan) -> list[tuple[str, KillCause]]:
    return [(str(kill.container.id), kill.cause) for kill in made.kills]


def is_ended(made: PodPlan) -> bool:
    """The plan is to stop the pod for good."""
    return made.stop_pod and not made.create_sandbox and not made.starts
