"""Pods: defaults, validation and what each subresource may change. Pure.

A pod is read into the structs that static pods use, which drops fields that Kubernetes does not have, and written back.
Source: the API reference of Pod; the Kubernetes documentation "Pods" (Pod update and replacement, Pod subresources).
"""

from __future__ import annotations

from typing import Any

from pykubelet.base.api.codec import to_object
from pykubelet.base.api.core import Pod
from pykubelet.base.manifests.defaults import default_pod
from pykubelet.base.manifests.validation import validate_pod
from pykubelet.base.manifests.validation.errors import Errors
from pykubelet.base.model.sizing import qos_class
from pykubelet_local_api.objects import Json, timestamp
from pykubelet_local_api.strategies.common import (
    ObjectStrategy,
    admit_namespace,
    distinct,
    struct_of,
)
from pykubelet_local_api.strategies.node_restriction import admit_pod_deletion, restrict_pod, restrict_pod_status
from pykubelet_local_api.strategies.pod_admission import (
    add_topology_labels,
    admit_pod,
    admit_pod_change,
    merge_label_keys,
)
from pykubelet_local_api.strategies.pod_security import admit_security, security_warnings
from pykubelet_local_api.strategies.pod_status import complete_ips, status_errors
from pykubelet_local_api.strategies.pod_updates import (
    ephemeral_errors,
    keep_all_but_ephemeral,
    keep_all_but_resources,
    mirror_errors,
    resize_errors,
    update_errors,
)
from pykubelet_local_api.strategies.pod_warnings import api_warnings
from pykubelet_local_api.strategies.strategy import Context

_GATED = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "SchedulingGated",
    "message": "Scheduling is blocked due to non-empty scheduling gates",
}
#: Flags that an API server does not store if they are false, by the part of the spec.
_POD_FLAGS = ("hostNetwork", "hostPID", "hostIPC")
_CONTAINER_FLAGS = ("stdin", "stdinOnce", "tty")
_CONTAINER_LISTS = ("containers", "initContainers", "ephemeralContainers")
_READ_ONLY_SOURCES = (
    *("persistentVolumeClaim", "nfs", "iscsi", "rbd", "cephfs", "cinder", "fc", "azureFile", "flexVolume"),
    *("glusterfs", "quobyte", "portworxVolume", "scaleIO", "storageos"),
)


class PodStrategy(ObjectStrategy):
    """The strategy of pods."""

    has_generation = True
    is_graceful = True

    def is_new_generation(self, new: Json, old: Json) -> bool:
        """Whether the spec changed, otherwise than by a binding."""
        return bool(_unbound(new["spec"]) != _unbound(old["spec"]))

    def grace_s(self, old: Json, asked: int | None) -> int:
        spec, status = old["spec"], old.get("status") or {}
        if not spec.get("nodeName") or status.get("phase") in ("Failed", "Succeeded"):
            return 0
        grace = asked if asked is not None else spec.get("terminationGracePeriodSeconds") or 0
        return 1 if grace < 0 else int(grace)

    def prepare_delete(self, new: Json, context: Context) -> None:
        admit_pod_deletion(self.kind, new, context)

    def default(self, new: Json, old: Json | None, context: Context) -> None:
        _defaulted(self, new)

    def prepare_create(self, new: Json, context: Context) -> None:
        new.setdefault("metadata", {})
        admit_namespace(self.kind, new, context)
        new.pop("status", None)
        pod = _defaulted(self, new)
        _set_least_grace(new["spec"])
        admit_pod(self.kind, new, context)
        restrict_pod(self.kind, new, context)
        new["status"] = {"phase": "Pending", "qosClass": str(qos_class(pod))}
        if new["spec"].get("schedulingGates"):
            now = timestamp(context.view.now)
            new["status"]["conditions"] = [_GATED | {"lastProbeTime": None, "lastTransitionTime": now}]

    def prepare_update(self, new: Json, old: Json, context: Context) -> None:
        match context.subresource:
            case "status":
                new["spec"] = old["spec"]
                _keep_owners(new, old)
                restrict_pod_status(self.kind, new, old, context)
                _keep_status_fields(new.setdefault("status", {}), old.get("status") or {})
            case "binding":
                add_topology_labels(new, str(new["spec"].get("nodeName") or ""), context)
            case "ephemeralcontainers":
                _defaulted(self, new)
                keep_all_but_ephemeral(new, old)
            case "resize":
                _defaulted(self, new)
                keep_all_but_resources(new, old)
            case _:
                new["status"] = old.get("status") or {}
                _defaulted(self, new)
                _set_least_grace(new["spec"])
                admit_pod_change(new["spec"], old["spec"])

    def validate_create(self, new: Json, context: Context) -> Errors:
        pod = struct_of(Pod, {"metadata": new["metadata"], "spec": new["spec"]}, self.kind)
        errors = [error for error in validate_pod(pod) if error.path not in ("metadata.name", "metadata.namespace")]
        if not errors:
            merge_label_keys(new)
            admit_security(self.kind, new, context)
        return errors

    def validate_update(self, new: Json, old: Json, context: Context) -> Errors:
        errors = self.metadata_errors(new)
        match context.subresource:
            case "status":
                errors += mirror_errors(*(item["metadata"].get("annotations") or {} for item in (new, old)))
                return errors + status_errors(new, old)
            case "binding":
                return errors
            case "ephemeralcontainers":
                errors += ephemeral_errors(_read(self, new), _read(self, old))
            case "resize":
                errors += resize_errors(_read(self, new), _read(self, old), old.get("status") or {})
            case _:
                errors += update_errors(_read(self, new), _read(self, old))
        if not errors and context.subresource in ("", "ephemeralcontainers") and new["spec"] != old["spec"]:
            admit_security(self.kind, new, context)
        return distinct(errors)

    def warnings(self, new: Json, old: Json | None, context: Context) -> list[str]:
        if context.subresource == "status":
            return []
        return api_warnings(new) + security_warnings(new, context)


def _read(strategy: PodStrategy, new: Json) -> Pod:
    return struct_of(Pod, {"metadata": new["metadata"], "spec": new.get("spec") or {}}, strategy.kind)


def _defaulted(strategy: PodStrategy, new: Json) -> Pod:
    """The pod with its defaults, which `new` gets too."""
    pod = default_pod(_read(strategy, new))
    new["spec"] = stored_spec(to_object(pod.spec))
    return pod


def stored_spec(spec: Json) -> Json:
    """A spec as an API server stores it: a container always has `resources`, and flags without a meaning of their own are left out.

    `spec` is changed.
    """
    _without_false(spec, _POD_FLAGS)
    for field in _CONTAINER_LISTS:
        for container in spec.get(field) or ():
            container.setdefault("resources", {})
            _without_false(container, _CONTAINER_FLAGS)
            for mount in container.get("volumeMounts") or ():
                _without_false(mount, ("readOnly",))
    for volume in spec.get("volumes") or ():
        for source in _READ_ONLY_SOURCES:
            if source in volume:
                _without_false(volume[source], ("readOnly",))
        if "hostPath" in volume:
            volume["hostPath"].setdefault("type", "")
        if template := (volume.get("ephemeral") or {}).get("volumeClaimTemplate"):
            template.setdefault("metadata", {})
    return spec


def _unbound(spec: Json) -> Json:
    return {field: part for field, part in spec.items() if field != "nodeName"}


def _without_false(part: dict[str, Any], fields: tuple[str, ...]) -> None:
    for field in fields:
        if part.get(field) is False:
            del part[field]


def _keep_owners(new: Json, old: Json) -> None:
    if owners := old["metadata"].get("ownerReferences"):
        new["metadata"]["ownerReferences"] = owners
    else:
        new["metadata"].pop("ownerReferences", None)


def _keep_status_fields(new: Json, old: Json) -> None:
    """What a client that does not know a field leaves out of a status."""
    if not new.get("qosClass") and old.get("qosClass"):
        new["qosClass"] = old["qosClass"]
    complete_ips(new)
    for field in ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"):
        for found in new.get(field) or ():
            found.setdefault("state", {})
            found.setdefault("lastState", {})


def _set_least_grace(spec: Json) -> None:
    """A negative grace period is one of a second."""
    if (spec.get("terminationGracePeriodSeconds") or 0) < 0:
        spec["terminationGracePeriodSeconds"] = 1
