"""What differs between the releases of Kubernetes and has no feature gate. Pure.

One field for each difference, one record for each release. A component reads `Settings.behavior`, and never asks for the release.
Source: the release notes of Kubernetes, and the page about each feature that a field names.
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.version import CURRENT, Release


class Behavior(Value):
    """The differences of a release."""

    #: `memoryThrottlingFactor` if it is not configured; None: memory.high is not written (KEP-2570).
    memory_throttling_factor: float | None = 0.9
    #: The release that refuses a runtime without RuntimeConfig (KEP-4033), as a label of `kubelet_cri_losing_support`.
    runtime_config_required_in: str = "1.37.0"
    #: Whether the agent starts on such a runtime. 1.38 of the Kubernetes kubelet does not; this agent detects the cgroup driver.
    is_configuration_logged: bool = False
    #: Whether the condition PodReadyToStartContainers has a reason and a message while it is False (kubernetes/kubernetes#135300).
    explains_sandbox: bool = False
    #: Whether `ephemeral-storage` of the Node has decimal units, as `1k`, in place of `1000` or `1Ki` (kubernetes/kubernetes#137652).
    decimal_storage: bool = False


_1_36 = Behavior()
_1_37 = replace(
    _1_36,
    memory_throttling_factor=None,
    runtime_config_required_in="1.38.0",
    is_configuration_logged=True,
    explains_sandbox=True,
    decimal_storage=True,
)
_1_38 = _1_37

BEHAVIORS: Mapping[Release, Behavior] = {Release.V1_36: _1_36, Release.V1_37: _1_37, Release.V1_38: _1_38}


def behavior_of(release: Release = CURRENT) -> Behavior:
    """The behavior of a release."""
    return BEHAVIORS[release]
