"""Removes the fields of pods that are behind a feature gate that is off, as the API server does.

This runs between the sources and the roster, only if such a gate is off. Unchanged pods remain the same objects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from pykubelet.base.api.core import (
    Container,
    EnvVar,
    EphemeralContainer,
    LifecycleHandler,
    Pod,
    PodSpec,
    Probe,
    ResourceRequirements,
    Volume,
    VolumeProjection,
)
from pykubelet.base.kit.cells import Post
from pykubelet.base.kit.values import Derived, Value, replace
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.node import BIND_OPTIONS
from pykubelet.base.model.restart import ACTION_RESTART_ALL, ALWAYS
from pykubelet.base.model.roster import SourceChanged
from pykubelet.base.model.sizing import QOSClass
from pykubelet.config.settings import Settings

S = TypeVar("S", bound=Struct)
C = TypeVar("C", Container, EphemeralContainer)


class FieldGates(Value):
    """The gates of fields: which fields count.

    `restart_all` and `bind_options` are also True with the gate NodeDeclaredFeatures, in a release that has the feature: admission must
    see such fields to reject the pod (KEP-5328).
    `fixed_qos`: PodLevelResourcesFixKubeletQOSClass; False: empty resources of a pod as a whole count for its QoS class.
    """

    hostname_override: bool = True
    env_files: bool = True
    restart_rules: bool = True
    restart_all: bool = True
    fixed_qos: bool = True
    bind_options: bool = True
    directory_modes: bool = True
    file_owners: bool = True
    http2_probes: bool = True
    tls_probes: bool = True
    claimed: bool = True


def field_gates(settings: Settings) -> FieldGates:
    """The gates from the configuration."""
    declares = settings.enabled("NodeDeclaredFeatures")
    return FieldGates(
        hostname_override=settings.enabled("HostnameOverride"),
        env_files=settings.enabled("EnvFiles"),
        restart_rules=settings.enabled("ContainerRestartRules"),
        restart_all=settings.enabled("RestartAllContainersOnContainerExits") or declares,
        fixed_qos=settings.enabled("PodLevelResourcesFixKubeletQOSClass") or not settings.enabled("PodLevelResources"),
        bind_options=settings.enabled(BIND_OPTIONS) or (declares and settings.gates.knows(BIND_OPTIONS)),
        directory_modes=settings.enabled("EmptyDirVolumeMode"),
        file_owners=settings.enabled("AtomicWriteVolumeUserFields"),
        http2_probes=settings.enabled("H2CContainerProbe"),
        tls_probes=settings.enabled("GRPCContainerProbeTLS"),
        claimed=settings.enabled("DRANodeAllocatableResources"),
    )


ALL_ON = FieldGates()
_EMPTY = ResourceRequirements()


def without_disabled(pod: Pod, gates: FieldGates) -> Pod:
    """The pod without the disabled fields; the same object if it has none of them. Pure."""
    if not gates.fixed_qos and pod.spec.resources == _EMPTY and not pod.status.qosClass:
        pod = replace(pod, status=replace(pod.status, qosClass=QOSClass.BEST_EFFORT.value))
    spec: PodSpec = _with(
        pod.spec,
        containers=_each(pod.spec.containers, lambda c: _restarted(_container(c, gates), gates, is_init=False)),
        initContainers=_each(pod.spec.initContainers, lambda c: _restarted(_container(c, gates), gates, is_init=True)),
        ephemeralContainers=_each(pod.spec.ephemeralContainers, lambda c: _container(c, gates)),
        volumes=_each(pod.spec.volumes, lambda v: _volume(v, gates)),
        hostnameOverride=pod.spec.hostnameOverride if gates.hostname_override else "",
    )
    if not gates.claimed and pod.status.nodeAllocatableResourceClaimStatuses:
        pod = replace(pod, status=replace(pod.status, nodeAllocatableResourceClaimStatuses=()))
    return _with(pod, spec=spec)


def _with(value: S, **fields: Any) -> S:
    """The struct with these fields; the same object if it has them already."""
    changed = {name: new for name, new in fields.items() if (old := getattr(value, name)) is not new and old != new}
    return msgspec.structs.replace(value, **changed) if changed else value


def _each(values: tuple[S, ...], change: Callable[[S], S]) -> tuple[S, ...]:
    """The changed values; the same tuple if none has changed."""
    changed = tuple(map(change, values))
    return values if all(new is old for new, old in zip(changed, values, strict=True)) else changed


def _restarted(container: Container, gates: FieldGates, *, is_init: bool) -> Container:
    """Without the disabled rules for restarts."""
    rules, policy = container.restartPolicyRules, container.restartPolicy
    if rules and not gates.restart_all:
        rules = tuple(rule for rule in rules if rule.action != ACTION_RESTART_ALL)
    if not gates.restart_rules:
        # restartPolicy Always makes an init container a sidecar, which is another feature
        rules, policy = (
            tuple(r for r in rules if r.action == ACTION_RESTART_ALL),
            policy if is_init and policy == ALWAYS else "",
        )
    return _with(container, restartPolicyRules=rules, restartPolicy=policy)


def _container(container: C, gates: FieldGates) -> C:
    """A container without the disabled fields that all kinds of containers have."""
    fields: dict[str, Any] = {}
    if not gates.env_files:
        fields["env"] = _each(container.env, _variable)
    if not gates.bind_options:
        fields["volumeMounts"] = _each(container.volumeMounts, lambda mount: _with(mount, bindMountOptions=()))
    if not (gates.http2_probes and gates.tls_probes):
        for name in ("livenessProbe", "readinessProbe", "startupProbe"):
            fields[name] = _handler(getattr(container, name), gates)
        if (hooks := container.lifecycle) is not None:
            post_start, pre_stop = _handler(hooks.postStart, gates), _handler(hooks.preStop, gates)
            fields["lifecycle"] = _with(hooks, postStart=post_start, preStop=pre_stop)
    return _with(container, **fields)


def _variable(variable: EnvVar) -> EnvVar:
    source = variable.valueFrom
    return replace(variable, valueFrom=None) if source is not None and source.fileKeyRef is not None else variable


def _handler(handler: Any, gates: FieldGates) -> Any:
    """A probe or a hook without the disabled ways to connect."""
    if isinstance(handler, Probe | LifecycleHandler) and handler.httpGet is not None and not gates.http2_probes:
        handler = _with(handler, httpGet=_with(handler.httpGet, protocol=""))
    if isinstance(handler, Probe) and handler.grpc is not None and not gates.tls_probes:
        handler = _with(handler, grpc=_with(handler.grpc, mode=""))
    return handler


def _volume(volume: Volume, gates: FieldGates) -> Volume:
    if volume.emptyDir is not None and not gates.directory_modes:
        return _with(volume, emptyDir=_with(volume.emptyDir, mode=None))
    if gates.file_owners:
        return volume
    if (projected := volume.projected) is not None:
        sources = _each(projected.sources, _projection)
        return _with(volume, projected=_with(projected, defaultUser=None, sources=sources))
    for name in ("secret", "configMap", "downwardAPI"):
        if (source := getattr(volume, name)) is not None:
            changed = _with(source, defaultUser=None, items=_each(source.items, _unowned))
            return _with(volume, **{name: changed})
    return volume


def _projection(source: VolumeProjection) -> VolumeProjection:
    for name in source.__struct_fields__:
        if (held := getattr(source, name)) is not None:
            has_items = hasattr(held, "items")
            changed = _with(held, items=_each(held.items, _unowned)) if has_items else _unowned(held)
            source = _with(source, **{name: changed})
    return source


def _unowned(file: S) -> S:
    """A file of a volume without an owner of its own."""
    return _with(file, user=None)


class GatedPods:
    """Posts the sets of sources to the roster's mailbox, with the disabled fields removed."""

    def __init__(self, out: Post[SourceChanged], gates: FieldGates) -> None:
        self._out = out
        self._gates = gates
        self._known: dict[str, dict[int, tuple[Pod, Pod]]] = {}
        self._by_uid: Derived[PodUID, Pod, Pod] = Derived(lambda pod: without_disabled(pod, gates))

    def post(self, event: SourceChanged) -> None:
        """Post the set to the roster, without the disabled fields."""
        if event.by_uid is not None:
            by_uid = self._by_uid(event.by_uid)
            self._out.post(replace(event, pods=by_uid.values(), by_uid=by_uid))
            return
        before, now = self._known.get(event.source, {}), {}
        for pod in event.pods:
            now[id(pod)] = before.get(id(pod)) or (pod, without_disabled(pod, self._gates))
        self._known[event.source] = now
        # two manifests may be the same object, and each has its origin
        self._out.post(replace(event, pods=tuple(now[id(pod)][1] for pod in event.pods)))
