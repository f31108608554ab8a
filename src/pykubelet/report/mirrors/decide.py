"""Decides which mirror pods to create and which to delete. Pure.

Rules:
- A static pod has one mirror pod, with its name and hash. A mirror pod with a deletion timestamp is deleted at once and
  created again, because deleting a mirror pod does not stop the static pod. A mirror pod with another hash is deleted when
  the static pod that it shows has ended.
- A mirror pod that has ended is deleted and created again when its static pod has started again: after its manifest was away, or
  because the node admits it after all. For clients of the API, an ended pod never starts again.
- A mirror pod without a static pod is deleted when all sources have reported and its static pod has ended.
- The Node object owns the mirror pods, so that they are garbage-collected with it. Without a Node, none is created.
Source: the Kubernetes documentation "Create static Pods".
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.api.core import ObjectMeta, OwnerReference, Pod, PodStatus
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.labels import CONFIG_HASH, CONFIG_MIRROR
from pykubelet.base.model.lifecycle import Lifecycles
from pykubelet.base.model.node import NodeView
from pykubelet.base.model.roster import (
    TERMINAL_PHASES,
    ApiPods,
    Roster,
    has_ended_in_api,
    is_quarantined,
    is_static,
    pod_ref,
    static_pods,
)
from pykubelet.base.model.statuses import Statuses

_NO_PODS, _NO_STATUSES = ApiPods(), Statuses()


class MakeMirror(Value):
    """Create the mirror pod of `static`."""

    static: Pod


class RemoveMirror(Value):
    """Delete the mirror pod with this UID, with grace period 0."""

    mirror: Pod
    cause: str


MirrorAction = MakeMirror | RemoveMirror


def has_mirrors(roster: Roster) -> bool:
    """Whether there are static pods or mirror pods at all."""
    return bool(roster.mirrors or static_pods(roster.pods))


def plan_mirrors(
    roster: Roster, lifecycles: Lifecycles, node: NodeView, api: ApiPods = _NO_PODS, statuses: Statuses = _NO_STATUSES
) -> Mapping[str, MirrorAction]:
    """The errands by full name. None before the API server's pods were listed. `api`: has the mirrors with their statuses;
    `statuses`: the agent's own."""
    if roster.mirrors is None:
        return {}
    entries = static_pods(roster.pods).values()
    statics = {pod_ref(entry.pod).full_name: entry.pod for entry in entries}
    stubs = {pod_ref(entry.pod).full_name for entry in entries if is_quarantined(entry)}
    errands: dict[str, MirrorAction] = {}
    for name, mirror in roster.mirrors.items():
        static = statics.get(name)
        if static is None:
            if roster.sources_ready and name not in roster.withheld and not _is_ending(name, lifecycles):
                errands[name] = RemoveMirror(mirror, "its static pod is gone")
        elif mirror.metadata.deletionTimestamp:
            errands[name] = RemoveMirror(mirror, "it is being deleted")
        elif mirror.metadata.annotations.get(CONFIG_MIRROR) != hash_of(static) and not _is_predecessor_left(
            static, lifecycles
        ):
            errands[name] = RemoveMirror(mirror, "its static pod has changed")
        elif _has_started_again(static, mirror, api, statuses):
            errands[name] = RemoveMirror(mirror, "its static pod has started again")
    if node.registered and node.uid and not node.deleting:
        for name, static in statics.items():
            if name not in roster.mirrors and name not in stubs:
                errands[name] = MakeMirror(static)
    return errands


def _has_started_again(static: Pod, mirror: Pod, api: ApiPods, statuses: Statuses) -> bool:
    uid = pod_ref(static).uid
    there, now = api.pods.get(pod_ref(mirror).uid), statuses.pods.get(uid)
    if there is None or now is None or uid in statuses.remembered:
        return False
    return has_ended_in_api(there) and now.phase not in TERMINAL_PHASES


def _is_ending(full_name: str, lifecycles: Lifecycles) -> bool:
    return any(life.ref.full_name == full_name and is_static(life.pod) for life in lifecycles.pods.values())


def _is_predecessor_left(static: Pod, lifecycles: Lifecycles) -> bool:
    """Whether another static pod of the same name still exists, which the mirror pod shows."""
    ref = pod_ref(static)
    return any(
        life.ref.full_name == ref.full_name and life.ref.uid != ref.uid and is_static(life.pod)
        for life in lifecycles.pods.values()
    )


def hash_of(static: Pod) -> str:
    """The static pod's `kubernetes.io/config.hash`; empty without one."""
    return static.metadata.annotations.get(CONFIG_HASH, "")


def mirror_of(static: Pod, node: NodeView) -> Pod:
    """The mirror pod to create at the API server."""
    meta = static.metadata
    owner = OwnerReference(apiVersion="v1", kind="Node", name=node.name, uid=node.uid, controller=True)
    return replace(
        static,
        apiVersion="v1",
        kind="Pod",
        metadata=ObjectMeta(
            name=meta.name,
            namespace=meta.namespace,
            labels=meta.labels,
            annotations={**meta.annotations, CONFIG_MIRROR: hash_of(static)},
            ownerReferences=(owner,),
        ),
        status=PodStatus(),
    )
