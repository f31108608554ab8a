"""What differs between the releases of Kubernetes and has no feature gate. Pure.

One field for each difference, one record for each release. A component reads `Settings.behavior`, and never asks for the release.
Source: the release notes of Kubernetes, and the page about each feature that a field names.
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.sysctls import SAFE_1_36, SAFE_1_37, Safe
from pykubelet.base.model.version import CURRENT, Release


class Behavior(Value):
    """The differences of a release."""

    #: Whether the socket of the Pods API exists with the gate PodsAPI off, and answers each call with an error (KEP-4188).
    is_pods_api_always_served: bool = False
    #: `memoryThrottlingFactor` if it is not configured; None: memory.high is not written (KEP-2570).
    memory_throttling_factor: float | None = 0.9
    #: Whether memory.high also throttles BestEffort containers, and pods with memory of their own (KEP-2570).
    throttles_more: bool = False
    #: Whether the group of all pods also has memory.low, for Burstable pods (KEP-2570).
    protects_pods_softly: bool = False
    #: The release in which the kubelet refuses a runtime without RuntimeConfig (KEP-4033), as a label of
    #: `kubelet_cri_losing_support`. This agent starts on such a runtime in every release (docs/runtimes.md).
    runtime_config_required_in: str = "1.37.0"
    #: Whether the effective configuration is logged at start.
    is_configuration_logged: bool = False
    #: Whether `cpu_manager_state` and `memory_manager_state` have the state as `data` too (KEP-5526).
    state_files_have_data: bool = False
    #: Whether the condition PodReadyToStartContainers has a reason and a message while it is False (kubernetes/kubernetes#135300).
    explains_sandbox: bool = False
    #: Whether `ephemeral-storage` of the Node has decimal units, as `1k`, in place of `1000` or `1Ki` (kubernetes/kubernetes#137652).
    decimal_storage: bool = False
    #: The sysctls that pods may set without `allowedUnsafeSysctls` (kubernetes/kubernetes#138389).
    safe_sysctls: Safe = SAFE_1_36
    #: Whether missing secrets of imagePullSecrets are reported before the pull, in place of after it has failed
    #: (kubernetes/kubernetes#138432).
    reports_secrets_at_once: bool = True
    #: Whether DRA drivers that have registered no service for the health of devices are asked for it (KEP-4680).
    asks_unlisted_health: bool = True
    #: Whether the health of devices behind extended resources is in a pod's status, which the API server of 1.36 refuses
    #: (kubernetes/kubernetes#139941).
    reports_extended_claims: bool = False
    #: Whether a gRPC probe dials a server that refuses the connection again until the probe's time-out
    #: (kubernetes/kubernetes#142457).
    grpc_probe_redials: bool = True
    #: Whether `distribute-cpus-across-cores` goes round the cores, in place of by ids (kubernetes/kubernetes#140766).
    spread_by_topology: bool = False
    #: Whether `distribute-cpus-across-numa` uses all NUMA nodes that the Topology Manager has chosen (kubernetes/kubernetes#139456).
    keep_all_nodes: bool = False
    #: Whether the API server is asked to leave `metadata.managedFields` out of its answers (KEP-5958).
    drops_managed_fields: bool = False
    #: Whether `nodeInfo.runningInUserNamespace` of the Node is set (KEP-2033).
    is_user_namespace_reported: bool = False


_1_36 = Behavior()
_1_37 = replace(
    _1_36,
    is_pods_api_always_served=True,
    memory_throttling_factor=None,
    throttles_more=True,
    protects_pods_softly=True,
    runtime_config_required_in="1.38.0",
    is_configuration_logged=True,
    state_files_have_data=True,
    explains_sandbox=True,
    decimal_storage=True,
    safe_sysctls=SAFE_1_37,
    reports_secrets_at_once=False,
    asks_unlisted_health=False,
    reports_extended_claims=True,
    is_user_namespace_reported=True,
)
_1_38 = replace(
    _1_37, grpc_probe_redials=False, spread_by_topology=True, keep_all_nodes=True, drops_managed_fields=True
)

BEHAVIORS: Mapping[Release, Behavior] = {Release.V1_36: _1_36, Release.V1_37: _1_37, Release.V1_38: _1_38}


def behavior_of(release: Release = CURRENT) -> Behavior:
    """The behavior of a release."""
    return BEHAVIORS[release]
