"""Short ways to make changes of objects: metadata, conditions, Events. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pykubelet.base.kit.fnv import fnv1a_128
from pykubelet_local_api.objects import Json, name_of, timestamp, uid_of
from pykubelet_local_api.view import ObjectChange, Verb, View

#: The most characters of an Event's message that the API server stores.
MAX_MESSAGE = 1024
#: The most characters of an object's name that the name of its Events begins with.
MAX_NAME = 230


def created(resource: str, new: Json) -> ObjectChange:
    """Create the object."""
    return ObjectChange(Verb.CREATE, resource, new)


def updated(resource: str, new: Json) -> ObjectChange:
    """Replace all but the status of the object."""
    return ObjectChange(Verb.UPDATE, resource, new)


def status_updated(resource: str, new: Json) -> ObjectChange:
    """Replace the status of the object."""
    return ObjectChange(Verb.STATUS, resource, new)


def deleted(resource: str, seen: Json, grace_s: int | None = None) -> ObjectChange:
    """Delete the object."""
    return ObjectChange(Verb.DELETE, resource, seen, grace_s)


def with_metadata(found: Json, **fields: Any) -> Json:
    """The object with other fields of its metadata; None removes a field."""
    metadata = {key: value for key, value in (found["metadata"] | fields).items() if value is not None}
    return found | {"metadata": metadata}


def annotated(found: Json, annotations: Mapping[str, str | None]) -> Json:
    """The object with these annotations; None removes one. The same object if it has them already."""
    before = found["metadata"].get("annotations") or {}
    after = {key: value for key, value in (before | dict(annotations)).items() if value is not None}
    return found if after == before else with_metadata(found, annotations=after or None)


def annotation_of(found: Json, key: str) -> str:
    """The annotation; "" if there is none."""
    return str((found["metadata"].get("annotations") or {}).get(key) or "")


def finalizers_of(found: Json) -> list[str]:
    """`metadata.finalizers`."""
    return list(found["metadata"].get("finalizers") or ())


def with_finalizer(found: Json, finalizer: str) -> Json:
    """The object with one more finalizer."""
    return with_metadata(found, finalizers=[*finalizers_of(found), finalizer])


def without_finalizer(found: Json, finalizer: str) -> Json:
    """The object without the finalizer."""
    return with_metadata(found, finalizers=[name for name in finalizers_of(found) if name != finalizer] or None)


def spec_of(found: Json) -> Json:
    """`spec`; empty if there is none."""
    spec: Json = found.get("spec") or {}
    return spec


def status_of(found: Json) -> Json:
    """`status`; empty if there is none."""
    status: Json = found.get("status") or {}
    return status


def with_status(found: Json, **fields: Any) -> Json:
    """The object with other fields of its status; None removes a field."""
    status = {key: value for key, value in (status_of(found) | fields).items() if value is not None}
    return found | {"status": status}


def condition_of(found: Json, kind: str) -> Json:
    """The condition of this type; empty if there is none."""
    return next((item for item in status_of(found).get("conditions") or () if item.get("type") == kind), {})


def with_condition(
    found: Json, kind: str, status: str, reason: str, message: str, now: float, *, generation: int | None = None
) -> Json:
    """The object with the condition; the same object if it has it already. The time is that of the change of `status`.

    generation: the one that the condition is about, for conditions that state it.
    """
    before = condition_of(found, kind)
    if (before.get("status"), before.get("reason", ""), before.get("message", "")) == (status, reason, message):
        return found
    since = before.get("lastTransitionTime") if before.get("status") == status else None
    after: Json = {**before, "type": kind, "status": status, "lastTransitionTime": since or timestamp(now)}
    after |= {"reason": reason, "message": message}
    if generation is not None:
        after["observedGeneration"] = generation
    after = {key: value for key, value in after.items() if value != ""}
    others = list(status_of(found).get("conditions") or ())
    place = next((index for index, item in enumerate(others) if item.get("type") == kind), len(others))
    return with_status(found, conditions=[*others[:place], after, *others[place + 1 :]])


def with_pod_condition(pod: Json, kind: str, status: str, reason: str, message: str, now: float) -> Json:
    """The pod with the condition as `with_condition` sets it, about the pod's generation."""
    return with_condition(pod, kind, status, reason, message, now, generation=generation_of(pod))


def generation_of(found: Json) -> int | None:
    """`metadata.generation`; None if there is none."""
    generation: int | None = found["metadata"].get("generation")
    return generation


def owned_by_pod(pod: Json) -> Json:
    """The owner reference of an object that belongs to the pod, and goes with it."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": name_of(pod),
        "uid": uid_of(pod),
        "controller": True,
        "blockOwnerDeletion": True,
    }


def reference_to(found: Json, kind: str, api_version: str = "v1") -> Json:
    """An ObjectReference to the object."""
    meta = found["metadata"]
    fields = {
        "apiVersion": api_version,
        "kind": kind,
        "namespace": meta.get("namespace"),
        "name": meta["name"],
        "uid": meta.get("uid"),
        "resourceVersion": meta.get("resourceVersion"),
    }
    return {key: value for key, value in fields.items() if value}


def event_about(
    view: View, about: Json, severity: str, reason: str, message: str, component: str
) -> list[ObjectChange]:
    """Record an Event, unless an equal one is recorded and has not expired yet.

    `about`: an ObjectReference. `severity`: Normal or Warning. `component`: the part of a control plane that reports it.
    """
    text = message[:MAX_MESSAGE]
    mark = (
        fnv1a_128("\0".join((about.get("kind", ""), about.get("uid", ""), reason, text)).encode()) & 0xFFFFFFFFFFFFFFFF
    )
    name, namespace = f"{about['name'][:MAX_NAME]}.{mark:016x}", about.get("namespace") or "default"
    if view.get("events", namespace, name) is not None:
        return []
    moment = timestamp(view.now)
    event: Json = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": namespace, "name": name},
        "involvedObject": about,
        "type": severity,
        "reason": reason,
        "message": text,
        "source": {"component": component},
        "reportingComponent": component,
        "count": 1,
        "firstTimestamp": moment,
        "lastTimestamp": moment,
    }
    return [created("events", event)]
