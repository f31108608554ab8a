"""Reasons of waiting and terminated containers, pod rejections, conditions and Events. The exact strings are public API.

Source: the Kubernetes documentation "Pod Lifecycle" and the reference kubelet's Event reasons.
"""

from __future__ import annotations

# Waiting containers
CONTAINER_CREATING = "ContainerCreating"
POD_INITIALIZING = "PodInitializing"
CRASH_LOOP_BACK_OFF = "CrashLoopBackOff"
ERR_IMAGE_PULL = "ErrImagePull"
IMAGE_PULL_BACK_OFF = "ImagePullBackOff"
IMAGE_INSPECT_ERROR = "ImageInspectError"
ERR_IMAGE_NEVER_PULL = "ErrImageNeverPull"
INVALID_IMAGE_NAME = "InvalidImageName"
REGISTRY_UNAVAILABLE = "RegistryUnavailable"
SIGNATURE_VALIDATION_FAILED = "SignatureValidationFailed"
CREATE_CONTAINER_CONFIG_ERROR = "CreateContainerConfigError"
CREATE_CONTAINER_ERROR = "CreateContainerError"
POST_START_HOOK_ERROR = "PostStartHookError"
RUN_CONTAINER_ERROR = "RunContainerError"
KILL_CONTAINER_ERROR = "KillContainerError"
KILL_POD_SANDBOX_ERROR = "KillPodSandboxError"
CREATE_POD_SANDBOX_ERROR = "CreatePodSandboxError"
RESTARTING_ALL_CONTAINERS = "RestartingAllContainers"

# Failures of the agent itself, shown only in the pod's waits
FAILED_CLEAN_UP = "FailedCleanUp"
INTERNAL_ERROR = "InternalError"

# Pods that are not worked on because the agent has ended at them: the reason of a condition, an Event and a wait
QUARANTINED = "Quarantined"
POD_QUARANTINED = "pykubelet/Quarantined"

# Terminated containers
COMPLETED = "Completed"
ERROR = "Error"
OOM_KILLED = "OOMKilled"
START_ERROR = "StartError"
CONTAINER_STATUS_UNKNOWN = "ContainerStatusUnknown"

# Pods that are stopped or rejected
EVICTED = "Evicted"
DEADLINE_EXCEEDED = "DeadlineExceeded"
PREEMPTING = "Preempting"
TERMINATED = "Terminated"
SYSCTL_FORBIDDEN = "SysctlForbidden"
UNEXPECTED_ADMISSION_ERROR = "UnexpectedAdmissionError"
TOPOLOGY_AFFINITY = "TopologyAffinityError"
NODE_SHUTDOWN = "NodeShutdown"
INVALID_NODE_INFO = "InvalidNodeInfo"
POD_OS_NOT_SUPPORTED = "PodOSNotSupported"
POD_OS_SELECTOR_MISMATCH = "PodOSSelectorNodeLabelDoesNotMatch"
APP_ARMOR = "AppArmor"
POD_FEATURE_UNSUPPORTED = "PodFeatureUnsupported"
INVALID_POD_SPEC = "InvalidPodSpec"
POD_LEVEL_RESOURCES_NOT_SUPPORTED = "PodLevelResourcesNotSupported"
SUPPLEMENTAL_GROUPS_POLICY_NOT_SUPPORTED = "SupplementalGroupsPolicyNotSupported"

# Condition types and reasons
POD_SCHEDULED = "PodScheduled"
POD_READY = "Ready"
POD_INITIALIZED = "Initialized"
CONTAINERS_READY = "ContainersReady"
POD_READY_TO_START_CONTAINERS = "PodReadyToStartContainers"
POD_SANDBOX_NOT_READY = "PodSandboxNotReady"
DISRUPTION_TARGET = "DisruptionTarget"
ALL_CONTAINERS_RESTARTING = "AllContainersRestarting"
POD_RESIZE_PENDING = "PodResizePending"
POD_RESIZE_IN_PROGRESS = "PodResizeInProgress"
#: Conditions that the node agent writes; all others belong to other writers. DisruptionTarget has other writers too.
OWN_CONDITIONS = frozenset(
    {
        POD_SCHEDULED,
        POD_READY,
        POD_INITIALIZED,
        CONTAINERS_READY,
        POD_READY_TO_START_CONTAINERS,
        DISRUPTION_TARGET,
        ALL_CONTAINERS_RESTARTING,
        POD_RESIZE_PENDING,
        POD_RESIZE_IN_PROGRESS,
        POD_QUARANTINED,
    }
)
RESIZE_DEFERRED = "Deferred"
RESIZE_INFEASIBLE = "Infeasible"
RESIZE_ERROR = "Error"
CONTAINERS_NOT_INITIALIZED = "ContainersNotInitialized"
CONTAINERS_NOT_READY = "ContainersNotReady"
READINESS_GATES_NOT_READY = "ReadinessGatesNotReady"
UNKNOWN_CONTAINER_STATUSES = "UnknownContainerStatuses"
POD_COMPLETED = "PodCompleted"
TERMINATION_BY_KUBELET = "TerminationByKubelet"
POD_FAILED = "PodFailed"

# Events
EVENT_CREATED = "Created"
EVENT_STARTED = "Started"
EVENT_FAILED = "Failed"
EVENT_KILLING = "Killing"
EVENT_PREEMPTING = "Preempting"
EVENT_EVICTION_THRESHOLD_MET = "EvictionThresholdMet"
EVENT_BACK_OFF = "BackOff"
EVENT_EXCEEDED_GRACE_PERIOD = "ExceededGracePeriod"
EVENT_FAILED_KILL_POD = "FailedKillPod"
EVENT_FAILED_CREATE_POD_CONTAINER = "FailedCreatePodContainer"
EVENT_NETWORK_NOT_READY = "NetworkNotReady"
EVENT_PULLING = "Pulling"
EVENT_PULLED = "Pulled"
EVENT_INSPECT_FAILED = "InspectFailed"
EVENT_FAILED_MOUNT = "FailedMount"
EVENT_FILE_SYSTEM_RESIZED = "FileSystemResizeSuccessful"
EVENT_FILE_SYSTEM_RESIZE_FAILED = "FileSystemResizeFailed"
EVENT_VOLUME_RESIZE_FAILED = "VolumeResizeFailed"
EVENT_FAILED_ATTACH_VOLUME = "FailedAttachVolume"
EVENT_FAILED_MAP_VOLUME = "FailedMapVolume"
EVENT_SUCCESSFUL_MOUNT_VOLUME = "SuccessfulMountVolume"
EVENT_ALREADY_MOUNTED_VOLUME = "AlreadyMountedVolume"
#: About a PersistentVolume.
EVENT_FILESYSTEM_MISMATCH = "FailedMountOnFilesystemMismatch"
EVENT_VOLUME_CONDITION_ABNORMAL = "VolumeConditionAbnormal"
#: Also the reason of the pod's status.
VOLUME_ATTACHMENT_LIMIT_EXCEEDED = "VolumeAttachmentLimitExceeded"
EVENT_PERMISSION_CHANGE = "VolumePermissionChangeInProgress"
EVENT_FAILED_PREPARE_DYNAMIC_RESOURCES = "FailedPrepareDynamicResources"
#: Only in waits: the reference has no Event for it.
FAILED_UNPREPARE_DYNAMIC_RESOURCES = "FailedUnprepareDynamicResources"
EVENT_CONTAINER_GC_FAILED = "ContainerGCFailed"
EVENT_IMAGE_GC_FAILED = "ImageGCFailed"
EVENT_INVALID_DISK_CAPACITY = "InvalidDiskCapacity"
EVENT_FREE_DISK_SPACE_FAILED = "FreeDiskSpaceFailed"
EVENT_SHUTDOWN = "Shutdown"
EVENT_FAILED_NODE_ALLOCATABLE = "FailedNodeAllocatableEnforcement"
EVENT_NODE_ALLOCATABLE_ENFORCED = "NodeAllocatableEnforced"
EVENT_SANDBOX_CHANGED = "SandboxChanged"
EVENT_EXTENSION_FAILED = "ExtensionFailed"
EVENT_NOT_RESTARTED = "NotRestarted"
EVENT_FAILED_CREATE_POD_SANDBOX = "FailedCreatePodSandBox"
EVENT_FAILED_POD_SANDBOX_STATUS = "FailedPodSandBoxStatus"
EVENT_POSSIBLE_MEMORY_BACKED_VOLUMES_ON_DISK = "PossibleMemoryBackedVolumesOnDisk"
EVENT_CGROUP_V1 = "CgroupV1"
EVENT_SYSTEM_OOM = "SystemOOM"
EVENT_RESIZE_STARTED = "ResizeStarted"
EVENT_RESIZE_COMPLETED = "ResizeCompleted"
EVENT_RESIZE_DEFERRED = "ResizeDeferred"
EVENT_RESIZE_INFEASIBLE = "ResizeInfeasible"
EVENT_RESIZE_ERROR = "ResizeError"
EVENT_FAILED_SYNC = "FailedSync"
EVENT_FAILED_VALIDATION = "FailedValidation"
EVENT_FAILED_POST_START_HOOK = "FailedPostStartHook"
EVENT_FAILED_PRE_STOP_HOOK = "FailedPreStopHook"
EVENT_LIFECYCLE_HTTP_FALLBACK = "LifecycleHTTPFallback"
EVENT_MISSING_CLUSTER_DNS = "MissingClusterDNS"
EVENT_DNS_CONFIG_FORMING = "DNSConfigForming"
EVENT_CHECK_LIMITS_FOR_RESOLV_CONF = "CheckLimitsForResolvConf"
EVENT_FAILED_TO_RETRIEVE_IMAGE_PULL_SECRET = "FailedToRetrieveImagePullSecret"
EVENT_STARTING = "Starting"
EVENT_UNHEALTHY = "Unhealthy"
EVENT_PROBE_WARNING = "ProbeWarning"
