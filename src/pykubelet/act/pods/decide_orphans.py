"""Decides how a pod that only the runtime knows, an orphan, is ended: with what its containers have kept of its spec. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from pykubelet.act.pods.model import (
    Event,
    KillRequested,
    PodWorkerState,
)
from pykubelet.act.runtime.render.render_config import RestoredContainer, restored_container
from pykubelet.base.api.core import Container, Lifecycle, ObjectMeta, Pod, PodSpec
from pykubelet.base.model.lifecycle import KillReason, Stage
from pykubelet.base.model.observed import PodView
from pykubelet.base.model.restart import NEVER

ORPHAN_GRACE_S = 1


def orphan_start(view: PodView, wall: float) -> tuple[PodWorkerState, tuple[Event, ...]]:
    """The start of the worker of a pod that only the runtime knows: the worker kills the pod."""
    state = PodWorkerState(ref=view.ref, pod=orphan_pod(view), stage=Stage.SYNCING, started_wall=wall, view=view)
    return state, (KillRequested(KillReason.ORPHANED, "found running, not desired", ORPHAN_GRACE_S),)


def orphan_pod(view: PodView) -> Pod:
    """A pod with what is needed to stop it: names, grace periods, preStop hooks with their ports, termination message paths.

    None of its containers is ever started again.
    """
    newest = [container for name in dict.fromkeys(c.name for c in view.containers) if (container := view.newest(name))]
    restored = {container.name: restored_container(container.annotations) for container in newest}
    return Pod(
        metadata=ObjectMeta(
            name=view.ref.name,
            namespace=view.ref.namespace,
            uid=view.ref.uid,
            deletionGracePeriodSeconds=_first(known.deletion_grace_s for known in restored.values()),
        ),
        spec=PodSpec(
            containers=tuple(_container(name, known) for name, known in restored.items()),
            restartPolicy=NEVER,
            terminationGracePeriodSeconds=_first(known.termination_grace_s for known in restored.values()),
        ),
    )


def _container(name: str, restored: RestoredContainer) -> Container:
    return Container(
        name=name,
        ports=restored.ports,
        lifecycle=Lifecycle(preStop=restored.pre_stop) if restored.pre_stop is not None else None,
        terminationMessagePath=restored.termination_message_path,
        terminationMessagePolicy=restored.termination_message_policy,
    )


def _first(found: Iterable[int | None]) -> int | None:
    return next((seconds for seconds in found if seconds is not None), None)
