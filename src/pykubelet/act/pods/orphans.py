"""A pod that only the runtime knows, made into an object from the labels and annotations on what is left of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pykubelet.base.api.core import Container, ObjectMeta, Pod, PodSpec
from pykubelet.base.model.labels import POD_DELETION_GRACE_PERIOD, POD_TERMINATION_GRACE_PERIOD
from pykubelet.base.model.observed import PodView
from pykubelet.base.model.restart import NEVER


def orphan_pod(view: PodView) -> Pod:
    """Enough of a pod to stop it: names, containers, grace periods. It never starts anything again."""
    names = dict.fromkeys(c.name for c in view.containers)
    annotations = [c.annotations for c in view.containers]
    return Pod(
        metadata=ObjectMeta(
            name=view.ref.name,
            namespace=view.ref.namespace,
            uid=view.ref.uid,
            deletionGracePeriodSeconds=_first_int(annotations, POD_DELETION_GRACE_PERIOD),
        ),
        spec=PodSpec(
            containers=tuple(Container(name=name) for name in names),
            restartPolicy=NEVER,
            terminationGracePeriodSeconds=_first_int(annotations, POD_TERMINATION_GRACE_PERIOD),
        ),
    )


def _first_int(annotations: Iterable[Mapping[str, str]], key: str) -> int | None:
    return next((int(entry[key]) for entry in annotations if entry.get(key, "").isdigit()), None)
