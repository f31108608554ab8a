"""Validates the values that only flags can give. Pure. The messages are the reference's where it has them. Source of the
rules of `--node-labels`: the kubelet's command line reference and KEP-279."""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.api.labels import label_value_errors, qualified_name_errors
from pykubelet.base.model.version import VERSIONS, find_release
from pykubelet.config.errors import ConfigProblem
from pykubelet.config.settings import Flags
from pykubelet.config.validate_server import is_ip, is_socket

UNSPECIFIED = ("0.0.0.0", "::")
#: The CPU time that a call of an extension may be allowed. It is taken from the event loop.
MIN_EXTENSION_CPU_S, MAX_EXTENSION_CPU_S = 0.001, 0.1


def parse_node_ip(text: str) -> tuple[str, ...]:
    """The addresses in a `--node-ip` value. Items that are not addresses are ignored."""
    return tuple(item.strip() for item in text.split(",") if is_ip(item.strip()))


def validate_flags(flags: Flags) -> list[ConfigProblem]:
    """The problems of all flag-only values."""
    problems = []
    if flags.hostname_override and not flags.hostname_override.strip():
        problems.append(ConfigProblem("--hostname-override", "empty hostname is invalid"))
    if flags.cloud_provider not in ("", "external"):
        text = f'unsupported value "{flags.cloud_provider}" for --cloud-provider: must be empty or "external"'
        problems.append(ConfigProblem("--cloud-provider", text))
    if flags.emulated_version and find_release(flags.emulated_version) is None:
        known = " or ".join(VERSIONS)
        text = f'--emulated-version "{flags.emulated_version}" is not a release that this agent can be: must be {known}'
        problems.append(ConfigProblem("--emulated-version", text))
    wrong_ip = _node_ip_problem(flags.node_ip)
    if wrong_ip:
        shown = ",".join(flags.node_ip)
        problems.append(ConfigProblem("--node-ip", f'bad --node-ip "{shown}": {wrong_ip}'))
    if flags.exit_on_lock_contention and not flags.lock_file:
        text = "cannot exit on lock file contention: no lock file specified (--lock-file)"
        problems.append(ConfigProblem("--exit-on-lock-contention", text))
    if bool(flags.image_credential_provider_config) != bool(flags.image_credential_provider_bin_dir):
        text = "--image-credential-provider-config and --image-credential-provider-bin-dir must be given together"
        problems.append(ConfigProblem("--image-credential-provider-config", text))
    if flags.containerd and not is_socket(flags.containerd):
        text = f'--containerd "{flags.containerd}" must be a unix socket such as /run/containerd/containerd.sock'
        problems.append(ConfigProblem("--containerd", text))
    if not MIN_EXTENSION_CPU_S <= flags.extension_cpu_time_s <= MAX_EXTENSION_CPU_S:
        text = "--extension-cpu-time must be from 1ms to 100ms: the agent does nothing else in that time"
        problems.append(ConfigProblem("--extension-cpu-time", text))
    problems += _intervals(flags) + _refused(flags)
    labels = node_label_problem(flags.node_labels)
    if labels:
        problems.append(ConfigProblem("--node-labels", labels))
    return problems


def _intervals(flags: Flags) -> list[ConfigProblem]:
    intervals = {
        "--housekeeping-interval": flags.housekeeping_interval_s,
        "--max-housekeeping-interval": flags.max_housekeeping_interval_s,
        "--global-housekeeping-interval": flags.global_housekeeping_interval_s,
    }
    return [ConfigProblem(name, f"{name} must be positive") for name, value_s in intervals.items() if value_s <= 0]


def _refused(flags: Flags) -> list[ConfigProblem]:
    """Flags without an effect in this agent; leaving them out is the remedy."""
    problems = []
    if flags.experimental_mounter_path:
        text = "--experimental-mounter-path is not supported: volumes are mounted with the mount program of the host"
        problems.append(ConfigProblem("--experimental-mounter-path", text))
    if flags.application_metrics_count_limit != Flags().application_metrics_count_limit:
        text = "--application-metrics-count-limit is not supported: metrics of applications are not collected"
        problems.append(ConfigProblem("--application-metrics-count-limit", text))
    return problems


def _node_ip_problem(addresses: tuple[str, ...]) -> str | None:
    if len(addresses) < 2:
        return None
    if len(addresses) > 2 or (":" in addresses[0]) == (":" in addresses[1]):
        return "must contain either a single IP or a dual-stack pair of IPs"
    if any(address in UNSPECIFIED for address in addresses):
        return "dual-stack --node-ip cannot include '0.0.0.0' or '::'"
    return None


NAMESPACES = ("kubelet.kubernetes.io", "node.kubernetes.io")
KEYS = (
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
)


def node_label_problem(labels: Mapping[str, str]) -> str | None:
    """The problem of the labels, in the reference's words; None if there is none."""
    unknown = sorted(key for key in labels if _is_kubernetes(key) and not _is_allowed(key))
    if unknown:
        return (
            f"unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels: [{' '.join(unknown)}]\n"
            f"--node-labels in the 'kubernetes.io' namespace must begin with an allowed prefix "
            f"({', '.join(NAMESPACES)}) or be in the specifically allowed set ({', '.join(KEYS)})"
        )
    wrong: dict[str, list[str]] = {}
    for key, value in labels.items():
        for text, errors in ((key, qualified_name_errors(key)), (value, label_value_errors(value))):
            if errors:
                wrong.setdefault(text, []).extend(errors)
    if wrong:
        return "invalid node labels: " + "; ".join(f"'{text}' - {', '.join(wrong[text])}" for text in wrong)
    return None


def _namespace(key: str) -> str:
    return key.split("/", 1)[0] if "/" in key else ""


def _below(namespace: str, domain: str) -> bool:
    return namespace == domain or namespace.endswith("." + domain)


def _is_kubernetes(key: str) -> bool:
    return any(_below(_namespace(key), domain) for domain in ("kubernetes.io", "k8s.io"))


def _is_allowed(key: str) -> bool:
    return key in KEYS or any(_below(_namespace(key), domain) for domain in NAMESPACES)
