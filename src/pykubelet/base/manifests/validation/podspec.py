"""Validates a whole pod at its creation: metadata, spec, and rules across its parts. Pure.

The order of errors is the reference's (`ValidatePodCreate`), except that entries of maps come sorted.
"""

from __future__ import annotations

import ipaddress

from pykubelet.base.api import labels as names
from pykubelet.base.api.core import HostAlias, Pod, PodDNSConfig, PodSpec, ResourceRequirements
from pykubelet.base.manifests.validation.containers import (
    PodFacts,
    validate_containers,
    validate_ephemeral_containers,
    validate_init_containers,
)
from pykubelet.base.manifests.validation.errors import (
    Errors,
    forbidden,
    invalid,
    invalids,
    not_supported,
    one_of,
    required,
    too_long,
    validate_labels,
    validate_metadata,
    validate_pod_annotations,
)
from pykubelet.base.manifests.validation.resources import (
    validate_pod_claims,
    validate_pod_resources,
    validate_requirements,
)
from pykubelet.base.manifests.validation.scheduling import (
    validate_affinity,
    validate_gates,
    validate_responders,
    validate_tolerations,
    validate_topology_spread,
)
from pykubelet.base.manifests.validation.security import validate_host_users, validate_os, validate_pod_security
from pykubelet.base.manifests.validation.volumes import validate_volumes

RESTART_POLICIES = ("Always", "OnFailure", "Never")
PREEMPTION_POLICIES = ("PreemptLowerPriority", "Never")
MAX_INT32 = (1 << 31) - 1


def validate_pod(pod: Pod, *, comparisons: bool = False) -> Errors:
    """All errors of a defaulted pod at its creation. An empty list means that the API server would accept it.

    `comparisons`: tolerations may compare numbers (the gate TaintTolerationComparisonOperators).
    """
    spec = pod.spec
    errors = validate_metadata(pod.metadata, "metadata")
    errors += validate_pod_annotations(pod.metadata.annotations, spec, "metadata.annotations")
    errors += _validate_spec(pod)
    errors += validate_tolerations(spec.tolerations, "spec.tolerations", comparisons=comparisons)
    if not spec.serviceAccountName:
        for i, volume in enumerate(spec.volumes):
            for j, source in enumerate(volume.projected.sources if volume.projected else ()):
                if source.serviceAccountToken is not None:
                    at = f"spec.volumes[{i}].projected.sources[{j}].serviceAccountToken"
                    errors.append(forbidden(at, "must not be specified when serviceAccountName is not set"))
    if spec.ephemeralContainers:
        errors.append(forbidden("spec.ephemeralContainers", "cannot be set on create"))
    return errors


def _validate_spec(pod: Pod) -> Errors:
    spec, path = pod.spec, "spec"
    errors: Errors = []
    if spec.terminationGracePeriodSeconds is None:
        errors.append(required(f"{path}.terminationGracePeriodSeconds"))
    volumes, volume_errors = validate_volumes(spec.volumes, pod.metadata, f"{path}.volumes")
    errors += volume_errors
    if spec.resourceClaims:
        errors += validate_pod_claims(spec.resourceClaims, f"{path}.resourceClaims")
    facts = PodFacts(spec, volumes, {claim.name for claim in spec.resourceClaims if claim.name})
    errors += validate_containers(facts, f"{path}.containers")
    errors += validate_init_containers(facts, f"{path}.initContainers")
    errors += validate_ephemeral_containers(facts, f"{path}.ephemeralContainers")
    if spec.resources is not None:
        errors += validate_pod_resources(spec.resources, spec, facts.claims, f"{path}.resources")
    errors += _validate_host_ports(spec, path)
    errors += one_of(f"{path}.restartPolicy", spec.restartPolicy, RESTART_POLICIES)
    errors += validate_dns_policy(spec, path)
    errors += validate_labels(spec.nodeSelector, f"{path}.nodeSelector")
    errors += validate_pod_security(spec, path)
    if spec.affinity is not None:
        errors += validate_affinity(spec.affinity, f"{path}.affinity")
    errors += validate_dns_config(spec, path)
    errors += validate_gates(spec, path)
    errors += validate_responders(spec.evictionResponders, f"{path}.evictionResponders")
    errors += validate_topology_spread(spec.topologySpreadConstraints, f"{path}.topologySpreadConstraints")
    errors += validate_host_users(spec, path)
    errors += _validate_names(spec, path)
    errors += _validate_deadline(spec, path)
    errors += validate_host_names(spec, path)
    if spec.preemptionPolicy and spec.preemptionPolicy not in PREEMPTION_POLICIES:
        errors.append(not_supported(f"{path}.preemptionPolicy", spec.preemptionPolicy, PREEMPTION_POLICIES))
    if spec.overhead:
        overhead = ResourceRequirements(limits=spec.overhead)
        errors += validate_requirements(overhead, frozenset(), f"{path}.overhead")
    return errors + validate_os(spec, path)


def _validate_host_ports(spec: PodSpec, path: str) -> Errors:
    if not spec.hostNetwork:
        return []
    detail = "must match `containerPort` when `hostNetwork` is true"
    return [
        invalid(f"{path}.containers[{i}].ports[{j}].hostPort", port.hostPort or 0, detail)
        for i, container in enumerate(spec.containers)
        for j, port in enumerate(container.ports)
        if (port.hostPort or 0) != port.containerPort
    ]


def _validate_names(spec: PodSpec, path: str) -> Errors:
    errors: Errors = []
    for field in ("serviceAccountName", "nodeName", "priorityClassName", "runtimeClassName"):
        if name := getattr(spec, field):
            errors += invalids(f"{path}.{field}", name, names.dns_subdomain_errors(name))
    return errors


def _validate_deadline(spec: PodSpec, path: str) -> Errors:
    deadline = spec.activeDeadlineSeconds
    if deadline is None or 1 <= deadline <= MAX_INT32:
        return []
    return [invalid(f"{path}.activeDeadlineSeconds", deadline, names.range_error(1, MAX_INT32))]


DNS_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
MAX_NAMESERVERS = 3
MAX_SEARCHES = 32
MAX_SEARCH_CHARS = 2048
MAX_HOSTNAME = 64


def ip_errors(address: str, path: str) -> Errors:
    """An IPv4 or IPv6 address, without leading zeros in the parts of IPv4."""
    try:
        plain = ".".join(map(_without_zeros, address.split("."))) if ":" not in address else address.lower()
        found = ipaddress.ip_address(plain)
        if plain != address.lower():
            return [invalid(path, address, "must not have leading 0s")]
        if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped:
            return [invalid(path, address, "must not be an IPv4-mapped IPv6 address")]
        if "%" in address:
            raise ValueError
    except ValueError:
        return [invalid(path, address, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")]
    return []


def _without_zeros(number: str) -> str:
    return number.lstrip("0") or "0" if number.isascii() and number.isdecimal() else number


def _validate_dns_config(config: PodDNSConfig | None, policy: str, path: str) -> Errors:
    if policy == "None":
        if config is None:
            return [required(path, "must provide `dnsConfig` when `dnsPolicy` is None")]
        if not config.nameservers:
            detail = "must provide at least one DNS nameserver when `dnsPolicy` is None"
            return [required(f"{path}.nameservers", detail)]
    if config is None:
        return []
    errors: Errors = []
    if len(config.nameservers) > MAX_NAMESERVERS:
        detail = f"must not have more than {MAX_NAMESERVERS} nameservers"
        errors.append(invalid(f"{path}.nameservers", config.nameservers, detail))
    for i, server in enumerate(config.nameservers):
        errors += ip_errors(server, f"{path}.nameservers[{i}]")
    if len(config.searches) > MAX_SEARCHES:
        detail = f"must not have more than {MAX_SEARCHES} search paths"
        errors.append(invalid(f"{path}.searches", config.searches, detail))
    if len(" ".join(config.searches)) > MAX_SEARCH_CHARS:
        detail = f"must not have more than {MAX_SEARCH_CHARS} characters (including spaces) in the search list"
        errors.append(invalid(f"{path}.searches", config.searches, detail))
    for i, search in enumerate(config.searches):
        if search != ".":
            domain = search.removesuffix(".")
            errors += invalids(f"{path}.searches[{i}]", domain, names.dns_search_errors(domain))
    for i, option in enumerate(config.options):
        if not option.name:
            errors.append(required(f"{path}.options[{i}]", "must not be empty"))
    return errors


def _validate_host_aliases(aliases: tuple[HostAlias, ...], path: str) -> Errors:
    errors: Errors = []
    for i, alias in enumerate(aliases):
        errors += ip_errors(alias.ip, f"{path}[{i}].ip")
        for j, name in enumerate(alias.hostnames):
            errors += invalids(f"{path}[{i}].hostnames[{j}]", name, names.dns_subdomain_errors(name))
    return errors


def validate_dns_policy(spec: PodSpec, path: str) -> Errors:
    """spec.dnsPolicy."""
    return one_of(f"{path}.dnsPolicy", spec.dnsPolicy, DNS_POLICIES)


def validate_dns_config(spec: PodSpec, path: str) -> Errors:
    """spec.dnsConfig."""
    return _validate_dns_config(spec.dnsConfig, spec.dnsPolicy, f"{path}.dnsConfig")


def validate_host_names(spec: PodSpec, path: str) -> Errors:
    """spec.hostname, subdomain, hostnameOverride and hostAliases."""
    errors: Errors = []
    if spec.hostname:
        errors += invalids(f"{path}.hostname", spec.hostname, names.dns_label_errors(spec.hostname))
    if spec.subdomain:
        errors += invalids(f"{path}.subdomain", spec.subdomain, names.dns_label_errors(spec.subdomain))
    if spec.hostnameOverride:
        at = f"{path}.hostnameOverride"
        if spec.hostNetwork:
            errors.append(forbidden(at, "may not be specified when `hostNetwork` is true"))
        if spec.setHostnameAsFQDN:
            errors.append(forbidden(at, "may not be specified when `setHostnameAsFQDN` is true"))
        if len(spec.hostnameOverride) > MAX_HOSTNAME:
            errors.append(too_long(at, MAX_HOSTNAME))
        errors += invalids(at, spec.hostnameOverride, names.dns_subdomain_errors(spec.hostnameOverride))
    return errors + _validate_host_aliases(spec.hostAliases, f"{path}.hostAliases")
