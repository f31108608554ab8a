"""Makes a Pod object for a pod that only the runtime knows, from the labels and annotations of its containers. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from pykubelet.act.runtime.render.render_annotations import RestoredContainer, restored_container
from pykubelet.base.api.core import Container, Lifecycle, ObjectMeta, Pod, PodSpec
from pykubelet.base.model.observed import PodView
from pykubelet.base.model.restart import NEVER


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
