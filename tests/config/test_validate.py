"""Every rule of `validate_cases.py` and its parts is reported; what is allowed passes."""

from __future__ import annotations

from typing import Any

import pytest
from config.validate_cases import ALL, NO_CRASH
from config.validate_node_cases import ALLOW, ALLOWED

from pykubelet.config.combine import File, FlagInput, combine, with_defaults
from pykubelet.config.errors import ConfigError
from pykubelet.config.gates import FeatureGates
from pykubelet.config.kubelet import KubeletConfiguration
from pykubelet.config.schema import build, check
from pykubelet.config.validate import validate
from pykubelet.config.validate_host import CGROUP_V1_REFUSED, HostFacts, validate_host


def _config(document: dict[str, Any]) -> KubeletConfiguration:
    assert check(document) == []
    return build(with_defaults(document, {}))


def _problems(document: dict[str, Any]) -> list[str]:
    config = _config(document)
    return [problem.text for problem in validate(config, FeatureGates(config.featureGates))]


@pytest.mark.parametrize(("document", "messages"), ALL, ids=[messages[0][:70] for _, messages in ALL])
def test_a_broken_rule_is_reported(document: dict[str, Any], messages: list[str]) -> None:
    assert _problems(document) == messages


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"runOnce": True},
        {"healthzPort": 0},
        {"containerLogMaxSize": "-1"},
        {"volumeStatsAggPeriod": "-1s"},
        {"maxParallelImagePulls": 1},
        {"maxParallelImagePulls": 5},
        {"maxParallelImagePulls": 5, "serializeImagePulls": False},
        {"evictionHard": {"memory.available": "0%", "pid.available": "100%"}},
        {"evictionSoft": {"memory.available": "5%"}, "evictionSoftGracePeriod": {"memory.available": "1m"}},
        {"enforceNodeAllocatable": ["none"], "cgroupsPerQOS": False},
        {"enforceNodeAllocatable": [], "cgroupsPerQOS": False},
        {"userNamespaces": {"idsPerPod": 131072}},
        {"featureGates": NO_CRASH},
        {"featureGates": {"KubeletEnsureSecretPulledImages": False}},
        {
            **ALLOWED,
            ALLOW: ["registry.example/team/app", "localhost/x", "reg:5000/a", "app", "team/app", "host.example/team/*"],
        },
        {"tracing": {"endpoint": "localhost:4317", "samplingRatePerMillion": 0}},
        {"shutdownGracePeriod": "30s", "shutdownGracePeriodCriticalPods": "10s"},
        {"cpuManagerPolicy": "static", "cpuManagerPolicyOptions": {"full-pcpus-only": "true"}},
        {"qosReserved": {"anything": "goes while the gate is off"}},
        {"showHiddenMetricsForVersion": "1.36"},
        {"containerRuntimeEndpoint": "/run/containerd/containerd.sock"},
        {"featureGates": {"LoggingAlphaOptions": True}, "logging": {"options": {"json": {"splitStream": True}}}},
        {"featureGates": {"MemoryQoS": True}, "memoryReservationPolicy": "TieredReservation"},
    ],
)
def test_what_is_allowed_passes(document: dict[str, Any]) -> None:
    assert _problems(document) == []


def test_all_violations_are_reported_at_once_with_their_file() -> None:
    data = b"""
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
maxPods: -1
port: 70000
evictionHard: {memory.available: lots}
"""
    given = FlagInput(fields={"oomScoreAdj": 5000}, names={"oomScoreAdj": "oom-score-adj"})
    with pytest.raises(ConfigError) as error:
        combine(File("/etc/k.yaml", data), (), given, None)
    assert error.value.problems == (
        "invalid configuration: maxPods (--max-pods) -1 must not be a negative number (set in /etc/k.yaml)",
        "invalid configuration: oomScoreAdj (--oom-score-adj) 5000 must be between -1000 and 1000, inclusive",
        'invalid configuration: evictionHard[memory.available]: invalid value "lots": '
        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$' "
        "(set in /etc/k.yaml)",
        "invalid configuration: port (--port) 70000 must be between 1 and 65535, inclusive (set in /etc/k.yaml)",
    )


@pytest.mark.parametrize(
    ("document", "host", "messages"),
    [
        (
            {},
            HostFacts(cgroup_v2=False, online_cpus=frozenset(), swap_on=False),
            [CGROUP_V1_REFUSED],
        ),
        ({"failCgroupV1": False}, HostFacts(False, frozenset(), False), []),
        (
            {"failCgroupV1": False, "singleProcessOOMKill": False},
            HostFacts(False, frozenset(), False),
            ["invalid configuration: singleProcessOOMKill must not be explicitly set to false when using cgroup v1"],
        ),
        ({"singleProcessOOMKill": False}, HostFacts(True, frozenset(), False), []),
        (
            {"failCgroupV1": False, "memorySwap": {"swapBehavior": "LimitedSwap"}},
            HostFacts(False, frozenset(), False),
            ["invalid configuration: memorySwap.swapBehavior LimitedSwap is not supported on a host using cgroup v1"],
        ),
        (
            {},
            HostFacts(True, frozenset(), True),
            ["running with swap on is not supported, please disable swap or set --fail-swap-on flag to false"],
        ),
        ({"failSwapOn": False}, HostFacts(True, frozenset(), True), []),
        (
            {"reservedSystemCPUs": "1-2"},
            HostFacts(True, frozenset({0, 1}), False),
            ["reserved-cpus: 1-2 is not a subset of online-cpus: 0-1"],
        ),
        ({"reservedSystemCPUs": "1"}, HostFacts(True, frozenset({0, 1}), False), []),
    ],
)
def test_rules_about_the_machine(document: dict[str, Any], host: HostFacts, messages: list[str]) -> None:
    assert [problem.text for problem in validate_host(_config(document), host)] == messages
