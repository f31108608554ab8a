"""What a change of a pod may change: its spec, its size, its ephemeral containers. Pure.

Source: the Kubernetes documentation "Pods" (Pod update and replacement), "Resize CPU and Memory Resources assigned to Containers",
"Ephemeral Containers"; KEP-3521 (scheduling gates), KEP-3838 (scheduling directives of gated pods).
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.api.core import Container, EphemeralContainer, NodeSelectorTerm, Pod, PodSpec, ResourceRequirements
from pykubelet.base.kit.values import replace
from pykubelet.base.manifests.validation import validate_pod
from pykubelet.base.manifests.validation.containers import PodFacts, validate_ephemeral_containers
from pykubelet.base.manifests.validation.errors import Errors, forbidden, invalid
from pykubelet.base.model.labels import CONFIG_MIRROR
from pykubelet.base.model.sizing import qos_class
from pykubelet_local_api.objects import Json

_MAY_NOT = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
_NO_RESOURCES = ResourceRequirements()
#: Not an error of a stored pod: at its creation, the selector gets the labels of these keys.
_MERGED = "exists in both matchLabelKeys and labelSelector"
#: The API server prints errors of a pod as a whole with this path.
_WHOLE = "[]"


def update_errors(new: Pod, old: Pod) -> Errors:
    """The wrong fields of a changed pod, and changes of fields that may not change."""
    spec, before = new.spec, old.spec
    errors = _spec_errors(new)
    errors += mirror_errors(new.metadata.annotations, old.metadata.annotations)
    if len(spec.containers) != len(before.containers):
        return [*errors, forbidden("spec.containers", "pod updates may not add or remove containers")]
    if len(spec.initContainers) != len(before.initContainers):
        return [*errors, forbidden("spec.initContainers", "pod updates may not add or remove containers")]
    errors += _deadline_errors(spec, before)
    errors += _toleration_errors(spec, before)
    errors += _gate_errors(spec, before)
    spec, gated_errors = _with_directives_of(before, spec) if before.schedulingGates else (spec, [])
    errors += gated_errors
    allowed = replace(
        spec,
        containers=_with_images(spec.containers, before.containers),
        initContainers=_with_images(spec.initContainers, before.initContainers),
        activeDeadlineSeconds=before.activeDeadlineSeconds,
        tolerations=before.tolerations,
        schedulingGates=before.schedulingGates,
    )
    grace = before.terminationGracePeriodSeconds
    if grace is not None and grace < 0 and spec.terminationGracePeriodSeconds == 1:
        allowed = replace(allowed, terminationGracePeriodSeconds=grace)
    if _plain(allowed) != _plain(before):
        errors.append(forbidden("spec", _MAY_NOT))
    return errors


def _spec_errors(pod: Pod) -> Errors:
    """The rules of new pods; ephemeral containers have rules of their own."""
    found = validate_pod(replace(pod, spec=replace(pod.spec, ephemeralContainers=())))
    return [error for error in found if not error.path.startswith("metadata") and error.detail != _MERGED]


def mirror_errors(new: Mapping[str, str], old: Mapping[str, str]) -> Errors:
    """A change of the annotation of mirror pods, which no client may make: neither with the spec nor with the status."""
    after, before = new.get(CONFIG_MIRROR), old.get(CONFIG_MIRROR)
    path = f"metadata.annotations[{CONFIG_MIRROR}]"
    if after == before:
        return []
    if before is None:
        return [forbidden(path, "may not add mirror pod annotation")]
    return [forbidden(path, "may not remove or update mirror pod annotation")]


def _with_images(containers: tuple[Container, ...], before: tuple[Container, ...]) -> tuple[Container, ...]:
    return tuple(replace(new, image=old.image) for new, old in zip(containers, before, strict=True))


def _plain(spec: PodSpec) -> PodSpec:
    """The spec without the difference between what is empty and what is not there."""
    return replace(
        spec,
        containers=tuple(_plain_container(item) for item in spec.containers),
        initContainers=tuple(_plain_container(item) for item in spec.initContainers),
        hostNetwork=spec.hostNetwork or None,
        hostPID=spec.hostPID or None,
        hostIPC=spec.hostIPC or None,
    )


def _plain_container(container: Container) -> Container:
    return replace(
        container,
        resources=container.resources or _NO_RESOURCES,
        stdin=container.stdin or None,
        stdinOnce=container.stdinOnce or None,
        tty=container.tty or None,
    )


def _deadline_errors(spec: PodSpec, before: PodSpec) -> Errors:
    path = "spec.activeDeadlineSeconds"
    after, old = spec.activeDeadlineSeconds, before.activeDeadlineSeconds
    if old is None or after == old:
        return []
    if after is None:
        return [invalid(path, None, "must not update from a positive integer to nil value")]
    return [invalid(path, after, "must be less than or equal to previous value")] if after > old else []


def _toleration_errors(spec: PodSpec, before: PodSpec) -> Errors:
    def keys(of: PodSpec) -> set[tuple[str, str, str, str]]:
        return {
            (item.key, item.operator or "Equal", item.value, item.effect)
            for item in of.tolerations
            if item.effect != "NoExecute" or item.tolerationSeconds is not None or of is spec
        }

    if keys(before) <= keys(spec):
        return []
    return [forbidden("spec.tolerations", "existing toleration can not be modified except its tolerationSeconds")]


def _gate_errors(spec: PodSpec, before: PodSpec) -> Errors:
    old = {gate.name for gate in before.schedulingGates}
    return [
        forbidden(
            f"spec.schedulingGates[{i}].name", f"only deletion is allowed, but found new scheduling gate '{gate.name}'"
        )
        for i, gate in enumerate(spec.schedulingGates)
        if gate.name not in old
    ]


def _with_directives_of(before: PodSpec, spec: PodSpec) -> tuple[PodSpec, Errors]:
    """The spec of a gated pod with the old node selector and node affinity, where the new ones only add to them."""
    errors: Errors = []
    if not before.nodeSelector.items() <= spec.nodeSelector.items():
        detail = "only additions to spec.nodeSelector are allowed (no mutations or deletions)"
        errors.append(invalid("spec.nodeSelector", spec.nodeSelector, detail))
    errors += _affinity_errors(spec, before)
    affinity = before.affinity
    if (
        affinity is None
        and spec.affinity is not None
        and not (spec.affinity.podAffinity or spec.affinity.podAntiAffinity)
    ):
        return replace(spec, nodeSelector=before.nodeSelector, affinity=None), errors
    if affinity is not None and spec.affinity is not None:
        affinity = replace(spec.affinity, nodeAffinity=affinity.nodeAffinity)
    elif (
        affinity is not None
        and affinity.nodeAffinity is not None
        and not (affinity.podAffinity or affinity.podAntiAffinity)
    ):
        affinity = before.affinity
    else:
        affinity = spec.affinity
    return replace(spec, nodeSelector=before.nodeSelector, affinity=affinity), errors


def _terms(spec: PodSpec) -> tuple[NodeSelectorTerm, ...]:
    affinity = spec.affinity.nodeAffinity if spec.affinity is not None else None
    wanted = affinity.requiredDuringSchedulingIgnoredDuringExecution if affinity is not None else None
    return wanted.nodeSelectorTerms if wanted is not None else ()


def _affinity_errors(spec: PodSpec, before: PodSpec) -> Errors:
    old, new = _terms(before), _terms(spec)
    path = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
    if not old:
        return []
    if len(old) != len(new):
        detail = "no additions/deletions to non-empty NodeSelectorTerms list are allowed"
        return [invalid(path, new or None, detail)]
    errors: Errors = []
    for i, (term, was) in enumerate(zip(new, old, strict=True)):
        kept = was.matchExpressions == term.matchExpressions[: len(was.matchExpressions)]
        if not kept or was.matchFields != term.matchFields[: len(was.matchFields)]:
            errors.append(invalid(f"{path}[{i}]", term, "only additions are allowed (no mutations or deletions)"))
    return errors


# The size of a pod

_SIZES = ("cpu", "memory")


def keep_all_but_resources(new: Json, old: Json) -> None:
    """Make `new` the old pod, with the resources that `new` has; containers are found by their names."""
    spec = dict(old["spec"])
    for field in ("containers", "initContainers"):
        if field not in spec:
            continue
        wanted = {item.get("name"): item for item in new["spec"].get(field) or ()}
        same = [item.get("name") for item in spec[field]] == list(wanted)
        if not same:
            spec[field] = new["spec"].get(field) or []
            continue
        kept = ("resources", "resizePolicy")
        spec[field] = [
            {key: part for key, part in item.items() if key not in kept}
            | {key: wanted[item["name"]][key] for key in kept if key in wanted[item["name"]]}
            for item in spec[field]
        ]
    spec.pop("resources", None)
    if "resources" in new["spec"]:
        spec["resources"] = new["spec"]["resources"]
    _replace(new, old, spec)


def _replace(new: Json, old: Json, spec: Json) -> None:
    meta = dict(old["metadata"])
    for field in ("resourceVersion", "managedFields"):
        if field in new["metadata"]:
            meta[field] = new["metadata"][field]
    # the same dict: the registry goes on with it
    new["metadata"].clear()
    new["metadata"].update(meta)
    new["spec"], new["status"] = spec, old.get("status") or {}


def resize_errors(new: Pod, old: Pod, statuses: Json) -> Errors:
    """The wrong fields of a pod of another size. `statuses`: the status of the old pod."""
    if CONFIG_MIRROR in old.metadata.annotations:
        return [forbidden(_WHOLE, "static pods cannot be resized")]
    errors = _spec_errors(new)
    if qos_class(new) != qos_class(old):
        errors.append(invalid("spec", str(qos_class(old)), "Pod QOS Class may not change as a result of resizing"))
    if not _supports_resize(statuses):
        errors.append(forbidden("spec", "Pod running on node without support for resize"))
    spec, before = new.spec, old.spec
    for field in ("containers", "initContainers"):
        if [item.name for item in getattr(spec, field)] != [item.name for item in getattr(before, field)]:
            what = "containers" if field == "containers" else "init containers"
            errors.append(forbidden(f"spec.{field}", f"{what} may not be added or removed on resize"))
            return errors
    errors += _removal_errors(spec, before)
    if _beside_sizes(spec) != _beside_sizes(before):
        errors.append(forbidden("spec", "only cpu and memory resources are mutable"))
    return errors


def _supports_resize(statuses: Json) -> bool:
    running = [item for item in statuses.get("containerStatuses") or () if "running" in (item.get("state") or {})]
    return not running or running[0].get("resources") is not None


def _removal_errors(spec: PodSpec, before: PodSpec) -> Errors:
    errors: Errors = []
    for field in ("containers", "initContainers"):
        for i, (item, was) in enumerate(zip(getattr(spec, field), getattr(before, field), strict=True)):
            at = f"spec.{field}[{i}].resources"
            errors += _removed(item.resources, was.resources, at, "resource ")
    return errors + _removed(spec.resources, before.resources, "spec.resources", "pod-level resource ")


def _removed(new: ResourceRequirements | None, old: ResourceRequirements | None, path: str, what: str) -> Errors:
    after, before = new or _NO_RESOURCES, old or _NO_RESOURCES
    errors: Errors = []
    for field in ("requests", "limits"):
        gone = set(getattr(before, field)) - set(getattr(after, field))
        if gone & set(_SIZES):
            errors.append(forbidden(f"{path}.{field}", f"{what}{field} cannot be removed"))
    return errors


def _beside_sizes(spec: PodSpec) -> PodSpec:
    """The spec without what a resize may change."""

    def without(resources: ResourceRequirements | None) -> ResourceRequirements | None:
        found = resources or _NO_RESOURCES
        return replace(found, requests=_others(found.requests), limits=_others(found.limits))

    return replace(
        _plain(spec),
        containers=tuple(replace(item, resources=without(item.resources)) for item in spec.containers),
        initContainers=tuple(replace(item, resources=without(item.resources)) for item in spec.initContainers),
        resources=without(spec.resources),
    )


def _others(amounts: Mapping[str, str | int | float]) -> dict[str, str | int | float]:
    return {name: amount for name, amount in amounts.items() if name not in _SIZES}


# Ephemeral containers


def keep_all_but_ephemeral(new: Json, old: Json) -> None:
    """Make `new` the old pod, with the ephemeral containers that `new` has."""
    spec = dict(old["spec"])
    spec.pop("ephemeralContainers", None)
    if found := new["spec"].get("ephemeralContainers"):
        spec["ephemeralContainers"] = found
    _replace(new, old, spec)


def ephemeral_errors(new: Pod, old: Pod) -> Errors:
    """The wrong fields of added ephemeral containers, and changes of the others."""
    if CONFIG_MIRROR in old.metadata.annotations:
        return [forbidden(_WHOLE, "static pods do not support ephemeral containers")]
    spec, path = new.spec, "spec.ephemeralContainers"
    volumes = {volume.name: volume for volume in spec.volumes}
    facts = PodFacts(spec, volumes, {claim.name for claim in spec.resourceClaims})
    errors = validate_ephemeral_containers(facts, path)
    found: dict[str, EphemeralContainer] = {item.name: item for item in spec.ephemeralContainers}
    for was in old.spec.ephemeralContainers:
        now = found.get(was.name)
        if now is None:
            errors.append(forbidden(path, f'existing ephemeral containers "{was.name}" may not be removed'))
        elif replace(now, resources=None) != replace(was, resources=None):
            errors.append(forbidden(path, f'existing ephemeral containers "{was.name}" may not be changed'))
    return errors
