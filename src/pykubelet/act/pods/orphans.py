"""A pod that only the runtime knows, made into an object from the labels and annotations on what is left of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from pykubelet.act.runtime.render.render_annotations import RestoredContainer, restored_container
from pykubelet.base.api.core import Container, Lifecycle, ObjectMeta, Pod, PodSpec
from pykubelet.base.model.observed import PodView
from pykubelet.base.model.restart import NEVER


def orphan_pod(view: PodView) -> Pod:
    """Enough of a pod to stop it: names, grace periods, preStop hooks with the ports they may name, where messages are.

    It never starts anything again.
    """
    newest = [container for name in dict.fromkeys(c.name for c in view.containers) if (container := view.newest(name))]
    told = {container.name: restored_container(container.annotations) for container in newest}
    return Pod(
        metadata=ObjectMeta(
            name=view.ref.name,
            namespace=view.ref.namespace,
            uid=view.ref.uid,
            deletionGracePeriodSeconds=_first(one.deletion_grace_s for one in told.values()),
        ),
        spec=PodSpec(
            containers=tuple(_container(name, one) for name, one in told.items()),
            restartPolicy=NEVER,
            terminationGracePeriodSeconds=_first(one.termination_grace_s for one in told.values()),
        ),
    )


def _container(name: str, told: RestoredContainer) -> Container:
    return Container(
        name=name,
        ports=told.ports,
        lifecycle=Lifecycle(preStop=told.pre_stop) if told.pre_stop is not None else None,
        terminationMessagePath=told.termination_message_path,
        terminationMessagePolicy=told.termination_message_policy,
    )


def _first(found: Iterable[int | None]) -> int | None:
    return next((one for one in found if one is not None), None)
