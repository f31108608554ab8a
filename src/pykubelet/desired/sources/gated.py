"""Removes the fields of pods that are behind a feature gate that is off, as the API server does.

This runs between the sources and the roster, only if such a gate is off. Unchanged pods remain the same objects.
"""

from __future__ import annotations

from pykubelet.base.api.core import Container, EnvVar, Pod, ResourceRequirements
from pykubelet.base.kit.mailbox import Post
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.restart import ACTION_RESTART_ALL, ALWAYS
from pykubelet.base.model.roster import SourceChanged
from pykubelet.base.model.sizing import QOSClass
from pykubelet.config.settings import Settings


class FieldGates(Value):
    """The gates HostnameOverride, EnvFiles, ContainerRestartRules and RestartAllContainersOnContainerExits.

    `restart_all` is also True with the gate NodeDeclaredFeatures: admission must see such rules to reject the pod (KEP-5328).
    `fixed_qos`: PodLevelResourcesFixKubeletQOSClass; False: empty resources of a pod as a whole count for its QoS class.
    """

    hostname_override: bool = True
    env_files: bool = True
    restart_rules: bool = True
    restart_all: bool = True
    fixed_qos: bool = True


def field_gates(settings: Settings) -> FieldGates:
    """The gates from the configuration."""
    return FieldGates(
        hostname_override=settings.enabled("HostnameOverride"),
        env_files=settings.enabled("EnvFiles"),
        restart_rules=settings.enabled("ContainerRestartRules"),
        restart_all=settings.enabled("RestartAllContainersOnContainerExits")
        or settings.enabled("NodeDeclaredFeatures"),
        fixed_qos=settings.enabled("PodLevelResourcesFixKubeletQOSClass") or not settings.enabled("PodLevelResources"),
    )


ALL_ON = FieldGates()
_EMPTY = ResourceRequirements()


def without_disabled(pod: Pod, gates: FieldGates) -> Pod:
    """The pod without the disabled fields; the same object if it has none of them. Pure."""
    if not gates.fixed_qos and pod.spec.resources == _EMPTY and not pod.status.qosClass:
        pod = replace(pod, status=replace(pod.status, qosClass=QOSClass.BEST_EFFORT.value))
    spec = pod.spec
    containers = tuple(_container(c, gates, is_init=False) for c in spec.containers)
    inits = tuple(_container(c, gates, is_init=True) for c in spec.initContainers)
    hostname = spec.hostnameOverride if gates.hostname_override else ""
    if (containers, inits, hostname) == (spec.containers, spec.initContainers, spec.hostnameOverride):
        return pod
    return replace(pod, spec=replace(spec, containers=containers, initContainers=inits, hostnameOverride=hostname))


def _container(container: Container, gates: FieldGates, *, is_init: bool) -> Container:
    rules, policy = container.restartPolicyRules, container.restartPolicy
    if not gates.restart_all:
        rules = tuple(rule for rule in rules if rule.action != ACTION_RESTART_ALL)
    if not gates.restart_rules:
        # restartPolicy Always makes an init container a sidecar, which is another feature
        rules, policy = (
            tuple(r for r in rules if r.action == ACTION_RESTART_ALL),
            policy if is_init and policy == ALWAYS else "",
        )
    env = container.env if gates.env_files else tuple(map(_variable, container.env))
    return replace(container, env=env, restartPolicyRules=rules, restartPolicy=policy)


def _variable(variable: EnvVar) -> EnvVar:
    source = variable.valueFrom
    return replace(variable, valueFrom=None) if source is not None and source.fileKeyRef is not None else variable


class GatedPods:
    """Posts the sets of sources to the roster's mailbox, with the disabled fields removed."""

    def __init__(self, out: Post[SourceChanged], gates: FieldGates) -> None:
        self._out = out
        self._gates = gates
        self._known: dict[str, dict[int, tuple[Pod, Pod]]] = {}

    def post(self, event: SourceChanged) -> None:
        """Post the set to the roster, without the disabled fields."""
        before, now = self._known.get(event.source, {}), {}
        for pod in event.pods:
            now[id(pod)] = before.get(id(pod)) or (pod, without_disabled(pod, self._gates))
        self._known[event.source] = now
        self._out.post(replace(event, pods=tuple(gated for _, gated in now.values())))
