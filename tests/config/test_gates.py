from __future__ import annotations

import pytest

from pykubelet.config.gates import (
    DEPENDENCIES,
    FIXED,
    FeatureGates,
    FeatureStage,
    dependency_problems,
    known_gates,
    settable_gates,
    setting_problems,
)

# Name, default, locked: of every gate the kubelet reads in 1.36.
ON_LOCKED = """
CPUManagerPolicyOptions DynamicResourceAllocation ImageMaximumGCAge ImageVolume InPlacePodVerticalScaling
KubeletCgroupDriverFromCRI KubeletFineGrainedAuthz KubeletPSI KubeletPodResourcesDynamicResources KubeletPodResourcesGet
KubeletTracing MutableCSINodeAllocatableCount NodeLogQuery NodeSwap PodLifecycleSleepAction
PodObservedGenerationTracking ProcMountType RecoverVolumeExpansionFailure RecursiveReadOnlyMounts
RelaxedDNSSearchValidation RelaxedEnvironmentVariableValidation SELinuxChangePolicy SELinuxMountReadWriteOncePod
SidecarContainers SupplementalGroupsPolicy SystemdWatchdog TopologyManagerPolicyOptions UserNamespacesSupport
"""
ON = """
ContainerCheckpoint ContainerRestartRules CustomCPUCFSQuotaPeriod CPUManagerPolicyBetaOptions
DisableCPUQuotaWithExclusiveCPUs DRAExtendedResource EnvFiles ExtendWebSocketsToKubelet
GracefulNodeShutdown GracefulNodeShutdownBasedOnPodPriority HostnameOverride InPlacePodLevelResourcesVerticalScaling
InPlacePodVerticalScalingInitContainers KubeletCrashLoopBackOffMax KubeletEnsureSecretPulledImages
KubeletPodResourcesListUseActivePods KubeletSeparateDiskGC KubeletServiceAccountTokenForCredentialProviders
NodeDeclaredFeatures PLEGOnDemandRelist PodLevelResources PodReadyToStartContainersCondition
PreventStaticPodAPIReferences ReloadKubeletClientCAFile ReloadKubeletServerCertificateFile ResourceHealthStatus
ResourceHealthStatusMessage RestartAllContainersOnContainerExits RotateKubeletServerCertificate
TopologyManagerPolicyBetaOptions ComponentFlagz ComponentStatusz ContextualLogging LoggingBetaOptions
"""
OFF = """
AllowDNSOnlyNodeCSR ChangeContainerStatusOnKubeletRestart
ClusterTrustBundleProjection ContainerStopSignals CPUManagerPolicyAlphaOptions CRIListStreaming CSIVolumeHealth
EventedPLEG ImageVolumeWithDigest InPlacePodVerticalScalingExclusiveCPUs InPlacePodVerticalScalingExclusiveMemory
KubeletInUserNamespace KubeletRegistrationGetOnExistsOnly LocalStorageCapacityIsolationFSQuotaMonitoring MemoryQoS
NativeHistograms PodAndContainerStatsFromCRI PodCertificateRequest PodLevelResourceManagers PodLogsQuerySplitStreams
PodsAPI QOSReserved ReduceDefaultCrashLoopBackOffDecay RuntimeClassInImageCriApi SELinuxMount
TaintTolerationComparisonOperators TopologyManagerPolicyAlphaOptions UserNamespacesHostNetworkSupport
LoggingAlphaOptions
"""
OFF_LOCKED = "GitRepoVolumeDriver"
ROWS = [
    (name, default, locked)
    for names, default, locked in (
        (ON_LOCKED, True, True),
        (ON, True, False),
        (OFF, False, False),
        (OFF_LOCKED, False, True),
    )
    for name in names.split()
]


@pytest.mark.parametrize(("name", "default", "locked"), ROWS, ids=[row[0] for row in ROWS])
def test_a_gate_has_its_default_and_lock(name: str, default: bool, locked: bool) -> None:
    assert FeatureGates({}).enabled(name) is default
    assert setting_problems({name: default}) == []
    against = setting_problems({name: not default})
    wanted, fixed = str(not default).lower(), str(default).lower()
    if locked:
        assert against == [f"cannot set feature gate {name} to {wanted}, feature is locked to {fixed}"]
    elif name in FIXED:
        assert against == [f"cannot set feature gate {name} to {wanted} here: {FIXED[name]}"]
    else:
        assert against == []
        assert FeatureGates({name: not default}).enabled(name) is not default


def test_the_table_has_the_gates_of_the_kubelet() -> None:
    assert settable_gates() == {name for name, _, locked in ROWS if not locked}


def test_an_unknown_gate_is_refused_with_the_nearest_name() -> None:
    assert setting_problems({"Qqq": True}) == ["unrecognized feature gate: Qqq"]
    assert setting_problems({"EventedPLEGG": True}) == [
        'unrecognized feature gate: EventedPLEGG (did you mean "EventedPLEG"?)'
    ]


def test_gates_of_other_components_are_known() -> None:
    assert setting_problems({"StatefulSetSemanticRevisionComparison": False, "HPAScaleToZero": True}) == []


def test_all_alpha_and_all_beta_move_what_is_not_set_itself() -> None:
    assert setting_problems({"AllAlpha": True, "AllBeta": False}) == []
    alpha = FeatureGates({"AllAlpha": True, "EventedPLEG": False})
    assert alpha.enabled("MemoryQoS") and not alpha.enabled("EventedPLEG")
    assert not alpha.enabled("SELinuxMount") and not alpha.enabled("AllowDNSOnlyNodeCSR")
    beta = FeatureGates({"AllBeta": False, "EnvFiles": True})
    assert not beta.enabled("PodLevelResources") and beta.enabled("EnvFiles")
    assert beta.enabled("SidecarContainers") and beta.enabled("CustomCPUCFSQuotaPeriod")


@pytest.mark.parametrize(("alpha", "beta"), [(True, True), (False, True), (False, False)])
def test_all_gates_of_a_stage_can_be_set_and_the_fixed_ones_keep_their_defaults(alpha: bool, beta: bool) -> None:
    gates = FeatureGates({"AllAlpha": alpha, "AllBeta": beta})
    assert setting_problems(gates.given) == dependency_problems(gates) == []
    assert all(gates.enabled(name) is known_gates()[name].default for name in FIXED)
    assert set(gates.unmoved()) == {
        name
        for name in FIXED
        if known_gates()[name].default is not (alpha if known_gates()[name].stage is FeatureStage.ALPHA else beta)
    }


def test_a_gate_needs_what_it_depends_on() -> None:
    assert dependency_problems(FeatureGates({})) == []
    words = "is enabled, but depends on features that are disabled"
    assert dependency_problems(FeatureGates({"PodLevelResources": False, "NodeDeclaredFeatures": False})) == [
        f"ExtendWebSocketsToKubelet {words}: [NodeDeclaredFeatures]",
        f"InPlacePodLevelResourcesVerticalScaling {words}: [NodeDeclaredFeatures PodLevelResources]",
        f"InPlacePodVerticalScalingInitContainers {words}: [NodeDeclaredFeatures]",
        f"RestartAllContainersOnContainerExits {words}: [NodeDeclaredFeatures]",
    ]
    off = {"PodLevelResources": False, "InPlacePodLevelResourcesVerticalScaling": False}
    assert dependency_problems(FeatureGates(off)) == []


def test_dependencies_name_known_gates() -> None:
    names = {name for gate, needs in DEPENDENCIES.items() for name in (gate, *needs)}
    assert names <= set(known_gates())


def test_asking_for_an_unknown_gate_is_a_bug() -> None:
    with pytest.raises(KeyError):
        FeatureGates({}).enabled("Nope")
