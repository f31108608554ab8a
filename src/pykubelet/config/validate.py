"""Validates a KubeletConfiguration and reports all violations at once. Pure.

The messages are the reference kubelet's, because users search for them. Errors that the reference only finds later at start
(unknown policies, malformed quantities) are checked here too, with messages of the same form.
Rules that need facts of the machine are in `validate_host.py`, rules about pod resources and cgroups in `validate_node.py`.
One rule is left out on purpose: the reference refuses `runOnce: true`, while this agent runs the pods once and exits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter

from pykubelet.base.api.labels import label_value_errors, qualified_name_errors
from pykubelet.base.kit.durations import MILLISECOND, SECOND, Duration
from pykubelet.config.errors import ConfigProblem
from pykubelet.config.gates import FeatureGates, dependency_problems, setting_problems
from pykubelet.config.kubelet import KubeletConfiguration, RegistrationTaint
from pykubelet.config.validate_logs import check_logging, check_pod_logs, check_tracing
from pykubelet.config.validate_node import check_node_resources
from pykubelet.config.validate_server import check_server

PREFIX = "invalid configuration: "
MAX_INT32 = 2**31 - 1
#: Durations that only must not be negative, with their flags if they have one.
NEVER_NEGATIVE = (
    ("authentication.webhook.cacheTTL", "authentication-token-webhook-cache-ttl"),
    ("authorization.webhook.cacheAuthorizedTTL", "authorization-webhook-cache-authorized-ttl"),
    ("authorization.webhook.cacheUnauthorizedTTL", "authorization-webhook-cache-unauthorized-ttl"),
    ("cpuManagerReconcilePeriod", "cpu-manager-reconcile-period"),
    ("evictionPressureTransitionPeriod", "eviction-pressure-transition-period"),
    ("fileCheckFrequency", "file-check-frequency"),
    ("httpCheckFrequency", "http-check-frequency"),
    ("nodeStatusReportFrequency", ""),
    ("nodeStatusUpdateFrequency", "node-status-update-frequency"),
    ("runtimeRequestTimeout", "runtime-request-timeout"),
    ("streamingConnectionIdleTimeout", "streaming-connection-idle-timeout"),
    ("syncFrequency", "sync-frequency"),
)
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def validate(config: KubeletConfiguration, gates: FeatureGates, *, extensions: bool = False) -> list[ConfigProblem]:
    """All violations of `config`, in the order of the reference's validator. `extensions`: there are some, so that the name of a policy
    may be that of an extension, which whatever loads them checks."""
    unknown = setting_problems(gates.given, gates.release)
    if unknown:
        return [ConfigProblem("featureGates", text) for text in unknown]
    problems = [ConfigProblem("featureGates", text) for text in dependency_problems(gates)]
    problems += _prefixed(_numbers(config, gates))
    problems += _prefixed(_durations(config))
    problems += _prefixed(_images(config, gates))
    problems += _taints(config)
    problems += _prefixed(_shutdown(config, gates))
    problems += _prefixed(_backoff(config, gates))
    problems += _prefixed(check_node_resources(config, gates, extensions=extensions))
    problems += _prefixed(check_server(config, gates))
    if config.showHiddenMetricsForVersion not in ("", gates.release.previous):
        field = "showHiddenMetricsForVersion"
        text = (
            f'invalid {field}: {field}: Invalid value: "{config.showHiddenMetricsForVersion}": must be omitted or have the value '
            f"'{gates.release.previous}'; only the previous minor version is allowed"
        )
        problems.append(ConfigProblem(field, text))
    problems += check_logging(config.logging, gates)
    problems += check_tracing(config.tracing)
    problems += _prefixed(check_pod_logs(config))
    return problems


def _prefixed(found: Iterable[ConfigProblem]) -> list[ConfigProblem]:
    return [ConfigProblem(problem.field, PREFIX + problem.text) for problem in found]


def _numbers(config: KubeletConfiguration, gates: FeatureGates) -> Iterator[ConfigProblem]:
    if config.nodeLeaseDurationSeconds <= 0:
        yield ConfigProblem("nodeLeaseDurationSeconds", "nodeLeaseDurationSeconds must be greater than 0")
    if config.systemCgroups and not config.cgroupRoot:
        text = "systemCgroups (--system-cgroups) was specified and cgroupRoot (--cgroup-root) was not specified"
        yield ConfigProblem("systemCgroups", text)
    never_negative = (
        ("eventBurst", "event-burst"),
        ("eventRecordQPS", "event-qps"),
        ("kubeAPIBurst", "kube-api-burst"),
        ("kubeAPIQPS", "kube-api-qps"),
        ("maxOpenFiles", "max-open-files"),
        ("maxPods", "max-pods"),
        ("podsPerCore", "pods-per-core"),
        ("registryBurst", "registry-burst"),
        ("registryPullQPS", "registry-qps"),
    )
    for field, flag in never_negative:
        number = getattr(config, field)
        if number < 0:
            yield ConfigProblem(field, f"{field} (--{flag}) {number} must not be a negative number")
    ranges = (
        ("imageGCHighThresholdPercent", "image-gc-high-threshold", 0, 100),
        ("imageGCLowThresholdPercent", "image-gc-low-threshold", 0, 100),
        ("iptablesDropBit", "iptables-drop-bit", 0, 31),
        ("iptablesMasqueradeBit", "iptables-masquerade-bit", 0, 31),
        ("oomScoreAdj", "oom-score-adj", -1000, 1000),
    )
    for field, flag, low, high in ranges:
        number = getattr(config, field)
        if not low <= number <= high:
            yield ConfigProblem(field, f"{field} (--{flag}) {number} must be between {low} and {high}, inclusive")
    if config.nodeStatusMaxImages < -1:
        text = f"nodeStatusMaxImages (--node-status-max-images) {config.nodeStatusMaxImages} must be -1 or greater"
        yield ConfigProblem("nodeStatusMaxImages", text)
    period, field = config.cpuCFSQuotaPeriod, "cpuCFSQuotaPeriod"
    if not gates.enabled("CustomCPUCFSQuotaPeriod"):
        if period.ns != 100 * MILLISECOND:
            text = f"{field} (--cpu-cfs-quota-period) {{{period}}} requires feature gate CustomCPUCFSQuotaPeriod"
            yield ConfigProblem(field, text)
    elif not MILLISECOND <= period.ns <= SECOND:
        text = f"{field} (--cpu-cfs-quota-period) {{{period}}} must be between 1ms and 1sec, inclusive"
        yield ConfigProblem(field, text)


def _durations(config: KubeletConfiguration) -> Iterator[ConfigProblem]:
    for path, flag in NEVER_NEGATIVE:
        period: Duration = attrgetter(path)(config)
        follows = path == "nodeStatusReportFrequency" and period == config.nodeStatusUpdateFrequency
        if period.ns < 0 and not follows:
            named = f"{path} (--{flag})" if flag else path
            yield ConfigProblem(path, f"{named} {period} must not be negative: a duration, or 0 for the default")


def _images(config: KubeletConfiguration, gates: FeatureGates) -> Iterator[ConfigProblem]:
    low, high = config.imageGCLowThresholdPercent, config.imageGCHighThresholdPercent
    if low >= high:
        yield ConfigProblem(
            "imageGCLowThresholdPercent",
            f"imageGCLowThresholdPercent (--image-gc-low-threshold) {low} must be less than "
            f"imageGCHighThresholdPercent (--image-gc-high-threshold) {high}",
        )
    least, most = config.imageMinimumGCAge, config.imageMaximumGCAge
    for field, age in (("imageMinimumGCAge", least), ("imageMaximumGCAge", most)):
        if age.ns < 0:
            yield ConfigProblem(field, f"{field} {age} must not be negative")
    if 0 < most.ns <= least.ns:
        yield ConfigProblem(
            "imageMaximumGCAge", f"imageMaximumGCAge {most} must be greater than imageMinimumGCAge {least}"
        )
    pulls = config.maxParallelImagePulls
    if pulls is not None and pulls < 1:
        yield ConfigProblem("maxParallelImagePulls", f"maxParallelImagePulls {pulls} must be a positive number")
    if config.serializeImagePulls and pulls is not None and pulls > 1:
        yield ConfigProblem(
            "maxParallelImagePulls",
            "maxParallelImagePulls cannot be larger than 1 unless SerializeImagePulls (--serialize-image-pulls) is "
            "set to false",
        )
    if config.serverTLSBootstrap and not gates.enabled("RotateKubeletServerCertificate"):
        text = "serverTLSBootstrap true requires feature gate RotateKubeletServerCertificate"
        yield ConfigProblem("serverTLSBootstrap", text)


def _taints(config: KubeletConfiguration) -> list[ConfigProblem]:
    problems = []
    for taint in config.registerWithTaints:
        if not _is_taint(taint):
            added = taint.timeAdded or "<nil>"
            text = f"invalid taint: {{{taint.key} {taint.value} {taint.effect} {added}}}"
            problems.append(ConfigProblem("registerWithTaints", text))
        if taint.timeAdded is not None:
            problems.append(ConfigProblem("registerWithTaints", f"{PREFIX}taint.TimeAdded is not nil"))
    return problems


def _is_taint(taint: RegistrationTaint) -> bool:
    if qualified_name_errors(taint.key) or label_value_errors(taint.value):
        return False
    return taint.effect in ("", *EFFECTS)


def _shutdown(config: KubeletConfiguration, gates: FeatureGates) -> Iterator[ConfigProblem]:
    total, critical = config.shutdownGracePeriod, config.shutdownGracePeriodCriticalPods
    if gates.enabled("GracefulNodeShutdown"):
        if critical.ns > total.ns:
            text = f"shutdownGracePeriodCriticalPods {{{critical}}} must be <= shutdownGracePeriod {{{total}}}"
            yield ConfigProblem("shutdownGracePeriodCriticalPods", text)
        for field, period in (("shutdownGracePeriod", total), ("shutdownGracePeriodCriticalPods", critical)):
            if period.ns < 0 or 0 < period.ns < SECOND:
                yield ConfigProblem(field, f"{field} {{{period}}} must be either zero or otherwise >= 1 sec")
    elif total.ns > 0 or critical.ns > 0:
        yield ConfigProblem(
            "shutdownGracePeriod",
            "specifying shutdownGracePeriod or shutdownGracePeriodCriticalPods requires feature gate "
            "GracefulNodeShutdown",
        )
    if not config.shutdownGracePeriodByPodPriority:
        return
    field = "shutdownGracePeriodByPodPriority"
    if not gates.enabled("GracefulNodeShutdownBasedOnPodPriority"):
        text = f"Specifying {field} requires feature gate GracefulNodeShutdownBasedOnPodPriority"
        yield ConfigProblem(field, text)
    elif total.ns > 0 or critical.ns > 0:
        yield ConfigProblem(field, f"Cannot specify both {field} and shutdownGracePeriod at the same time")


def _backoff(config: KubeletConfiguration, gates: FeatureGates) -> Iterator[ConfigProblem]:
    field, name = "crashLoopBackOff.maxContainerRestartPeriod", "CrashLoopBackOff.MaxContainerRestartPeriod"
    period = config.crashLoopBackOff.maxContainerRestartPeriod
    if not gates.enabled("KubeletCrashLoopBackOffMax"):
        if period is not None:
            yield ConfigProblem(field, f"FeatureGate KubeletCrashLoopBackOffMax not enabled, {name} must not be set")
    elif period is None:
        yield ConfigProblem(field, f"FeatureGate KubeletCrashLoopBackOffMax is enabled, {name} must be set")
    elif not 1000 <= period.ns // MILLISECOND <= 300_000:
        yield ConfigProblem(field, f"{name} (got: {period.s:g} seconds) must be set between 1s and 300s")
