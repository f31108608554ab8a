from __future__ import annotations

import pytest

from pykubelet.base.model.version import Release
from pykubelet.config.gates import (
    FIXED,
    FeatureGates,
    FeatureStage,
    all_gates,
    dependency_problems,
    fixed_gate,
    known_gates,
    kubelet_gates,
    settable_gates,
    setting_problems,
)

# Name, default, locked: of every gate the kubelet reads in 1.36; below, what is different in 1.37.
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
AllowDNSOnlyNodeCSR ChangeContainerStatusOnKubeletRestart DRANodeAllocatableResources
ClusterTrustBundleProjection ContainerStopSignals CPUManagerPolicyAlphaOptions CRIListStreaming CSIVolumeHealth
EventedPLEG ImageVolumeWithDigest InPlacePodVerticalScalingExclusiveCPUs InPlacePodVerticalScalingExclusiveMemory
KubeletInUserNamespace KubeletRegistrationGetOnExistsOnly LocalStorageCapacityIsolationFSQuotaMonitoring MemoryQoS
NativeHistograms PodAndContainerStatsFromCRI PodCertificateRequest PodLevelResourceManagers PodLogsQuerySplitStreams
PodsAPI QOSReserved ReduceDefaultCrashLoopBackOffDecay RuntimeClassInImageCriApi SELinuxMount
TaintTolerationComparisonOperators TopologyManagerPolicyAlphaOptions UserNamespacesHostNetworkSupport
LoggingAlphaOptions
"""
OFF_LOCKED = "GitRepoVolumeDriver"
IN_1_36 = {
    name: (default, locked)
    for names, default, locked in (
        (ON_LOCKED, True, True),
        (ON, True, False),
        (OFF, False, False),
        (OFF_LOCKED, False, True),
    )
    for name in names.split()
}
GONE = "PodLifecycleSleepAction PreventStaticPodAPIReferences RelaxedDNSSearchValidation SidecarContainers"
NEW_ON = "HugepageAwareEviction PodLevelResourcesFixKubeletQOSClass"
NEW_OFF = """
AtomicWriteVolumeUserFields DRAOptionalNodeOperations DefaultPodSysctls EmptyDirVolumeMode GRPCContainerProbeTLS
H2CContainerProbe InPlacePodVerticalScalingMemoryBackedVolumes InPlacePodVerticalScalingSchedulerPreemption
KubeletAllocatedPodsEndpoint NodeLifecycleConditions VolumeBindMountOptions
"""
TURNED_ON = """
ClusterTrustBundleProjection KubeletInUserNamespace MemoryQoS NativeHistograms PodCertificateRequest PodsAPI SELinuxMount
"""
NOW_LOCKED = """
DRAExtendedResource DisableCPUQuotaWithExclusiveCPUs HostnameOverride InPlacePodVerticalScalingInitContainers
NodeDeclaredFeatures PLEGOnDemandRelist PodReadyToStartContainersCondition
"""
IN_1_37 = {
    **{name: row for name, row in IN_1_36.items() if name not in GONE.split()},
    **dict.fromkeys(NEW_OFF.split(), (False, False)),
    **dict.fromkeys((*NEW_ON.split(), *TURNED_ON.split()), (True, False)),
    **dict.fromkeys(NOW_LOCKED.split(), (True, True)),
}
TABLES = {Release.V1_36: IN_1_36, Release.V1_37: IN_1_37}
ROWS = [(release, name, *row) for release, table in TABLES.items() for name, row in table.items()]


@pytest.mark.parametrize(("release", "name", "default", "locked"), ROWS, ids=[f"{row[0]}-{row[1]}" for row in ROWS])
def test_a_gate_has_its_default_and_lock(release: Release, name: str, default: bool, locked: bool) -> None:
    fixed = fixed_gate(name, release)
    assert known_gates(release)[name].default is default
    assert FeatureGates({}, release).enabled(name) is (default if fixed is None else fixed.on)
    if fixed is None:
        assert setting_problems({name: default}, release) == []
    against = setting_problems({name: not default}, release)
    wanted, locked_to = str(not default).lower(), str(default).lower()
    if locked:
        assert against == [f"cannot set feature gate {name} to {wanted}, feature is locked to {locked_to}"]
    elif fixed is not None:
        assert setting_problems({name: fixed.on}, release) == []
        refused = setting_problems({name: not fixed.on}, release)
        assert refused == [f"cannot set feature gate {name} to {str(not fixed.on).lower()} here: {fixed.why}"]
    else:
        assert against == []
        assert FeatureGates({name: not default}, release).enabled(name) is not default


@pytest.mark.parametrize("release", TABLES)
def test_the_table_has_the_gates_of_the_kubelet(release: Release) -> None:
    assert settable_gates(release) == {name for name, (_, locked) in TABLES[release].items() if not locked}
    assert kubelet_gates(release) == set(TABLES[release])


def test_the_number_of_gates_is_that_of_the_release() -> None:
    assert [len(known_gates(release)) for release in Release] == [240, 252, 245]


def test_a_gate_of_another_release_is_refused_with_what_to_do() -> None:
    assert setting_problems({"SidecarContainers": True}, Release.V1_36) == []
    assert setting_problems({"SidecarContainers": True, "MemoryQoS": True}) == [
        "unrecognized feature gate: SidecarContainers "
        "(Kubernetes 1.36 was the last release with it, its feature is always on now: remove the gate)"
    ]
    assert setting_problems({"DefaultPodSysctls": False}, Release.V1_36) == [
        "unrecognized feature gate: DefaultPodSysctls (new in Kubernetes 1.37; this agent is 1.36)"
    ]


def test_a_gate_may_have_its_effect_in_an_older_release_only() -> None:
    for gate in ("CSIVolumeHealth", "AllAlpha"):
        assert FeatureGates({gate: True}, Release.V1_36).enabled("CSIVolumeHealth")
        assert not FeatureGates({gate: True}).enabled("CSIVolumeHealth")
    assert setting_problems({"CSIVolumeHealth": True}) == [
        "cannot set feature gate CSIVolumeHealth to true here: health of volumes by CSI 1.13 is not reported"
    ]


def test_a_gate_that_the_release_does_not_have_has_the_value_of_its_feature() -> None:
    assert FeatureGates({}).enabled("SidecarContainers"), "GA and removed"
    assert FeatureGates({}).enabled("PreventStaticPodAPIReferences"), "beta and removed"
    assert not FeatureGates({"AllBeta": True}, Release.V1_36).enabled("HugepageAwareEviction"), "not there yet"
    assert not FeatureGates({"AllAlpha": True}, Release.V1_36).enabled("DefaultPodSysctls"), "not there yet"


def test_what_is_known_of_1_38_is_prepared() -> None:
    gates = known_gates(Release.V1_38)
    assert "KubeletTracing" not in gates and "DynamicResourceAllocation" not in gates
    assert gates["EnvFiles"].locked and gates["PodCertificateRequest"].locked and gates["SELinuxMount"].locked
    assert FeatureGates({}, Release.V1_38).enabled("KubeletTracing"), "removed, and on"


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
    assert alpha.enabled("QOSReserved") and not alpha.enabled("EventedPLEG")
    assert not alpha.enabled("AllowDNSOnlyNodeCSR")
    old = FeatureGates({"AllAlpha": True}, Release.V1_36)
    assert old.enabled("MemoryQoS") and not old.enabled("SELinuxMount")
    beta = FeatureGates({"AllBeta": False, "EnvFiles": True})
    assert not beta.enabled("PodLevelResources") and beta.enabled("EnvFiles")
    assert beta.enabled("SidecarContainers") and beta.enabled("CustomCPUCFSQuotaPeriod")


@pytest.mark.parametrize(("alpha", "beta"), [(True, True), (False, True), (False, False)])
def test_all_gates_of_a_stage_can_be_set_and_the_fixed_ones_keep_their_defaults(alpha: bool, beta: bool) -> None:
    gates = FeatureGates({"AllAlpha": alpha, "AllBeta": beta})
    assert setting_problems(gates.given) == dependency_problems(gates) == []
    assert all(gates.enabled(name) is fixed.on for name, fixed in FIXED.items())
    assert set(gates.unmoved()) == {
        name
        for name, fixed in FIXED.items()
        if name in known_gates()
        and fixed.on
        is (not {FeatureStage.ALPHA: alpha, FeatureStage.BETA: beta}.get(known_gates()[name].stage, fixed.on))
    }


def test_a_gate_needs_what_it_depends_on() -> None:
    assert all(dependency_problems(FeatureGates({}, release)) == [] for release in Release)
    words = "is enabled, but depends on features that are disabled"
    given = {"PodLevelResources": False, "NodeDeclaredFeatures": False}
    assert dependency_problems(FeatureGates(given, Release.V1_36)) == [
        f"ExtendWebSocketsToKubelet {words}: [NodeDeclaredFeatures]",
        f"InPlacePodLevelResourcesVerticalScaling {words}: [NodeDeclaredFeatures PodLevelResources]",
        f"InPlacePodVerticalScalingInitContainers {words}: [NodeDeclaredFeatures]",
        f"RestartAllContainersOnContainerExits {words}: [NodeDeclaredFeatures]",
    ]
    dependent = ("InPlacePodLevelResourcesVerticalScaling", "PodLevelResourcesFixKubeletQOSClass")
    off = dict.fromkeys(("PodLevelResources", *dependent), False)
    assert dependency_problems(FeatureGates(off)) == []


def test_dependencies_name_known_gates() -> None:
    needs = {need for stages in all_gates().values() for gate in stages.values() for need in gate.needs}
    assert needs <= set(all_gates())


def test_asking_for_an_unknown_gate_is_a_bug() -> None:
    with pytest.raises(KeyError):
        FeatureGates({}).enabled("Nope")
