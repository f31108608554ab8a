"""What a status of a pod may be, and how it may change. Pure.

Source: the API reference of PodStatus; the Kubernetes documentation "Pod Lifecycle" (a container that shall not restart stays ended).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from pykubelet.base.api import labels as names
from pykubelet.base.manifests.validation.errors import Errors, forbidden, invalid, invalids
from pykubelet.base.manifests.validation.podspec import ip_errors
from pykubelet_local_api.objects import Json
from pykubelet_local_api.strategies.common import IMMUTABLE

MAX_ID = (1 << 31) - 1
_NON_NEGATIVE = "must be a non-negative integer"


def complete_ips(status: Json) -> None:
    """Keep `podIP` and the first of `podIPs` equal, as clients of either expect. `status` is changed."""
    listed, single = status.get("podIPs") or [], status.get("podIP")
    if single and (not listed or listed[0].get("ip") != single):
        status["podIPs"] = [{"ip": single}]
    elif listed and not single:
        status["podIP"] = listed[0].get("ip")


def status_errors(new: Json, old: Json) -> Errors:
    """The wrong fields of a changed status."""
    status, before, spec = new.get("status") or {}, old.get("status") or {}, new["spec"]
    errors: Errors = []
    if (nominated := status.get("nominatedNodeName")) and nominated != before.get("nominatedNodeName"):
        errors += invalids("status.nominatedNodeName", nominated, names.dns_subdomain_errors(nominated))
        if spec.get("nodeName"):
            errors.append(
                forbidden("status.nominatedNodeName", "may not be set on pods that are already bound to a node")
            )
    if (status.get("observedGeneration") or 0) < 0:
        errors.append(invalid("status.observedGeneration", status["observedGeneration"], _NON_NEGATIVE))
    for i, condition in enumerate(status.get("conditions") or ()):
        kind, at = str(condition.get("type") or ""), f"status.conditions[{i}]"
        errors += invalids(f"{at}.Type", kind, names.qualified_name_errors(kind))
        if (condition.get("observedGeneration") or 0) < 0:
            errors.append(invalid(f"{at}.observedGeneration", condition["observedGeneration"], _NON_NEGATIVE))
    for field in ("containerStatuses", "initContainerStatuses"):
        errors += _transition_errors(status, before, spec, field)
    for field in ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"):
        errors += _user_errors(status, field)
    errors += _host_ip_errors(status)
    errors += _ip_list_errors(status.get("podIPs") or [], "status.podIPs")
    claims = {claim.get("name") for claim in spec.get("resourceClaims") or ()}
    for i, claim in enumerate(status.get("resourceClaimStatuses") or ()):
        if claim.get("name") not in claims:
            detail = "must match the name of an entry in `spec.resourceClaims`"
            errors.append(invalid(f"status.resourceClaimStatuses[{i}].name", claim.get("name"), detail))
    if before.get("qosClass") and status.get("qosClass") != before["qosClass"]:
        errors.append(invalid("status.qosClass", status.get("qosClass"), IMMUTABLE))
    return errors


def _transition_errors(status: Json, before: Json, spec: Json, field: str) -> Errors:
    """A container that the pod's restart policy does not start again stays terminated."""
    if _restarts_all(spec):
        return []
    specs = {item.get("name"): item for item in spec.get(_LISTS[field]) or ()}
    now = {item.get("name"): item for item in status.get(field) or ()}
    errors: Errors = []
    for i, old in enumerate(before.get(field) or ()):
        ended = (old.get("state") or {}).get("terminated")
        own = specs.get(old.get("name")) or {}
        policy = own.get("restartPolicy") or spec.get("restartPolicy")
        if ended is None or own.get("restartPolicyRules") or policy == "Always":
            continue
        if ended.get("exitCode") and policy == "OnFailure":
            continue
        found = now.get(old.get("name"))
        if found is not None and (found.get("state") or {}).get("terminated") is None:
            errors.append(forbidden(f"status.{field}[{i}].state", "may not be transitioned to non-terminated state"))
    return errors


def _restarts_all(spec: Json) -> bool:
    """Whether a rule of some container restarts all of them (KEP-5532)."""
    return any(
        rule.get("action") == "RestartAllContainers"
        for field in _LISTS.values()
        for container in spec.get(field) or ()
        for rule in container.get("restartPolicyRules") or ()
    )


_LISTS = {"containerStatuses": "containers", "initContainerStatuses": "initContainers"}


def _user_errors(status: Json, field: str) -> Errors:
    errors: Errors = []
    for i, item in enumerate(status.get(field) or ()):
        linux = (item.get("user") or {}).get("linux") or {}
        at = f"status.{field}[{i}].user.linux"
        for path, number in _ids(linux, at):
            if not 0 <= number <= MAX_ID:
                errors.append(invalid(path, number, names.range_error(0, MAX_ID)))
    return errors


def _ids(linux: Json, at: str) -> Iterator[tuple[str, int]]:
    for field in ("uid", "gid"):
        if field in linux:
            yield f"{at}.{field}", int(linux[field])
    for i, group in enumerate(linux.get("supplementalGroups") or ()):
        yield f"{at}.supplementalGroups[{i}]", int(group)


def _host_ip_errors(status: Json) -> Errors:
    listed, single = status.get("hostIPs") or [], status.get("hostIP") or ""
    if not listed:
        return []
    errors: Errors = []
    if listed[0].get("ip") != single:
        errors.append(invalid("status.hostIPs[0].ip", listed[0].get("ip"), "must be equal to `hostIP`"))
    return errors + _ip_list_errors(listed, "status.hostIPs")


def _ip_list_errors(listed: list[Json], path: str) -> Errors:
    errors: Errors = []
    for i, item in enumerate(listed):
        errors += ip_errors(str(item.get("ip") or ""), f"{path}[{i}]")
    if errors or len(listed) < 2:
        return errors
    families = [ipaddress.ip_address(str(item["ip"])).version for item in listed]
    if len(set(families)) < len(families):
        shown = [{"IP": item["ip"]} for item in listed]
        errors.append(invalid(path, shown, "may specify no more than one IP for each IP family"))
    return errors
