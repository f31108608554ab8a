"""Validates the fields of pod resources, cgroups, policies and eviction. Pure; part of `validate.py`, which adds the prefix."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pykubelet.base.api.quantity import QuantityError, parse_text
from pykubelet.base.kit.cpuset import parse_cpuset
from pykubelet.base.model.sysctls import allowance_problem, default_problem, normalized
from pykubelet.config.errors import ConfigProblem
from pykubelet.config.eviction import read_thresholds
from pykubelet.config.gates import FeatureGates
from pykubelet.config.kubelet import KubeletConfiguration
from pykubelet.config.reserved import read_reserved

TOPOLOGY_POLICIES = ("none", "best-effort", "restricted", "single-numa-node")
TOPOLOGY_SCOPES = ("container", "pod")
CPU_POLICIES = ("none", "static")
MEMORY_POLICIES = ("None", "Static")
CGROUP_DRIVERS = ("cgroupfs", "systemd")
CPU_OPTIONS = (
    "full-pcpus-only",
    "strict-cpu-reservation",
    "prefer-align-cpus-by-uncorecache",
    "distribute-cpus-across-numa",
    "align-by-socket",
    "distribute-cpus-across-cores",
)
TOPOLOGY_OPTIONS = ("prefer-closest-numa-nodes", "max-allowable-numa-nodes")
SWAP_BEHAVIORS = ("", "LimitedSwap", "NoSwap")
RESERVATION_POLICIES = ("None", "TieredReservation")
PULL_POLICIES = ("NeverVerify", "NeverVerifyPreloadedImages", "NeverVerifyAllowlistedImages", "AlwaysVerify")
PODS, NONE = "pods", "none"
SYSTEM, SYSTEM_COMPRESSIBLE = "system-reserved", "system-reserved-compressible"
KUBE, KUBE_COMPRESSIBLE = "kube-reserved", "kube-reserved-compressible"
ENFORCEMENTS = (PODS, SYSTEM, SYSTEM_COMPRESSIBLE, KUBE, KUBE_COMPRESSIBLE, NONE)
MIN_IDS_PER_POD = 65536
MAX_IDS_PER_POD = 2**32 - 1

_LABEL = "[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_HOST = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:]+\])(?::[0-9]+)?"
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_IMAGE_NAME = re.compile(f"(?:{_HOST}/)?{_COMPONENT}(?:/{_COMPONENT})*")
_MAX_IMAGE_NAME = 255


def check_node_resources(
    config: KubeletConfiguration, gates: FeatureGates, *, extensions: bool = False
) -> Iterator[ConfigProblem]:
    """The problems of the fields for resource managers, swap, reservations, image pulls and eviction. `extensions`: as in `validate`."""
    yield from _policies(config, extensions=extensions)
    yield from _swap_and_qos(config, gates)
    yield from _enforcement(config)
    yield from _pull_verification(config, gates)
    yield from _reserved(config, gates)
    yield from _reserved_memory(config)
    yield from read_thresholds(config).problems
    for pattern in config.allowedUnsafeSysctls:
        if wrong := allowance_problem(pattern):
            yield ConfigProblem("allowedUnsafeSysctls", f"allowedUnsafeSysctls (--allowed-unsafe-sysctls): {wrong}")
    yield from _default_sysctls(config, gates)
    ids = config.userNamespaces.idsPerPod
    if ids is not None and (rule := _broken_rule_of_ids(ids)):
        yield ConfigProblem("userNamespaces.idsPerPod", f"userNamespaces.idsPerPod must {rule}")


def _default_sysctls(config: KubeletConfiguration, gates: FeatureGates) -> Iterator[ConfigProblem]:
    field = "defaultPodSysctls"
    if config.defaultPodSysctls and not gates.enabled("DefaultPodSysctls"):
        text = f"DefaultPodSysctls feature gate is required for Kubelet configuration option {field}"
        yield ConfigProblem(field, text)
        return
    seen: set[str] = set()
    for name in sorted(config.defaultPodSysctls):
        if wrong := default_problem(name):
            yield ConfigProblem(field, wrong)
        elif normalized(name) in seen:
            yield ConfigProblem(field, f'duplicate sysctl "{name}" found in defaultPodSysctls')
        seen.add(normalized(name))


def _broken_rule_of_ids(ids: int) -> str:
    if ids < MIN_IDS_PER_POD:
        return f"not be less than {MIN_IDS_PER_POD}"
    if ids % MIN_IDS_PER_POD:
        return f"be a multiple of {MIN_IDS_PER_POD}"
    return f"not be more than {MAX_IDS_PER_POD}" if ids > MAX_IDS_PER_POD else ""


def quoted_or(options: tuple[str, ...]) -> str:
    """Format options as `"a", "b" or "c"`."""
    quoted = [f'"{option}"' for option in options]
    return f"{', '.join(quoted[:-1])} or {quoted[-1]}"


def one_of(field: str, value: str, options: tuple[str, ...], flag: str = "") -> Iterator[ConfigProblem]:
    """Yield a problem if `value` is not one of the options."""
    if value not in options:
        named = f"{field} (--{flag})" if flag else field
        yield ConfigProblem(field, f'option "{value}" specified for {named}. Valid options are {quoted_or(options)}')


def _policies(config: KubeletConfiguration, *, extensions: bool) -> Iterator[ConfigProblem]:
    if config.topologyManagerPolicy not in TOPOLOGY_POLICIES:
        listed = " ".join(f'"{policy}"' for policy in TOPOLOGY_POLICIES)
        text = f'(--topology-manager-policy) "{config.topologyManagerPolicy}" must be one of: [{listed}]'
        yield ConfigProblem("topologyManagerPolicy", f"topologyManagerPolicy {text}")
    if config.topologyManagerScope not in TOPOLOGY_SCOPES:
        text = f'(--topology-manager-scope) "{config.topologyManagerScope}" must be one of: "container", or "pod"'
        yield ConfigProblem("topologyManagerScope", f"topologyManagerScope {text}")
    if not extensions:  # else `app/extensions` knows whether one of them is the policy
        yield from one_of("cpuManagerPolicy", config.cpuManagerPolicy, CPU_POLICIES, "cpu-manager-policy")
        yield from one_of("memoryManagerPolicy", config.memoryManagerPolicy, MEMORY_POLICIES, "memory-manager-policy")
    yield from one_of("cgroupDriver", config.cgroupDriver, CGROUP_DRIVERS, "cgroup-driver")
    modes = ("none", "hairpin-veth", "promiscuous-bridge")
    yield from one_of("hairpinMode", config.hairpinMode, modes, "hairpin-mode")
    field = "configMapAndSecretChangeDetectionStrategy"
    yield from one_of(field, config.configMapAndSecretChangeDetectionStrategy, ("Get", "Cache", "Watch"))
    if config.cpuManagerPolicy == "none" and config.cpuManagerPolicyOptions:
        text = f"cpuManagerPolicyOptions {_shown(config.cpuManagerPolicyOptions)} need cpuManagerPolicy static"
        yield ConfigProblem("cpuManagerPolicyOptions", text)
    options = (
        ("cpuManagerPolicyOptions", config.cpuManagerPolicyOptions, CPU_OPTIONS),
        ("topologyManagerPolicyOptions", config.topologyManagerPolicyOptions, TOPOLOGY_OPTIONS),
    )
    for field, given, known in options:
        for name in given:
            if name not in known:
                yield ConfigProblem(field, f'unknown option "{name}" in {field}. Valid options are {quoted_or(known)}')


def _shown(values: dict[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())


def _swap_and_qos(config: KubeletConfiguration, gates: FeatureGates) -> Iterator[ConfigProblem]:
    behavior = config.memorySwap.swapBehavior
    if behavior not in SWAP_BEHAVIORS:
        text = f'memorySwap.swapBehavior "{behavior}" must be one of: "", "LimitedSwap" or "NoSwap"'
        yield ConfigProblem("memorySwap.swapBehavior", text)
    factor = config.memoryThrottlingFactor
    if factor is not None and not 0 < factor <= 1:
        text = f"memoryThrottlingFactor {factor:g} must be greater than 0 and less than or equal to 1.0"
        yield ConfigProblem("memoryThrottlingFactor", text)
    policy, field = config.memoryReservationPolicy, "memoryReservationPolicy"
    if policy == "TieredReservation" and not gates.enabled("MemoryQoS"):
        yield ConfigProblem(field, f'{field} "{policy}" requires MemoryQoS feature gate to be enabled')
    yield from one_of(field, policy, RESERVATION_POLICIES)


def _enforcement(config: KubeletConfiguration) -> Iterator[ConfigProblem]:
    field, named = "enforceNodeAllocatable", "enforceNodeAllocatable (--enforce-node-allocatable)"
    given = config.enforceNodeAllocatable
    for plain, compressible in ((SYSTEM, SYSTEM_COMPRESSIBLE), (KUBE, KUBE_COMPRESSIBLE)):
        if plain in given and compressible in given:
            yield ConfigProblem(field, f'both "{plain}" and "{compressible}" cannot be specified together in {named}')
    needs = {
        SYSTEM: ("systemReservedCgroup", "system-reserved-cgroup", config.systemReservedCgroup, SYSTEM),
        KUBE: ("kubeReservedCgroup", "kube-reserved-cgroup", config.kubeReservedCgroup, KUBE),
    }
    seen: set[str] = set()
    for key in given:
        if key in seen:
            yield ConfigProblem(field, f'duplicated enforcements "{key}" in {named}')
            continue
        seen.add(key)
        if key == NONE:
            if len(given) > 1:
                yield ConfigProblem(
                    field, f'{named} may not contain additional enforcements when "{NONE}" is specified'
                )
            continue
        if key not in ENFORCEMENTS:
            yield ConfigProblem(
                field, f'option "{key}" specified for {named}. Valid options are {quoted_or(ENFORCEMENTS)}'
            )
            continue
        need = needs.get(key.removesuffix("-compressible"))
        if need is not None and not need[2]:
            name, flag, _, base = need
            text = f'{name} (--{flag}) must be specified when "{base}" or "{base}-compressible" included in {named}'
            yield ConfigProblem(name, text)
        if not config.cgroupsPerQOS:
            text = f'cgroupsPerQOS (--cgroups-per-qos) must be set to true when "{key}" contained in {named}'
            yield ConfigProblem("cgroupsPerQOS", text)


def _pull_verification(config: KubeletConfiguration, gates: FeatureGates) -> Iterator[ConfigProblem]:
    field, allowlist = "imagePullCredentialsVerificationPolicy", "preloadedImagesVerificationAllowlist"
    policy, images = config.imagePullCredentialsVerificationPolicy, config.preloadedImagesVerificationAllowlist
    if not gates.enabled("KubeletEnsureSecretPulledImages"):
        for name, value in ((field, policy), (allowlist, images)):
            if value:
                text = f"`{name}` must not be set if KubeletEnsureSecretPulledImages feature gate is not enabled"
                yield ConfigProblem(name, text)
        return
    yield from one_of(field, policy, PULL_POLICIES)
    if images and policy != "NeverVerifyAllowlistedImages":
        text = f'can\'t set `{allowlist}` if `{field}` is not "NeverVerifyAllowlistedImages"'
        yield ConfigProblem(allowlist, text)
        return
    for image in images:
        wrong = image_pattern_problem(image)
        if wrong:
            yield ConfigProblem(allowlist, f"invalid image pattern in `{allowlist}`: {wrong}")


def image_pattern_problem(pattern: str) -> str | None:
    """The problem of an allowlist entry: an image's name as in pods, without tag, or a prefix that ends in `/*`."""
    if pattern != pattern.strip():
        return f"leading/trailing spaces are not allowed: {pattern}"
    wildcard = pattern.endswith("/*")
    bare = pattern[:-1] if wildcard else pattern
    if not bare:
        return f"the supplied pattern is too short: {pattern}"
    if "*" in bare:
        return f"not a valid wildcard pattern, only patterns ending with '/*' are allowed: {pattern}"
    if wildcard:
        return "at least registry hostname is required" if len(bare) == 1 else None
    last = bare.rsplit("/", 1)[-1]
    if "@" in bare or ":" in last:
        return f"neither tag nor digest is accepted in an image reference: {pattern}"
    if len(bare) <= _MAX_IMAGE_NAME and _IMAGE_NAME.fullmatch(bare):
        return None
    is_case = _IMAGE_NAME.fullmatch(bare.lower())
    reason = "repository name must be lowercase" if is_case else "invalid reference format"
    return f"failed to parse as an image name: {reason}: {pattern}"


def _reserved(config: KubeletConfiguration, gates: FeatureGates) -> Iterator[ConfigProblem]:
    if config.reservedSystemCPUs:
        if config.systemReservedCgroup or config.kubeReservedCgroup:
            yield ConfigProblem(
                "reservedSystemCPUs",
                "can't use reservedSystemCPUs (--reserved-cpus) with systemReservedCgroup (--system-reserved-cgroup) "
                "or kubeReservedCgroup (--kube-reserved-cgroup)",
            )
        try:
            parse_cpuset(config.reservedSystemCPUs)
        except ValueError as error:
            text = f"(--reserved-cpus) {config.reservedSystemCPUs}, error: {error}"
            yield ConfigProblem("reservedSystemCPUs", f"unable to parse reservedSystemCPUs {text}")
    yield from read_reserved(config, gates.enabled("QOSReserved"))[1]


def _reserved_memory(config: KubeletConfiguration) -> Iterator[ConfigProblem]:
    field = "reservedMemory"
    seen: set[tuple[int, str]] = set()
    for entry in config.reservedMemory:
        node = entry.numaNode
        for name, text in entry.limits.items():
            if name != "memory" and not name.startswith("hugepages-"):
                yield ConfigProblem(
                    field,
                    f'the limit type "{name}" for NUMA node {node} is not supported, only '
                    "[memory hugepages-<HugePageSize>] is accepted",
                )
            try:
                zero = parse_text(text).nano == 0
            except QuantityError as error:
                yield ConfigProblem(
                    field, f'the limit "{text}" of "{name}" for NUMA node {node} is no quantity: {error}'
                )
                continue
            if zero:
                text = f'reserved memory may not be zero for NUMA node {node} and resource "{name}"'
                yield ConfigProblem(field, text)
            if (node, name) in seen:
                text = f'the reserved memory has a duplicate value for NUMA node {node} and resource "{name}"'
                yield ConfigProblem(field, text)
            seen.add((node, name))
