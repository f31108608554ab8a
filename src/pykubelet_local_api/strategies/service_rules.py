"""The wrong fields of a Service, with its defaults. Pure. Source: the API reference of ServiceSpec."""

from __future__ import annotations

import ipaddress

from pykubelet.base.api import labels as names
from pykubelet.base.manifests.validation.errors import (
    Errors,
    duplicate,
    forbidden,
    invalid,
    invalids,
    not_supported,
    required,
    validate_labels,
)
from pykubelet.base.manifests.validation.podspec import ip_errors
from pykubelet_local_api.objects import Json

TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
PROTOCOLS = ("SCTP", "TCP", "UDP")
MAX_AFFINITY_SECONDS = 86_400
_DISTRIBUTIONS = ("PreferClose", "PreferSameZone", "PreferSameNode")
_LOOPBACK = "may not be in the loopback range (127.0.0.0/8, ::1/128)"
_NOT_FOR_POINTS = (
    ("is_unspecified", "may not be unspecified ({address})"),
    ("is_loopback", _LOOPBACK),
    ("is_link_local", "may not be in the link-local range (169.254.0.0/16, fe80::/10)"),
)


def service_errors(spec: Json) -> Errors:
    """The wrong fields of a specification."""
    kind = spec["type"]
    errors: Errors = []
    if not spec.get("ports") and spec.get("clusterIP") != "None" and kind != "ExternalName":
        errors.append(required("spec.ports"))
    if kind in ("LoadBalancer", "NodePort") and spec.get("clusterIP") == "None":
        errors.append(invalid("spec.clusterIPs[0]", "None", f"may not be set to 'None' for {kind} services"))
    if kind == "ExternalName":
        if spec.get("clusterIP") or spec.get("clusterIPs"):
            errors.append(forbidden("spec.clusterIPs", "may not be set for ExternalName services"))
        name = str(spec.get("externalName") or "").removesuffix(".")
        errors += (
            invalids("spec.externalName", name, names.dns_subdomain_errors(name))
            if name
            else [required("spec.externalName")]
        )
    if kind not in TYPES:
        errors.append(not_supported("spec.type", kind, TYPES))
    errors += _port_errors(spec)
    errors += validate_labels(spec.get("selector") or {}, "spec.selector")
    errors += _affinity_errors(spec)
    for i, address in enumerate(spec.get("externalIPs") or ()):
        errors += point_errors(str(address), f"spec.externalIPs[{i}]")
    errors += _policy_errors(spec)
    if kind != "ExternalName":
        errors += _address_errors(spec)
    return errors


def _port_errors(spec: Json) -> Errors:
    errors: Errors = []
    ports = spec.get("ports") or []
    seen_names: set[str] = set()
    seen: set[tuple[object, object]] = set()
    seen_on_node: set[tuple[object, object]] = set()
    for i, port in enumerate(ports):
        at, name = f"spec.ports[{i}]", str(port.get("name") or "")
        if not name and len(ports) > 1:
            errors.append(required(f"{at}.name"))
        elif name:
            errors += invalids(f"{at}.name", name, names.dns_label_errors(name))
            if name in seen_names:
                errors.append(duplicate(f"{at}.name", name))
            seen_names.add(name)
        number = port.get("port") or 0
        errors += invalids(f"{at}.port", number, names.port_number_errors(number))
        if port["protocol"] not in PROTOCOLS:
            errors.append(not_supported(f"{at}.protocol", port["protocol"], PROTOCOLS))
        target = port["targetPort"]
        if isinstance(target, str):
            errors += invalids(f"{at}.targetPort", target, names.port_name_errors(target))
        else:
            target = target or 0
            errors += invalids(f"{at}.targetPort", target, names.port_number_errors(target))
        if port.get("nodePort") and spec["type"] == "ClusterIP":
            errors.append(forbidden(f"{at}.nodePort", "may not be used when `type` is 'ClusterIP'"))
        on_node = (port.get("nodePort"), port["protocol"])
        if port.get("nodePort") and on_node in seen_on_node:
            errors.append(duplicate(f"{at}.nodePort", port["nodePort"]))
        seen_on_node.add(on_node)
    for i, port in enumerate(ports):
        key = (port.get("port"), port["protocol"])
        if key in seen:
            shown = {
                "Name": "",
                "Protocol": port["protocol"],
                "AppProtocol": None,
                "Port": port.get("port") or 0,
                "TargetPort": 0,
                "NodePort": 0,
            }
            errors.append(duplicate(f"spec.ports[{i}]", shown))
        seen.add(key)
    return errors


def _affinity_errors(spec: Json) -> Errors:
    affinity = spec["sessionAffinity"]
    if affinity not in ("ClientIP", "None"):
        return [not_supported("spec.sessionAffinity", affinity, ("ClientIP", "None"))]
    if affinity == "None":
        return []
    seconds = spec["sessionAffinityConfig"]["clientIP"].get("timeoutSeconds")
    if isinstance(seconds, int) and 0 < seconds <= MAX_AFFINITY_SECONDS:
        return []
    path = "spec.sessionAffinityConfig.clientIP.timeoutSeconds"
    return [invalid(path, seconds, f"must be greater than 0 and less than {MAX_AFFINITY_SECONDS}")]


def _policy_errors(spec: Json) -> Errors:
    errors: Errors = []
    for i, network in enumerate(spec.get("loadBalancerSourceRanges") or ()):
        if not _is_network(str(network)):
            detail = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
            errors.append(invalid(f"spec.LoadBalancerSourceRanges[{i}]", network, detail))
    allowed = ("Cluster", "Local")
    external = spec.get("externalTrafficPolicy")
    if spec["type"] in ("LoadBalancer", "NodePort") and external not in allowed:
        errors.append(not_supported("spec.externalTrafficPolicy", external or "", allowed))
    if spec["type"] != "ExternalName" and spec["internalTrafficPolicy"] not in allowed:
        errors.append(not_supported("spec.internalTrafficPolicy", spec["internalTrafficPolicy"], allowed))
    distribution = spec.get("trafficDistribution")
    if distribution and distribution not in _DISTRIBUTIONS:
        errors.append(not_supported("spec.trafficDistribution", distribution, _DISTRIBUTIONS))
    return errors


def _address_errors(spec: Json) -> Errors:
    """Families and cluster IPs. There are IPv4 addresses only, but a headless service without a selector may have any."""
    errors: Errors = []
    given = spec.get("clusterIPs") or []
    if given[:1] != ([spec["clusterIP"]] if spec.get("clusterIP") else []):
        errors.append(invalid("spec.clusterIPs", given, "first value must match `clusterIP`"))
    for i, address in enumerate(given):
        if address != "None":
            errors += ip_errors(str(address), f"spec.clusterIPs[{i}]")
    if spec.get("clusterIP") == "None" and not spec.get("selector"):
        return errors
    for i, family in enumerate(spec["ipFamilies"]):
        if family == "IPv6":
            errors.append(invalid(f"spec.ipFamilies[{i}]", family, "not configured on this cluster"))
        elif family != "IPv4":
            errors.append(not_supported(f"spec.ipFamilies[{i}]", family, ("IPv4", "IPv6")))
    policy, policies = spec["ipFamilyPolicy"], ("PreferDualStack", "RequireDualStack", "SingleStack")
    if policy == "RequireDualStack":
        detail = "this cluster is not configured for dual-stack services"
        errors.append(invalid("spec.ipFamilyPolicy", policy, detail))
    elif policy not in policies:
        errors.append(not_supported("spec.ipFamilyPolicy", policy, policies))
    return errors


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        return False
    return "/" in text


def point_errors(address: str, path: str) -> Errors:
    """An address that traffic may go to: not one of the machine itself."""
    errors = ip_errors(address, path)
    if errors:
        return errors
    found = ipaddress.ip_address(address)
    return [
        invalid(path, address, detail.format(address=address))
        for fact, detail in _NOT_FOR_POINTS
        if getattr(found, fact)
    ]
