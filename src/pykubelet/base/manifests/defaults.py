"""Defaulting of pods, persistent volumes, claims and CSI drivers as kube-apiserver 1.36 does it. Pure: returns the object.

Owns: what an absent field means. Does not own: admission (service accounts, priorities), which is the cluster's task, and
validation: a quantity or image name that cannot be parsed stays as it is, and validation reports it.
Source: the API reference, "default" notes of each kind; KEP-2837 for resources of the pod as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from pykubelet.base.api import core
from pykubelet.base.api.quantity import (
    HUGE_PAGES,
    POD_LEVEL,
    Amount,
    QuantityError,
    is_pod_level,
    parse,
    sum_container_limits,
    sum_container_requests,
)
from pykubelet.base.api.storage import CSIDriver, PersistentVolume, PersistentVolumeClaim
from pykubelet.base.kit.values import replace

DEFAULT_MODE = 0o644
TERMINATION_LOG = "/dev/termination-log"
GRACE_S = 30
SCHEDULER = "default-scheduler"
TOKEN_S = 3600

C = TypeVar("C", core.Container, core.EphemeralContainer)
H = TypeVar("H", core.Probe, core.LifecycleHandler)
S = TypeVar("S")

_COMPONENT = r"[a-z0-9]+(?:(?:[._]|__|[-]+)[a-z0-9]+)*"
_HOST = r"(?:(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])(?:\.(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9]))*|\[[0-9a-fA-F:]+\])(?::\d+)?"  # noqa: E501
_IMAGE = re.compile(
    rf"(?:{_HOST}/)?{_COMPONENT}(?:/{_COMPONENT})*(?::(?P<tag>\w[\w.-]{{0,127}}))?"
    r"(?P<digest>@[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,})?",
    re.ASCII,
)


def default_pull_policy(image: str) -> str:
    """`Always` if the tag is `latest` or if tag and digest are missing; else `IfNotPresent`."""
    match = _IMAGE.fullmatch(image)
    if match is None:
        return "IfNotPresent"
    newest = match["tag"] == "latest" or not (match["tag"] or match["digest"])
    return "Always" if newest else "IfNotPresent"


def default_pod(pod: core.Pod) -> core.Pod:
    """The pod with all defaults. A pod that has all of them already is returned equal."""
    spec = pod.spec
    spec = replace(
        spec,
        containers=tuple(_default_requests(_default_container(item)) for item in spec.containers),
        initContainers=tuple(_default_requests(_default_container(item)) for item in spec.initContainers),
        ephemeralContainers=tuple(_default_container(item) for item in spec.ephemeralContainers),
        volumes=tuple(_default_volume(volume) for volume in spec.volumes),
        overhead=_rounded(spec.overhead),
        dnsPolicy=spec.dnsPolicy or "ClusterFirst",
        restartPolicy=spec.restartPolicy or "Always",
        schedulerName=spec.schedulerName or SCHEDULER,
        securityContext=spec.securityContext or core.PodSecurityContext(),
        terminationGracePeriodSeconds=_or(spec.terminationGracePeriodSeconds, GRACE_S),
        enableServiceLinks=_or(spec.enableServiceLinks, True),
        serviceAccountName=spec.serviceAccountName or spec.serviceAccount,
        serviceAccount=spec.serviceAccountName or spec.serviceAccount,
    )
    spec = _default_pod_resources(spec)
    if spec.hostNetwork:
        spec = replace(
            spec,
            containers=tuple(_default_host_ports(item) for item in spec.containers),
            initContainers=tuple(_default_host_ports(item) for item in spec.initContainers),
        )
    return replace(pod, apiVersion="v1", kind="Pod", spec=spec)


def _or(value: S | None, default: S) -> S:
    return default if value is None else value


def _rounded(listed: dict[str, core.Quantity]) -> dict[str, core.Quantity]:
    """Amounts in their canonical spelling, no finer than thousandths."""
    amounts: dict[str, core.Quantity] = {}
    for name, quantity in listed.items():
        try:
            amounts[name] = str(parse(quantity).rounded_to_milli())
        except QuantityError:
            amounts[name] = quantity
    return amounts


def _default_container(container: C) -> C:
    resources = container.resources
    if resources is not None:
        resources = replace(resources, limits=_rounded(resources.limits), requests=_rounded(resources.requests))
    return replace(
        container,
        imagePullPolicy=container.imagePullPolicy or default_pull_policy(container.image),
        terminationMessagePath=container.terminationMessagePath or TERMINATION_LOG,
        terminationMessagePolicy=container.terminationMessagePolicy or "File",
        ports=tuple(replace(port, protocol=port.protocol or "TCP") for port in container.ports),
        env=tuple(_default_env(variable) for variable in container.env),
        livenessProbe=_default_probe(container.livenessProbe),
        readinessProbe=_default_probe(container.readinessProbe),
        startupProbe=_default_probe(container.startupProbe),
        lifecycle=_default_lifecycle(container.lifecycle),
        resources=resources,
    )


def _default_env(variable: core.EnvVar) -> core.EnvVar:
    source = variable.valueFrom
    if source is None or source.fieldRef is None or source.fieldRef.apiVersion:
        return variable
    return replace(variable, valueFrom=replace(source, fieldRef=replace(source.fieldRef, apiVersion="v1")))


def _default_handler(handler: H) -> H:
    if handler.httpGet is None:
        return handler
    get = handler.httpGet
    return replace(handler, httpGet=replace(get, path=get.path or "/", scheme=get.scheme or "HTTP"))


def _default_probe(probe: core.Probe | None) -> core.Probe | None:
    if probe is None:
        return None
    return replace(
        _default_handler(probe),
        timeoutSeconds=probe.timeoutSeconds or 1,
        periodSeconds=probe.periodSeconds or 10,
        successThreshold=probe.successThreshold or 1,
        failureThreshold=probe.failureThreshold or 3,
    )


def _default_lifecycle(lifecycle: core.Lifecycle | None) -> core.Lifecycle | None:
    if lifecycle is None:
        return None
    return replace(
        lifecycle,
        postStart=lifecycle.postStart and _default_handler(lifecycle.postStart),
        preStop=lifecycle.preStop and _default_handler(lifecycle.preStop),
    )


def _default_requests(container: core.Container) -> core.Container:
    """Set missing requests to the limits."""
    resources = container.resources
    if resources is None or not resources.limits:
        return container
    return replace(container, resources=replace(resources, requests={**resources.limits, **resources.requests}))


def _default_host_ports(container: core.Container) -> core.Container:
    ports = tuple(replace(port, hostPort=port.hostPort or port.containerPort) for port in container.ports)
    return replace(container, ports=ports)


def _default_field_files(files: tuple[core.DownwardAPIVolumeFile, ...]) -> tuple[core.DownwardAPIVolumeFile, ...]:
    return tuple(
        replace(file, fieldRef=replace(file.fieldRef, apiVersion=file.fieldRef.apiVersion or "v1"))
        if file.fieldRef is not None
        else file
        for file in files
    )


def _default_projection(source: core.VolumeProjection) -> core.VolumeProjection:
    if source.downwardAPI is not None:
        items = _default_field_files(source.downwardAPI.items)
        source = replace(source, downwardAPI=replace(source.downwardAPI, items=items))
    token = source.serviceAccountToken
    if token is not None and token.expirationSeconds is None:
        source = replace(source, serviceAccountToken=replace(token, expirationSeconds=TOKEN_S))
    return source


def _default_secret(source: core.SecretVolumeSource) -> core.SecretVolumeSource:
    return replace(source, defaultMode=_or(source.defaultMode, DEFAULT_MODE))


def _default_config_map(source: core.ConfigMapVolumeSource) -> core.ConfigMapVolumeSource:
    return replace(source, defaultMode=_or(source.defaultMode, DEFAULT_MODE))


def _default_downward(source: core.DownwardAPIVolumeSource) -> core.DownwardAPIVolumeSource:
    items = _default_field_files(source.items)
    return replace(source, defaultMode=_or(source.defaultMode, DEFAULT_MODE), items=items)


def _default_projected(source: core.ProjectedVolumeSource) -> core.ProjectedVolumeSource:
    sources = tuple(_default_projection(item) for item in source.sources)
    return replace(source, defaultMode=_or(source.defaultMode, DEFAULT_MODE), sources=sources)


def _default_image(source: core.ImageVolumeSource) -> core.ImageVolumeSource:
    return replace(source, pullPolicy=source.pullPolicy or default_pull_policy(source.reference))


def _default_ephemeral(source: core.EphemeralVolumeSource) -> core.EphemeralVolumeSource:
    template = source.volumeClaimTemplate
    if template is None:
        return source
    claim = replace(template.spec, volumeMode=template.spec.volumeMode or "Filesystem")
    if claim.resources is not None:
        listed = claim.resources
        listed = replace(listed, limits=_rounded(listed.limits), requests=_rounded(listed.requests))
        claim = replace(claim, resources=listed)
    return replace(source, volumeClaimTemplate=replace(template, spec=claim))


def _default_iscsi(source: core.ISCSIVolumeSource) -> core.ISCSIVolumeSource:
    return replace(source, iscsiInterface=source.iscsiInterface or "default")


def _default_rbd(source: core.RBDVolumeSource) -> core.RBDVolumeSource:
    return replace(
        source,
        pool=source.pool or "rbd",
        user=source.user or "admin",
        keyring=source.keyring or "/etc/ceph/keyring",
    )


def _default_scale_io(source: core.ScaleIOVolumeSource) -> core.ScaleIOVolumeSource:
    return replace(source, storageMode=source.storageMode or "ThinProvisioned", fsType=source.fsType or "xfs")


def _default_azure_disk(source: core.AzureDiskVolumeSource) -> core.AzureDiskVolumeSource:
    return replace(
        source,
        cachingMode=source.cachingMode or "ReadWrite",
        kind=source.kind or "Shared",
        fsType=source.fsType or "ext4",
        readOnly=bool(source.readOnly),
    )


def _default_volume(volume: core.Volume) -> core.Volume:
    """Fill in the defaults of a volume's source. A volume without a source becomes an `emptyDir`."""
    if all(getattr(volume, field) is None for field in _SOURCES):
        return replace(volume, emptyDir=core.EmptyDirVolumeSource())
    return replace(
        volume,
        secret=_if(volume.secret, _default_secret),
        configMap=_if(volume.configMap, _default_config_map),
        downwardAPI=_if(volume.downwardAPI, _default_downward),
        projected=_if(volume.projected, _default_projected),
        image=_if(volume.image, _default_image),
        ephemeral=_if(volume.ephemeral, _default_ephemeral),
        iscsi=_if(volume.iscsi, _default_iscsi),
        rbd=_if(volume.rbd, _default_rbd),
        scaleIO=_if(volume.scaleIO, _default_scale_io),
        azureDisk=_if(volume.azureDisk, _default_azure_disk),
    )


_SOURCES = tuple(field for field in core.Volume.__struct_fields__ if field != "name")


def _if(source: S | None, default: Callable[[S], S]) -> S | None:
    return None if source is None else default(source)


def _default_pod_resources(spec: core.PodSpec) -> core.PodSpec:
    """Complete a partly given `spec.resources` from those of the containers, and its requests from its limits."""
    resources = spec.resources
    if resources is None:
        return spec
    limits, requests = _rounded(resources.limits), _rounded(resources.requests)
    spec = replace(spec, resources=replace(resources, limits=limits, requests=requests))
    try:
        asked, capped = sum_container_requests(spec), sum_container_limits(spec)
    except QuantityError:
        return spec
    if limits or requests:
        for name, amount in capped.items():
            if name.startswith(HUGE_PAGES) and name not in requests:
                limits.setdefault(name, str(amount))
    if limits:
        _fill(requests, {name: amount for name, amount in asked.items() if name in POD_LEVEL})
        for name, quantity in limits.items():
            if is_pod_level(name):
                requests.setdefault(name, quantity)
    elif any(is_pod_level(name) for name in requests):
        everyone = [*spec.containers, *(item for item in spec.initContainers if item.restartPolicy == "Always")]
        shared = {name: amount for name, amount in capped.items() if name in POD_LEVEL}
        _fill(limits, {name: amount for name, amount in shared.items() if _all_limit(everyone, name)})
    return replace(spec, resources=replace(resources, limits=limits, requests=requests))


def _fill(into: dict[str, core.Quantity], amounts: Mapping[str, Amount]) -> None:
    for name, amount in amounts.items():
        into.setdefault(name, str(amount))


def _all_limit(containers: list[core.Container], name: str) -> bool:
    return all(item.resources is not None and name in item.resources.limits for item in containers)


FILESYSTEM = "Filesystem"


def default_volume(volume: PersistentVolume) -> PersistentVolume:
    """The volume with its mode and reclaim policy."""
    spec = volume.spec
    spec = replace(
        spec,
        volumeMode=spec.volumeMode or FILESYSTEM,
        persistentVolumeReclaimPolicy=spec.persistentVolumeReclaimPolicy or "Retain",
    )
    return replace(volume, spec=spec)


def default_claim(claim: PersistentVolumeClaim) -> PersistentVolumeClaim:
    """The claim with its mode."""
    return replace(claim, spec=replace(claim.spec, volumeMode=claim.spec.volumeMode or FILESYSTEM))


def default_driver(driver: CSIDriver) -> CSIDriver:
    """The driver with its policies and modes. `attachRequired` is left as it is: its default depends on the control plane."""
    spec = driver.spec
    spec = replace(
        spec,
        fsGroupPolicy=spec.fsGroupPolicy or "ReadWriteOnceWithFSType",
        volumeLifecycleModes=spec.volumeLifecycleModes or ("Persistent",),
        podInfoOnMount=bool(spec.podInfoOnMount),
        requiresRepublish=bool(spec.requiresRepublish),
        seLinuxMount=bool(spec.seLinuxMount),
        storageCapacity=bool(spec.storageCapacity),
    )
    return replace(driver, spec=spec)


def default_secret(secret: core.Secret) -> core.Secret:
    """The Secret with its type, and with the text of `stringData` in `data`, where it replaces what has the same key."""
    data = {**secret.data, **{key: text.encode() for key, text in secret.stringData.items()}}
    return replace(secret, data=data, stringData={}, type=secret.type or "Opaque")
