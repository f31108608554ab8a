"""The gauges of `/metrics` that are read from the cells at the time of the scrape, beside those of the registry. Pure.

Source: the Kubernetes documentation "Kubernetes Metrics Reference".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from pykubelet.base.kit.metrics import MetricFamily, MetricSample
from pykubelet.base.kit.values import Value, field
from pykubelet.base.model.certificates import CertificateStage, PodCertificate, stage_at
from pykubelet.base.model.claims import ANY_DRIVER, Claims
from pykubelet.base.model.content import Content, Present
from pykubelet.base.model.credentials import Credentials
from pykubelet.base.model.lifecycle import KillReason, Lifecycles, PodLifecycle, Stage
from pykubelet.base.model.mounts import Mounts
from pykubelet.base.model.node import NodeView
from pykubelet.base.model.observed import Observed, ObservedState
from pykubelet.base.model.plugins import Plugins
from pykubelet.base.model.roster import Roster, is_static, priority_bucket
from pykubelet.base.model.statuses import Statuses
from pykubelet.base.model.usage import FileSystemUse, Usage
from pykubelet.base.model.version import CURRENT, Release
from pykubelet.edges.host.proc.self_stats import SelfStats

_STATES = {
    ObservedState.CREATED: "created",
    ObservedState.RUNNING: "running",
    ObservedState.EXITED: "exited",
    ObservedState.UNKNOWN: "unknown",
}
_LIFECYCLES = {Stage.SYNCING: "sync", Stage.TERMINATING: "terminating", Stage.TERMINATED: "terminated"}
#: The origin of a pod with a worker, and whether the pod is static, which is unknown for a pod that only the runtime has.
_WORKING = (("desired", ""), ("desired", "true"), ("orphan", ""), ("orphan", "true"), ("runtime_only", "unknown"))
_OVER = ("Succeeded", "Failed")
_BUILD = (
    *("build_date", "compiler", "git_commit", "git_tree_state", "git_version", "go_version", "major", "minor"),
    "platform",
)


class MetricsInputs(Value):
    """The values of the cells at the time of the scrape. `gates`: by name, whether a gate is on, and its stage.

    `now`: wall seconds. `volume_plugins`: the plugin's name by volume kind; kinds without an entry are not counted. `build`:
    further labels of `kubernetes_build_info`; what is not known is empty. `release`: of which Kubernetes the metrics are.
    """

    roster: Roster
    lifecycles: Lifecycles
    observed: Observed
    statuses: Statuses
    node: NodeView
    gates: Mapping[str, tuple[bool, str]]
    version: str
    cgroup_version: int
    credentials: Credentials = field(default_factory=Credentials)
    now: float = 0.0
    mounts: Mounts = Mounts()
    usage: Usage = Usage()
    volume_plugins: Mapping[str, str] = field(default_factory=dict)
    plugins: Plugins = Plugins()
    claims: Claims = Claims()
    content: Content = Content()
    build: Mapping[str, str] = field(default_factory=dict)
    release: Release = CURRENT


def kubelet_families(inputs: MetricsInputs) -> Iterator[MetricFamily]:
    """The gauges of the current state."""
    yield _gauge(
        "kubelet_node_name", "The node's name. The count is always 1.", [MetricSample(1, (("node", inputs.node.name),))]
    )
    yield from _certificates(inputs)
    yield from _pods(inputs)
    yield from _resizes(inputs)
    yield from _volumes(inputs)
    yield _plugins(inputs.plugins)
    yield _claims(inputs.claims)
    yield _pod_certificates(inputs)
    yield _logs(inputs.usage)
    yield from _claimed_volumes(inputs.usage)
    yield from _runtime(inputs.observed)
    yield _gauge("kubelet_cgroup_version", "cgroup version on the hosts.", [MetricSample(inputs.cgroup_version)])
    provider = (("provider", "cadvisor"),)
    yield _gauge(
        "kubelet_metrics_provider",
        "Metrics provider used by kubelet to collect container stats. Values can be 'cadvisor' and 'cri'",
        [MetricSample(1, provider)],
    )
    major, minor = inputs.version.removeprefix("v").split(".")[:2]
    build = {**inputs.build, "git_version": inputs.version, "major": major, "minor": minor}
    text = (
        "A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build date,"
        " Go version, and compiler from which Kubernetes was built, and platform on which it is running."
    )
    yield _gauge(
        "kubernetes_build_info", text, [MetricSample(1, tuple((name, build.get(name, "")) for name in _BUILD))]
    )
    gates = [
        MetricSample(float(on), (("name", name), ("stage", "" if stage == "GA" else stage.upper())))
        for name, (on, stage) in sorted(inputs.gates.items())
    ]
    yield _gauge(
        "kubernetes_feature_enabled",
        "This metric records the data about the stage and enablement of a k8s feature.",
        gates,
    )


def process_families(facts: SelfStats) -> Iterator[MetricFamily]:
    """The metrics of the agent's own process, under Prometheus' usual names."""
    cpu = "Total user and system CPU time spent in seconds."
    yield MetricFamily("process_cpu_seconds_total", "counter", cpu, [MetricSample(facts.cpu_s)])
    yield _gauge("process_resident_memory_bytes", "Resident memory size in bytes.", [MetricSample(facts.resident)])
    yield _gauge("process_virtual_memory_bytes", "Virtual memory size in bytes.", [MetricSample(facts.virtual)])
    limit = "Maximum amount of virtual memory available in bytes."
    yield _gauge("process_virtual_memory_max_bytes", limit, [MetricSample(facts.virtual_limit)])
    yield process_start(facts)
    for direction, word, value in (
        ("receive", "received", facts.network_in),
        ("transmit", "sent", facts.network_out),
    ):
        text = f"Number of bytes {word} by the process over the network."
        yield MetricFamily(f"process_network_{direction}_bytes_total", "counter", text, [MetricSample(value)])
    yield _gauge("process_open_fds", "Number of open file descriptors.", [MetricSample(facts.open_files)])
    yield _gauge("process_max_fds", "Maximum number of open file descriptors.", [MetricSample(facts.max_files)])


def process_start(facts: SelfStats) -> MetricFamily:
    """When the process started."""
    text = "Start time of the process since unix epoch in seconds."
    return _gauge("process_start_time_seconds", text, [MetricSample(facts.started_at)])


def _gauge(name: str, text: str, samples: list[MetricSample]) -> MetricFamily:
    return MetricFamily(name, "gauge", text, samples)


def _static(is_static_pod: bool) -> str:
    return "true" if is_static_pod else ""


def _counted(counts: Counter[str]) -> list[MetricSample]:
    return [MetricSample(counts[key], (("static", key),)) for key in ("", "true")]


def _plugins(plugins: Plugins) -> MetricFamily:
    wanted, registered = {*plugins.plugins, *plugins.problems}, set(plugins.plugins)
    states = (("actual_state_of_world", registered), ("desired_state_of_world", wanted))
    samples = [
        MetricSample(1, (("socket_path", socket), ("state", state)))
        for state, sockets in states
        for socket in sorted(sockets)
    ]
    return _gauge("plugin_manager_total_plugins", "Number of plugins in Plugin Manager", samples)


def _claims(claims: Claims) -> MetricFamily:
    text = (
        "The number of ResourceClaims that are currently in use on the node, by driver name (driver_name label value) and "
        "across all drivers (special value <any> for driver_name). Note that the sum of all by-driver counts is not the total "
        "number of in-use ResourceClaims because the same ResourceClaim might use devices from different drivers. Instead, "
        "use the count for the <any> driver_name."
    )
    counts = claims.in_use or {ANY_DRIVER: 0}
    samples = [MetricSample(count, (("driver_name", driver),)) for driver, count in sorted(counts.items())]
    return _gauge("dra_resource_claims_in_use", text, samples)


def _pod_certificates(inputs: MetricsInputs) -> MetricFamily:
    counts: Counter[tuple[str, CertificateStage]] = Counter()
    for key, record in inputs.content.certificates.items():
        certificate = record.found.value if isinstance(record.found, Present) else None
        stage = stage_at(certificate, inputs.now) if isinstance(certificate, PodCertificate) else record.stage
        counts[key.signer_name, stage] += 1
    text = "Gauge vector reporting the number of pod certificate projected volume sources, faceted by signer_name and state."
    samples = [
        MetricSample(number, (("signer_name", signer), ("state", str(stage))))
        for (signer, stage), number in sorted(counts.items())
    ]
    return _gauge("kubelet_podcertificate_states", text, samples)


def _pods(inputs: MetricsInputs) -> Iterator[MetricFamily]:
    desired: Counter[str] = Counter()
    active: Counter[str] = Counter()
    for uid, entry in inputs.roster.pods.items():
        key = _static(is_static(entry.pod))
        desired[key] += 1
        status = inputs.statuses.pods.get(uid)
        if status is None or status.phase not in _OVER:
            active[key] += 1
    yield _gauge(
        "kubelet_desired_pods",
        "The number of pods the kubelet is being instructed to run. static is true if the pod is not from the apiserver.",
        _counted(desired),
    )
    yield _gauge(
        "kubelet_active_pods",
        "The number of pods the kubelet considers active and which are being considered when admitting new pods."
        " static is true if the pod is not from the apiserver.",
        _counted(active),
    )
    managed = sum(len(entry.pod.spec.ephemeralContainers) for entry in inputs.roster.pods.values())
    yield _gauge(
        "kubelet_managed_ephemeral_containers",
        "Current number of ephemeral containers in pods managed by this kubelet.",
        [MetricSample(managed)],
    )
    mirrors = inputs.roster.mirrors or {}
    yield _gauge(
        "kubelet_mirror_pods",
        "The number of mirror pods the kubelet will try to create (one per admitted static pod)",
        [MetricSample(len(mirrors))],
    )
    working: Counter[tuple[str, str, str]] = Counter()
    for uid, lifecycle in inputs.lifecycles.pods.items():
        stage = _LIFECYCLES.get(lifecycle.stage)
        if stage is not None:
            config, static = _working(lifecycle, is_desired=uid in inputs.roster.pods)
            working[config, stage, static] += 1
    yield _gauge(
        "kubelet_working_pods",
        "Number of pods the kubelet is actually running, broken down by lifecycle phase, whether the pod is desired,"
        " orphaned, or runtime only (also orphaned), and whether the pod is static. An orphaned pod has been removed from"
        " local configuration or force deleted in the API and consumes resources that are not otherwise visible.",
        [
            MetricSample(working[config, stage, static], (("config", config), ("lifecycle", stage), ("static", static)))
            for config, static in _WORKING
            for stage in _LIFECYCLES.values()
        ],
    )


def _working(lifecycle: PodLifecycle, *, is_desired: bool) -> tuple[str, str]:
    if lifecycle.kill_reason is KillReason.ORPHANED:
        return "runtime_only", "unknown"
    return "desired" if is_desired else "orphan", _static(is_static(lifecycle.pod))


def _resizes(inputs: MetricsInputs) -> Iterator[MetricFamily]:
    waiting = Counter(
        (("priority_bucket", priority_bucket(e.pod)), ("reason", e.pending.reason.lower()))
        for e in inputs.roster.pods.values()
        if e.pending is not None
    )
    yield _gauge(
        "kubelet_pod_pending_resizes",
        "Number of pending resizes for pods.",
        [MetricSample(number, labels) for labels, number in sorted(waiting.items())],
    )
    under_way = sum(1 for life in inputs.lifecycles.pods.values() if life.resize is not None)
    yield _gauge(
        "kubelet_pod_in_progress_resizes", "Number of in-progress resizes for pods.", [MetricSample(under_way)]
    )


def _volumes(inputs: MetricsInputs) -> Iterator[MetricFamily]:
    """The numbers of volumes that pods need and of mounted volumes, by plugin. A claim counts as needed once its volume is mounted."""
    wanted = Counter(
        _plugin_name(plugin, volume.csi.driver if volume.csi is not None else "")
        for life in inputs.lifecycles.pods.values()
        if life.stage is Stage.SYNCING
        for volume in life.pod.spec.volumes
        for kind, plugin in inputs.volume_plugins.items()
        if getattr(volume, kind, None) is not None
    )
    actual: Counter[str] = Counter()
    for mounts in inputs.mounts.pods.values():
        for volume in mounts.volumes.values():
            if volume.kind in inputs.volume_plugins:
                driver = volume.csi.driver if volume.csi is not None else ""
                name = _plugin_name(inputs.volume_plugins[volume.kind], driver)
                actual[name] += 1
                wanted[name] += volume.spec_name != ""  # the pod's spec names a claim only
    samples = [
        MetricSample(number, (("plugin_name", plugin), ("state", state)))
        for state, counts in (("actual_state_of_world", actual), ("desired_state_of_world", wanted))
        for plugin, number in sorted(counts.items())
    ]
    yield _gauge("volume_manager_total_volumes", "Number of volumes in Volume Manager", samples)


def _plugin_name(plugin: str, driver: str) -> str:
    return f"{plugin}:{driver}" if driver else plugin


def _logs(usage: Usage) -> MetricFamily:
    """The sizes of containers' logs, if known. Only scrapes of `/stats/summary` and cAdvisor measure them, this one does not."""
    samples = []
    for pod in usage.pods.values():
        for container in pod.containers:
            if container.logs is not None and container.logs.used is not None:
                ref = pod.ref
                names = ("container", container.name), ("namespace", ref.namespace), ("pod", ref.name), ("uid", ref.uid)
                samples.append(MetricSample(container.logs.used, names))
    text = "Bytes used by the container's logs on the filesystem."
    return _gauge("kubelet_container_log_filesystem_used_bytes", text, samples)


_CLAIM_STATS: Mapping[str, tuple[str, Callable[[FileSystemUse], int | None]]] = {
    "capacity_bytes": ("Capacity in bytes of the volume", lambda fs: fs.capacity),
    "available_bytes": ("Number of available bytes in the volume", lambda fs: fs.available),
    "used_bytes": ("Number of used bytes in the volume", lambda fs: fs.used),
    "inodes": ("Maximum number of inodes in the volume", lambda fs: fs.inodes),
    "inodes_free": ("Number of free inodes in the volume", lambda fs: fs.inodes_free),
    "inodes_used": ("Number of used inodes in the volume", lambda fs: fs.inodes_used),
}


def _claimed_volumes(usage: Usage) -> Iterator[MetricFamily]:
    """The usage of each claim, as the first pod with it shows it."""
    found: dict[tuple[str, str], FileSystemUse] = {}
    abnormal: dict[tuple[str, str], bool] = {}
    for pod in usage.pods.values():
        for volume in pod.volumes:
            if volume.claim is not None:
                found.setdefault(volume.claim, volume.fs)
                if volume.is_abnormal is not None:
                    abnormal.setdefault(volume.claim, volume.is_abnormal)
    for name, (text, read) in _CLAIM_STATS.items():
        samples = [
            MetricSample(value, (("namespace", namespace), ("persistentvolumeclaim", claim)))
            for (namespace, claim), fs in sorted(found.items(), key=lambda item: item[0])
            if (value := read(fs)) is not None
        ]
        yield _gauge(f"kubelet_volume_stats_{name}", text, samples)
    samples = [
        MetricSample(float(is_abnormal), (("namespace", namespace), ("persistentvolumeclaim", claim)))
        for (namespace, claim), is_abnormal in sorted(abnormal.items(), key=lambda item: item[0])
    ]
    text = (
        "Abnormal volume health status. The count is either 1 or 0. 1 indicates the volume is unhealthy, 0 indicates volume"
        " is healthy"
    )
    yield _gauge("kubelet_volume_stats_health_status_abnormal", text, samples)


def _certificates(inputs: MetricsInputs) -> Iterator[MetricFamily]:
    """The time until the certificates expire; infinite without a certificate."""
    for use, title in (("client", "client"), ("serving", "server")):
        state = inputs.credentials.certificates.get(use)
        left = state.expires_at - inputs.now if state is not None and state.expires_at is not None else float("inf")
        text = f"Gauge of the TTL (time-to-live) of the Kubelet's {use} certificate."
        yield _gauge(f"kubelet_certificate_manager_{title}_ttl_seconds", text, [MetricSample(left)])


def _runtime(observed: Observed) -> Iterator[MetricFamily]:
    pods = sum(1 for view in observed.pods.values() if view.ready_sandboxes)
    yield _gauge("kubelet_running_pods", "Number of pods that have a running pod sandbox", [MetricSample(pods)])
    states = Counter(container.state for view in observed.pods.values() for container in view.containers)
    samples = [MetricSample(number, (("container_state", _STATES[state]),)) for state, number in sorted(states.items())]
    yield _gauge("kubelet_running_containers", "Number of containers currently running", samples)
