"""The sizes of one pod's containers as a value: what the runtime was asked for, and how far a resize has come. Pure.

Rules:
- The resources of each container instance are known from its start on. A running container that was adopted has the pod's
  size. If the pod was resized after the container was created, it has the size before the resize.
- A resize is in progress until all running containers have the new size. A newer size replaces it.
- A failed resize is tried again after a pause. Each new reason is reported once, and so is the completion.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Self

from pykubelet.act.pods.backoff import START_RETRY_S
from pykubelet.act.runtime.plan.plan import Applied, is_under_way
from pykubelet.base.api.core import Pod, ResourceRequirements
from pykubelet.base.kit.values import Value, field, replace
from pykubelet.base.model.observed import ContainerView, PodView
from pykubelet.base.model.sizing import ResizeProgress, SizeChange, same_size, size_of


class PodSizes(Value):
    """The resources of one pod's instances, and its resize. Methods return the next value; reports are resizes for an Event."""

    #: The resources that were requested from the runtime for the existing instances.
    applied: Applied = field(default_factory=Applied)
    #: By container name, the resources of the containers that the last syncs have started.
    starting: Mapping[str, ResourceRequirements] = field(default_factory=dict)
    #: The size of instances that an earlier run of the agent has started, if it differs from the pod's.
    adopted: SizeChange | None = None
    #: A resize that is not complete yet.
    resize: ResizeProgress | None = None
    #: When to try a failed resize again, in monotonic seconds.
    retry_at: float | None = None

    @classmethod
    def of_adopted(cls, pod: Pod, change: SizeChange | None) -> Self:
        """The value of a pod that an earlier run of the agent may have started. `change`: of its size since then."""
        return cls(adopted=change, resize=_begun(pod) if change is not None else None)

    def after_spec(self, before: Pod, pod: Pod) -> Self:
        """The value after the pod has changed."""
        return self if same_size(size_of(before), size_of(pod)) else replace(self, resize=_begun(pod))

    def after_view(self, pod: Pod, view: PodView) -> Self:
        """The value with the resources of each instance in the newest view."""
        here = {c.id: c for c in view.containers}
        if here.keys() == self.applied.containers.keys():
            return self
        applied = self.applied
        if here and applied == Applied():
            applied = Applied(whole=self._first_whole(pod, here.values()))
        sizes = size_of(pod).containers
        given = {}
        for instance, container in here.items():
            known = applied.containers.get(instance)
            if known is not None or container.name in sizes:
                given[instance] = known if known is not None else self._first_given(container, sizes)
        return replace(self, applied=applied if given == applied.containers else replace(applied, containers=given))

    def _first_whole(self, pod: Pod, here: Iterable[ContainerView]) -> ResourceRequirements | None:
        """The pod-level resources that were applied before this agent started."""
        if self.adopted is not None and any(container.created_at / 1e9 < self.adopted.at for container in here):
            return self.adopted.before.whole
        return pod.spec.resources

    def _first_given(self, container: ContainerView, sizes: Mapping[str, ResourceRequirements]) -> ResourceRequirements:
        if container.name in self.starting:
            return self.starting[container.name]
        adopted, name = self.adopted, container.name
        if adopted is not None and container.created_at / 1e9 < adopted.at and name in adopted.before.containers:
            return adopted.before.containers[name]
        return sizes[name]

    def before_sync(self, pod: Pod, starts: Collection[str], *, is_new_sandbox: bool) -> Self:
        """The value when a sync is about to start these containers with the pod's current size."""
        sizes = size_of(pod).containers
        starting = {**self.starting, **{name: sizes[name] for name in starts if name in sizes}}
        applied = replace(self.applied, whole=pod.spec.resources) if is_new_sandbox else self.applied
        return replace(self, starting=starting, applied=applied)

    def after_sync(self, resized: Applied | None, error: str, now: float) -> tuple[Self, tuple[ResizeProgress, ...]]:
        """The value after a sync, and the reports. `resized`: the resources that the runtime has applied; `error`: why not all."""
        sizes = replace(self, retry_at=now + START_RETRY_S if error else None)
        if resized is not None:
            given = {**self.applied.containers, **resized.containers}
            sizes = replace(sizes, applied=Applied(given, resized.whole))
        if self.resize is None or self.resize.error == error or not error:
            return sizes, ()
        failed = replace(self.resize, error=error)
        return replace(sizes, resize=failed), (failed,)

    def after_step(self, pod: Pod, view: PodView, *, is_at_rest: bool) -> tuple[Self, tuple[ResizeProgress, ...]]:
        """The value after any event, and the reports. `is_at_rest`: no work is running, and the view shows the last one."""
        if is_under_way(pod, view, self.applied):
            return (replace(self, resize=_begun(pod)), ()) if self.resize is None else (self, ())
        if self.resize is None or not is_at_rest:
            return self, ()
        return replace(self, resize=None), (replace(self.resize, error=""),)

    def without_pause(self) -> Self:
        """The value of which a failed resize is tried again at once."""
        return replace(self, retry_at=None) if self.retry_at is not None else self

    def without_resize(self) -> Self:
        """The value of a pod that is not resized any more."""
        return replace(self, resize=None) if self.resize is not None else self


def _begun(pod: Pod) -> ResizeProgress:
    return ResizeProgress(pod.metadata.generation or 0)
