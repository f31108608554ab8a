"""Fields of pods whose feature gate is off count as not given."""

from __future__ import annotations

import pytest
from desired.roster.wants import make_pod

from pykubelet.base.api.codec import to_object
from pykubelet.base.api.core import NodeAllocatableResourceClaimStatus
from pykubelet.base.kit.cells import Sink
from pykubelet.base.kit.values import replace
from pykubelet.base.model.roster import SourceChanged
from pykubelet.base.model.sizing import qos_class
from pykubelet.base.model.version import Release
from pykubelet.config.gates import FeatureGates
from pykubelet.config.settings import Settings
from pykubelet.desired.sources.gated import ALL_ON, FieldGates, GatedPods, field_gates, without_disabled

RULE = {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}
ALL_RULE = {**RULE, "action": "RestartAllContainers"}
FULL = make_pod(
    hostnameOverride="other",
    initContainers=[{"name": "side", "image": "x", "restartPolicy": "Always"}],
    containers=[
        {
            "name": "app",
            "image": "x",
            "restartPolicy": "Never",
            "restartPolicyRules": [RULE, ALL_RULE],
            "env": [
                {"name": "A", "value": "1"},
                {"name": "B", "valueFrom": {"fileKeyRef": {"volumeName": "v", "path": "p", "key": "B"}}},
            ],
        }
    ],
)


def test_with_all_gates_on_a_pod_stays_itself() -> None:
    assert without_disabled(FULL, ALL_ON) is FULL
    assert without_disabled(make_pod(), FieldGates(False, False, False, False)).metadata.name == "web"


def test_each_gate_takes_its_own_field_away() -> None:
    assert without_disabled(FULL, FieldGates(hostname_override=False)).spec.hostnameOverride == ""
    env = without_disabled(FULL, FieldGates(env_files=False)).spec.containers[0].env
    assert [(variable.name, variable.value, variable.valueFrom) for variable in env] == [
        ("A", "1", None),
        ("B", "", None),
    ]
    rules = without_disabled(FULL, FieldGates(restart_all=False)).spec.containers[0].restartPolicyRules
    assert [rule.action for rule in rules] == ["Restart"]
    refused = without_disabled(FULL, FieldGates(restart_rules=False)).spec.containers[0].restartPolicyRules
    assert [rule.action for rule in refused] == ["RestartAllContainers"], "the node sees what it has to refuse"
    bare = without_disabled(FULL, FieldGates(restart_rules=False, restart_all=False)).spec
    assert (bare.containers[0].restartPolicy, bare.containers[0].restartPolicyRules) == ("", ())
    assert bare.initContainers[0].restartPolicy == "Always", "a sidecar is one all the same"


@pytest.mark.parametrize(("release", "qos"), [(Release.V1_36, "BestEffort"), (Release.V1_37, "Burstable")])
def test_until_1_36_empty_resources_of_a_pod_as_a_whole_count_for_its_class(release: Release, qos: str) -> None:
    gates = field_gates(Settings(gates=FeatureGates({}, release)))
    assert qos_class(without_disabled(make_pod(cpu="1"), gates)) == "Burstable"
    assert qos_class(without_disabled(make_pod(cpu="1", resources={}), gates)) == qos
    assert qos_class(without_disabled(make_pod(cpu="1", resources={"limits": {}}), gates)) == qos
    whole = {"limits": {"cpu": "1", "memory": "1Mi"}}
    assert qos_class(without_disabled(make_pod(cpu="1", resources=whole), gates)) == "Guaranteed"


def test_the_class_that_the_api_server_has_decided_on_counts() -> None:
    pod = make_pod(cpu="1", resources={})
    assert qos_class(replace(pod, status=replace(pod.status, qosClass="BestEffort"))) == "BestEffort"
    assert qos_class(replace(pod, status=replace(pod.status, qosClass="Superb"))) == "Burstable"


NEW = make_pod(
    containers=[
        {
            "name": "app",
            "image": "x",
            "volumeMounts": [{"name": "d", "mountPath": "/d", "bindMountOptions": ["noexec"]}],
            "livenessProbe": {"httpGet": {"port": 80, "protocol": "HTTP2"}},
            "readinessProbe": {"grpc": {"port": 81, "mode": "TLS"}},
            "lifecycle": {"preStop": {"httpGet": {"port": 80, "protocol": "HTTP2"}}},
        }
    ],
    volumes=[
        {"name": "d", "emptyDir": {"mode": 0o700, "medium": "Memory"}},
        {"name": "c", "configMap": {"name": "c", "defaultUser": 1, "items": [{"key": "k", "path": "k", "user": 2}]}},
        {
            "name": "p",
            "projected": {
                "defaultUser": 1,
                "sources": [
                    {"serviceAccountToken": {"path": "token", "user": 0}},
                    {"secret": {"name": "s", "items": [{"key": "k", "path": "k", "user": 2}]}},
                ],
            },
        },
    ],
)


@pytest.mark.parametrize(
    ("gate", "removed"),
    [
        ("bind_options", {"bindMountOptions"}),
        ("directory_modes", {"mode=448"}),
        ("file_owners", {"defaultUser", "user"}),
        ("http2_probes", {"protocol"}),
        ("tls_probes", {"mode=TLS"}),
    ],
)
def test_each_gate_of_1_37_takes_its_own_fields_away(gate: str, removed: set[str]) -> None:
    left = fields(to_object(without_disabled(NEW, FieldGates(**{gate: False}))))
    assert fields(to_object(NEW)) - left == removed


def test_what_claims_add_to_a_pod_is_left_out_without_the_gate() -> None:
    added = (NodeAllocatableResourceClaimStatus(resourceClaimName="c"),)
    pod = make_pod()
    pod = replace(pod, status=replace(pod.status, nodeAllocatableResourceClaimStatuses=added))
    assert without_disabled(pod, ALL_ON) is pod
    assert without_disabled(pod, FieldGates(claimed=False)).status.nodeAllocatableResourceClaimStatuses == ()


def fields(value: object) -> set[str]:
    """The names of all fields with a value; those of modes with it."""
    if isinstance(value, list):
        return set().union(*map(fields, value))
    if not isinstance(value, dict):
        return set()
    names = {f"{name}={inner}" if name == "mode" else name for name, inner in value.items()}
    return names.union(*map(fields, value.values()))


def test_a_pod_that_did_not_change_stays_the_same_object() -> None:
    out: Sink[SourceChanged] = Sink()
    gated = GatedPods(out, FieldGates(hostname_override=False))
    gated.post(SourceChanged("api", (FULL,)))
    gated.post(SourceChanged("api", (FULL, make_pod("b"))))
    first, second = out.events
    assert next(iter(second.pods)) is next(iter(first.pods)) and next(iter(first.pods)).spec.hostnameOverride == ""
    assert [pod.metadata.name for pod in second.pods] == ["web", "b"]


def test_each_of_two_equal_manifests_keeps_its_origin() -> None:
    out: Sink[SourceChanged] = Sink()
    gated = GatedPods(out, FieldGates(env_files=False))
    gated.post(SourceChanged("file", (FULL, FULL), origins=("/m/web.yaml", "/m/web.yaml.bak")))
    first, second = out.events[-1].pods
    assert first is second
    assert first.spec.containers[0].env[1].valueFrom is None
