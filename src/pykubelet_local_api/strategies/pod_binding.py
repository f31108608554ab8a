"""Binding of a pod to a node, and the marks of an eviction. Pure.

Source: the Kubernetes documentation "Kubernetes Scheduler" and "API-initiated Eviction"; the API reference of Binding and Eviction.
"""

from __future__ import annotations

from pykubelet_local_api.errors import StatusError, bad_request, conflict, not_found
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.kinds.table import BY_TYPE
from pykubelet_local_api.objects import Json, copied, timestamp
from pykubelet_local_api.strategies.strategy import Context

PODS = BY_TYPE["v1", "Pod"]
EVICTION = ("policy/v1", "Eviction")
_PHASES_ENDED = ("Failed", "Succeeded")


def bound(old: Json | None, binding: Json, name: str, context: Context) -> Json:
    """The pod with the node that `binding` names. `name`: of the pod, in the URL. Raises `StatusError`."""
    meta, target = binding.get("metadata") or {}, binding.get("target") or {}
    if meta.get("name") != name:
        raise bad_request("name in URL does not match name in Binding object")
    if target.get("kind") not in (None, "", "Node"):
        wrong = f'target.kind: Unsupported value: "{target["kind"]}": supported values: "Node", "<empty>"'
        raise StatusError(500, "", wrong)
    if not target.get("name"):
        raise StatusError(500, "", "target.name: Required value")
    if old is None:
        raise not_found(PODS, name)
    if meta.get("uid") and meta["uid"] != old["metadata"]["uid"]:
        why = f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: {old['metadata']['uid']}"
        raise conflict(PODS, name, why)
    shown = _subresource("pods/binding")
    if old["metadata"].get("deletionTimestamp"):
        raise conflict(shown, name, f"pod {name} is being deleted, cannot be assigned to a host")
    if node := old["spec"].get("nodeName"):
        raise conflict(shown, name, f'pod {name} is already assigned to node "{node}"')
    if old["spec"].get("schedulingGates"):
        raise conflict(shown, name, f"pod {name} has non-empty .spec.schedulingGates")
    new = copied(old)
    new["spec"]["nodeName"] = target["name"]
    for field in ("annotations", "labels"):
        if meta.get(field):
            new["metadata"][field] = (new["metadata"].get(field) or {}) | meta[field]
    set_condition(new, {"type": "PodScheduled", "status": "True"}, context.view.now)
    new["status"].pop("nominatedNodeName", None)
    return new


def _subresource(shown: str) -> ResourceKind:
    return ResourceKind("", "v1", "Pod", shown)


def set_condition(pod: Json, condition: Json, now: float) -> None:
    """Set a condition of a pod's status, with the time of its last change. `pod` is changed."""
    status = pod.setdefault("status", {})
    listed = [dict(item) for item in status.get("conditions") or ()]
    before = next((item for item in listed if item["type"] == condition["type"]), None)
    is_same = before is not None and before["status"] == condition["status"]
    since = before["lastTransitionTime"] if before is not None and is_same else timestamp(now)
    found = condition | {"lastProbeTime": None, "lastTransitionTime": since}
    status["conditions"] = [found if item["type"] == condition["type"] else item for item in listed]
    if before is None:
        status["conditions"].append(found)


def check_eviction(old: Json | None, eviction: Json, name: str) -> Json:
    """The options with which the pod is to be deleted. `name`: of the pod, in the URL. Raises `StatusError`.

    There are no disruption budgets here, so nothing else can refuse an eviction.
    """
    given = (str(eviction.get("apiVersion") or EVICTION[0]), str(eviction.get("kind") or EVICTION[1]))
    if given != EVICTION:
        raise bad_request(
            f'{given[1]} in version "{given[0]}" cannot be handled as a Eviction: '
            f'no kind "{given[1]}" is registered for version "{given[0]}"'
        )
    if (eviction.get("metadata") or {}).get("name") != name:
        raise bad_request("name in URL does not match name in Eviction object")
    if old is None:
        raise not_found(PODS, name)
    options = eviction.get("deleteOptions") or {}
    if not isinstance(options, dict):
        raise bad_request("deleteOptions is not an object")
    wanted = (options.get("preconditions") or {}).get("uid")
    if wanted and wanted != old["metadata"]["uid"]:
        why = (
            f"the UID in the precondition ({wanted}) does not match the UID in record ({old['metadata']['uid']}). "
            "The object might have been deleted and then recreated"
        )
        raise conflict(ResourceKind("", "v1", "Pod", "Pod"), name, why)
    return options


def marked_for_eviction(old: Json, now: float) -> Json:
    """The pod with the condition that states why it is deleted; a pod that has ended gets none."""
    new = copied(old)
    if (old.get("status") or {}).get("phase") not in _PHASES_ENDED:
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
        }
        set_condition(new, condition, now)
    return new
