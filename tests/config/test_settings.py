from __future__ import annotations

from typing import Any

import pytest

from pykubelet.config.combine import FlagInput, combine
from pykubelet.config.errors import ConfigError
from pykubelet.config.eviction import Limit
from pykubelet.config.flag_values import node_label_problem, parse_node_ip, validate_flags
from pykubelet.config.settings import Flags, Settings


def _settings(**fields: Any) -> Settings:
    return combine(None, (), FlagInput(fields={path.replace("__", "."): value for path, value in fields.items()}), None)


def test_periods_are_seconds() -> None:
    settings = Settings()
    assert settings.config.syncFrequency.s == 60
    assert settings.config.fileCheckFrequency.s == 20
    assert settings.config.httpCheckFrequency.s == 20
    assert settings.config.runtimeRequestTimeout.s == 120
    assert settings.config.imageMinimumGCAge.s == 120
    assert settings.config.imageMaximumGCAge.s == 0
    assert settings.config.containerLogMonitorInterval.s == 10


def test_crash_backoff_follows_field_and_gates() -> None:
    assert (Settings().crash_backoff.initial_s, Settings().crash_backoff.cap_s) == (10, 300)
    short = _settings(crashLoopBackOff__maxContainerRestartPeriod="5s")
    assert (short.crash_backoff.initial_s, short.crash_backoff.cap_s) == (5, 5)
    reduced = _settings(featureGates={"ReduceDefaultCrashLoopBackOffDecay": True})
    assert (reduced.crash_backoff.initial_s, reduced.crash_backoff.cap_s) == (1, 300)
    assert Settings(gates=reduced.gates).crash_backoff.cap_s == 60


def test_values_in_the_form_that_components_use() -> None:
    settings = _settings(containerLogMaxSize="1Mi", podPidsLimit=100, cpuCFSQuotaPeriod="50ms")
    assert settings.container_log_max_bytes == 1 << 20
    assert settings.pod_pids_limit == 100
    assert Settings().pod_pids_limit is None
    assert settings.cpu_cfs_quota_period_us == 50_000
    assert settings.user_namespace_ids_per_pod == 65536
    assert settings.standalone
    assert (
        settings.image_endpoint == settings.config.containerRuntimeEndpoint == "unix:///run/containerd/containerd.sock"
    )
    assert _settings(imageServiceEndpoint="/i.sock").image_endpoint == "/i.sock"
    assert settings.cgroup_root == "/"
    assert _settings(cgroupRoot="/pods").cgroup_root == "/pods"
    assert not settings.log_json and settings.config.logging.verbosity == 0


def test_run_once_comes_from_flag_or_field() -> None:
    assert not Settings().run_once
    assert _settings(runOnce=True).run_once
    assert Settings(flags=Flags(runonce=True)).run_once


def test_seccomp_default_comes_from_flag_or_field() -> None:
    assert not Settings().seccomp_default
    assert _settings(seccompDefault=True).seccomp_default
    assert Settings(flags=Flags(seccomp_default=True)).seccomp_default


def test_the_nodes_name_is_trimmed_and_in_lower_case() -> None:
    assert Settings().node_name(" Host.Example ") == "host.example"
    assert Settings(flags=Flags(hostname_override="Node-A")).node_name("host") == "node-a"
    with pytest.raises(ConfigError, match="empty hostname is invalid"):
        Settings().node_name(" ")


def test_reserved_cpus_replace_the_cpu_amounts() -> None:
    reserved = _settings(
        reservedSystemCPUs="0-1,3",
        kubeReserved={"cpu": "1", "memory": "1Gi"},
        systemReserved={"cpu": "500m", "pid": "9"},
    ).reserved
    assert reserved.cpus == {0, 1, 3}
    assert {name: str(amount) for name, amount in reserved.kube.items()} == {"memory": "1Gi"}
    assert {name: str(amount) for name, amount in reserved.system.items()} == {"cpu": "3", "pid": "9"}


def test_qos_reservations_count_only_with_their_gate() -> None:
    assert _settings(qosReserved={"memory": "50%"}).reserved.qos == {}
    assert _settings(qosReserved={"memory": "50%"}, featureGates={"QOSReserved": True}).reserved.qos == {"memory": 50}


def test_thresholds_are_read_hard_ones_first() -> None:
    thresholds = _settings(
        evictionHard={"memory.available": "100Mi", "nodefs.available": "10%", "pid.available": "0%"},
        evictionSoft={"memory.available": "1Gi"},
        evictionSoftGracePeriod={"memory.available": "90s"},
        evictionMinimumReclaim={"nodefs.available": "5%"},
    ).eviction_thresholds
    assert [(threshold.signal, threshold.grace.s) for threshold in thresholds] == [
        ("memory.available", 0),
        ("nodefs.available", 0),
        ("memory.available", 90),
    ]
    assert thresholds[0].limit.amount is not None and thresholds[0].limit.amount.value() == 100 << 20
    assert thresholds[1].limit == Limit(fraction=0.10000000149011612)  # of single precision
    assert thresholds[1].reclaim == Limit(fraction=0.05000000074505806)


@pytest.mark.parametrize(
    ("flags", "messages"),
    [
        (Flags(), []),
        (Flags(hostname_override="  "), ["empty hostname is invalid"]),
        (
            Flags(cloud_provider="aws"),
            ['unsupported value "aws" for --cloud-provider: must be empty or "external"'],
        ),
        (Flags(cloud_provider="external"), []),
        (Flags(node_ip=("1.2.3.4", "fd00::1")), []),
        (
            Flags(node_ip=("1.2.3.4", "5.6.7.8")),
            ['bad --node-ip "1.2.3.4,5.6.7.8": must contain either a single IP or a dual-stack pair of IPs'],
        ),
        (
            Flags(node_ip=("1.2.3.4", "::")),
            ["bad --node-ip \"1.2.3.4,::\": dual-stack --node-ip cannot include '0.0.0.0' or '::'"],
        ),
        (
            Flags(exit_on_lock_contention=True),
            ["cannot exit on lock file contention: no lock file specified (--lock-file)"],
        ),
        (Flags(exit_on_lock_contention=True, lock_file="/l"), []),
        (
            Flags(image_credential_provider_config="/c"),
            ["--image-credential-provider-config and --image-credential-provider-bin-dir must be given together"],
        ),
    ],
)
def test_flag_only_values_are_checked(flags: Flags, messages: list[str]) -> None:
    assert [problem.text for problem in validate_flags(flags)] == messages


def test_node_ips_that_are_none_are_ignored() -> None:
    assert parse_node_ip("1.2.3.4, nope,fd00::1") == ("1.2.3.4", "fd00::1")
    assert parse_node_ip("") == ()


@pytest.mark.parametrize(
    "key",
    [
        "a",
        "example.com/a",
        "node.kubernetes.io/x",
        "kubelet.kubernetes.io/x",
        "sub.node.kubernetes.io/x",
        "sub.kubelet.kubernetes.io/x",
        "kubernetes.io/hostname",
        "kubernetes.io/os",
        "kubernetes.io/arch",
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region",
        "node.kubernetes.io/instance-type",
        "beta.kubernetes.io/instance-type",
        "beta.kubernetes.io/os",
        "beta.kubernetes.io/arch",
        "notkubernetes.io/x",
    ],
)
def test_allowed_node_labels(key: str) -> None:
    assert node_label_problem({key: "v"}) is None


def test_labels_of_the_projects_own_namespaces_are_refused() -> None:
    problem = node_label_problem({"kubernetes.io/b": "", "x.k8s.io/a": "", "k8s.io/c": "", "fine": ""})
    assert problem is not None
    first, second = problem.split("\n")
    assert first == (
        "unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels: [k8s.io/c kubernetes.io/b x.k8s.io/a]"
    )
    assert second == (
        "--node-labels in the 'kubernetes.io' namespace must begin with an allowed prefix "
        "(kubelet.kubernetes.io, node.kubernetes.io) or be in the specifically allowed set "
        "(beta.kubernetes.io/arch, beta.kubernetes.io/instance-type, beta.kubernetes.io/os, "
        "failure-domain.beta.kubernetes.io/region, failure-domain.beta.kubernetes.io/zone, kubernetes.io/arch, "
        "kubernetes.io/hostname, kubernetes.io/os, node.kubernetes.io/instance-type, topology.kubernetes.io/region, "
        "topology.kubernetes.io/zone)"
    )


def test_labels_that_are_no_labels_are_refused() -> None:
    problem = node_label_problem({"a b": "ok", "ok": "-"})
    assert problem is not None
    assert problem.startswith("invalid node labels: 'a b' - name part must consist of alphanumeric")
    assert "; '-' - " in problem
