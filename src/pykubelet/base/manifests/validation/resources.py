"""Validates resource requests and limits of containers, pods and overhead. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set

from pykubelet.base.api import labels as names
from pykubelet.base.api.core import Container, PodResourceClaim, PodSpec, Quantity, ResourceClaim, ResourceRequirements
from pykubelet.base.api.quantity import (
    HUGE_PAGES,
    NANO,
    POD_LEVEL,
    Amount,
    QuantityError,
    is_extended,
    is_native,
    is_pod_level,
    page_size,
    parse,
    sum_container_requests,
)
from pykubelet.base.manifests.validation.errors import (
    Errors,
    FieldError,
    duplicate,
    forbidden,
    invalid,
    invalid_bare,
    invalids,
    not_found,
    not_supported,
    required,
)

CONTAINER_RESOURCES = frozenset({"cpu", "memory", "ephemeral-storage"})
#: Resources that Kubernetes counts anywhere, such as in quotas.
_STANDARD_TYPES = frozenset(
    (
        *("cpu", "memory", "ephemeral-storage", "storage", "pods", "services", "secrets", "configmaps"),
        *("persistentvolumeclaims", "replicationcontrollers", "resourcequotas"),
    )
)
_STANDARD_PREFIXES = ("requests.", "limits.", "services.")
#: So many names of resource claims are listed in a message.
MAX_LISTED = 32


def allows_overcommit(name: str) -> bool:
    """Whether requests may be lower than limits."""
    return is_native(name) and not name.startswith(HUGE_PAGES)


def _name_errors(name: str, path: str, standard: frozenset[str], pod_level: bool) -> Errors:
    errors = invalids(path, name, names.qualified_name_errors(name))
    if errors:
        return errors
    if pod_level:
        if not is_pod_level(name):
            return [not_supported(path, name, ("cpu", "hugepages-", "memory"))]
        return []
    if "/" not in name:
        if name not in standard and not name.startswith(HUGE_PAGES):
            known = name in _STANDARD_TYPES or name.startswith(_STANDARD_PREFIXES)
            errors = [] if known else [invalid(path, name, "must be a standard resource type or fully qualified")]
            return [*errors, invalid(path, name, "must be a standard resource for containers")]
    elif not is_native(name) and not is_extended(name):
        return [invalid(path, name, "doesn't follow extended resource name standard")]
    return []


def _amounts(listed: Mapping[str, Quantity], path: str) -> tuple[dict[str, Amount], Errors]:
    amounts: dict[str, Amount] = {}
    errors: Errors = []
    for name, quantity in sorted(listed.items()):
        try:
            amounts[name] = parse(quantity)
        except QuantityError as error:
            errors.append(invalid(f"{path}[{name}]", quantity, str(error)))
    return amounts, errors


def _amount_errors(name: str, amount: Amount, path: str) -> Errors:
    errors: Errors = []
    if amount.nano < 0:
        errors.append(invalid(path, str(amount), "must be greater than or equal to 0"))
    if is_extended(name) and amount.milli_value() % 1000:
        errors.append(invalid_bare(path, str(amount), "must be an integer"))
    if name.startswith(HUGE_PAGES):
        page = page_size(name)
        if page is None or amount.nano % (page * NANO):
            errors.append(invalid(path, str(amount), f"{amount} is not positive integer multiple of {name}"))
    return errors


def validate_requirements(
    resources: ResourceRequirements, claims: Set[str], path: str, pod_level: bool = False
) -> Errors:
    """Names, amounts, requests against limits, huge pages, claims. `claims`: the names of the pod's resource claims."""
    standard = POD_LEVEL if pod_level else CONTAINER_RESOURCES
    limits, errors = _amounts(resources.limits, f"{path}.limits")
    requests, request_errors = _amounts(resources.requests, f"{path}.requests")
    errors += request_errors
    for name, amount in limits.items():
        at = f"{path}.limits[{name}]"
        errors += _name_errors(name, at, standard, pod_level)
        errors += _amount_errors(name, amount, at)
    for name, amount in requests.items():
        at = f"{path}.requests[{name}]"
        errors += _name_errors(name, at, standard, pod_level)
        errors += _amount_errors(name, amount, at)
        errors += _against_limit(name, amount, limits, resources, path)
    named = set(limits) | set(requests)
    if any(name.startswith(HUGE_PAGES) for name in named) and not named & {"cpu", "memory"}:
        errors.append(forbidden(path, "HugePages require cpu or memory"))
    return errors + _validate_claim_names(resources.claims, claims, f"{path}.claims")


def _against_limit(
    name: str, amount: Amount, limits: Mapping[str, Amount], resources: ResourceRequirements, path: str
) -> Errors:
    limit = limits.get(name)
    if limit is None:
        if name in resources.limits or allows_overcommit(name):
            return []
        return [required(f"{path}.limits", "Limit must be set for non overcommitable resources")]
    if amount.nano != limit.nano and not allows_overcommit(name):
        return [invalid(f"{path}.requests", str(amount), f"must be equal to {name} limit of {limit}")]
    if amount > limit:
        return [invalid(f"{path}.requests", str(amount), f"must be less than or equal to {name} limit of {limit}")]
    return []


def _validate_claim_names(claims: tuple[ResourceClaim, ...], pod_claims: Set[str], path: str) -> Errors:
    errors: Errors = []
    seen: set[str] = set()
    keys_of: Counter[str] = Counter()
    listed = _listed(pod_claims)
    for i, claim in enumerate(claims):
        at = f"{path}[{i}]"
        if not claim.name:
            errors.append(required(at))
            continue
        if claim.name in seen:
            errors.append(duplicate(at, claim.name))
        else:
            key = claim.name
            if claim.request:
                errors += invalids(f"{at}.request", claim.request, names.dns_label_errors(claim.request))
                key += "/" + claim.request
            if key in seen:
                errors.append(duplicate(at, key))
            else:
                if not claim.request:
                    errors += [duplicate(at, claim.name)] * keys_of[claim.name]
                seen.add(key)
                keys_of[key.partition("/")[0]] += 1
        if claim.name not in pod_claims:
            errors.append(not_found(at, claim.name, f"must be one of the names in pod.spec.resourceClaims{listed}"))
    return errors


def _listed(pod_claims: Set[str]) -> str:
    """The names for a message, which may be there for each claim of each container: few of them, or how many there are."""
    if not pod_claims:
        return " which is empty"
    few = len(pod_claims) <= MAX_LISTED
    return ": " + ", ".join(sorted(pod_claims)) if few else f", of which there are {len(pod_claims)}"


def validate_pod_claims(claims: tuple[PodResourceClaim, ...], path: str) -> Errors:
    """spec.resourceClaims."""
    errors: Errors = []
    seen: set[str] = set()
    for i, claim in enumerate(claims):
        at = f"{path}[{i}]"
        if not claim.name:
            errors.append(required(f"{at}.name"))
        elif claim.name in seen:
            errors.append(duplicate(f"{at}.name", claim.name))
        else:
            errors += invalids(f"{at}.name", claim.name, names.dns_label_errors(claim.name))
            seen.add(claim.name)
        if claim.resourceClaimName and claim.resourceClaimTemplateName:
            detail = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
            errors.append(invalid(at, claim, detail))
        if not claim.resourceClaimName and not claim.resourceClaimTemplateName:
            detail = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
            errors.append(invalid(at, claim, detail))
        for field in ("resourceClaimName", "resourceClaimTemplateName"):
            if name := getattr(claim, field):
                errors += invalids(f"{at}.{field}", name, names.dns_subdomain_errors(name))
    return errors


def validate_pod_resources(resources: ResourceRequirements, spec: PodSpec, claims: Set[str], path: str) -> Errors:
    """spec.resources: its own rules, and that the containers fit into it."""
    errors: Errors = []
    if resources.claims:
        errors.append(forbidden(f"{path}.claims", "claims cannot be set for Resources at pod-level"))
    own = validate_requirements(resources, claims, path, pod_level=True)
    errors += own
    if own or any(_unreadable(container) for container in (*spec.containers, *spec.initContainers)):
        return errors
    requests, _ = _amounts(resources.requests, path)
    limits, _ = _amounts(resources.limits, path)
    for name, total in sorted(sum_container_requests(spec).items()):
        if not is_pod_level(name):
            continue  # a pod cannot set this resource as a whole
        have = requests.get(name, Amount(0))
        if total > have:
            detail = f"must be greater than or equal to aggregate container requests of {total}"
            errors.append(invalid(f"{path}.requests[{name}]", str(have), detail))
    for i, container in enumerate(spec.containers):
        errors += _inside_pod_limits(container, limits, f"{path}.containers[{i}]")
    return errors


def _inside_pod_limits(container: Container, limits: Mapping[str, Amount], path: str) -> list[FieldError]:
    errors: Errors = []
    own = container.resources.limits if container.resources else {}
    for name, quantity in sorted(own.items()):
        limit = limits.get(name)
        if limit is not None and parse(quantity) > limit:
            detail = f"must be less than or equal to pod limits of {limit}"
            errors.append(invalid(f"{path}[{name}].limits", str(parse(quantity)), detail))
    return errors


def _unreadable(container: Container) -> bool:
    resources = container.resources
    if resources is None:
        return False
    return bool(_amounts(resources.limits, "")[1] or _amounts(resources.requests, "")[1])
