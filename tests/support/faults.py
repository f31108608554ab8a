"""Faults for `test_explain`: what is caused, by which pod, and what must be reported for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.agent import Json, make_container, make_pod
from testbed import images
from testbed.host import free_port

LOGIN = ("puller", "secret")
HOST_PORT = free_port(0)
DEAF = "trap '' TERM; while :; do sleep 1; done"


@dataclass(frozen=True)
class Fault:
    """What must be reported for one pod.

    `reason`: one, or any of several with `|` between. `states`: part of its words. `after`: when the fault was there: the
    manifest `put`, the container's `start` or its `exit` (both as the runtime reports them), or an Event of the agent,
    which stands for a failed call. `what` empty: the pod is over, and its own reason gives the reason. `at`: it is reported when
    the next step comes.
    """

    name: str
    what: str
    reason: str
    message: str
    next_step: str = ""
    after: str = "put"
    at: bool = True

    @property
    def reasons(self) -> list[str]:
        return self.reason.split("|")


def start_of(name: str, reason: str, message: str, after: str = "Failed", what: str = "container start") -> Fault:
    return Fault(name, what, reason, message, "start again", after)


def over(name: str, reason: str, message: str, after: str = "put") -> Fault:
    return Fault(name, "", reason, message, after=after)


def rejected(name: str, reason: str, message: str, next_step: str = "admit the pod when that has changed") -> Fault:
    return Fault(name, "admission", reason, message, next_step, at=False)


def probe_of(name: str, what: str, message: str, next_step: str = "probe") -> Fault:
    return Fault(name, what, "Unhealthy", message, next_step, "start")


CRASH = "CrashLoopBackOff"
UNSTARTED = f"RunContainerError|{CRASH}"
PULL = "ErrImagePull|ImagePullBackOff"
FAULTS = {
    "images": [
        start_of("image-never-pulled", "ErrImageNeverPull", "is not present with pull policy of Never"),
        start_of("image-missing", PULL, "/team/missing:1: not found"),
        start_of("image-bad-digest", PULL, f"/team/app@sha256:{'0' * 64}: not found"),
        start_of("image-bad-name", "InvalidImageName", "repository name (UPPER) must be lowercase"),
        start_of("registry-refuses", PULL, "401 Unauthorized"),
        start_of("registry-down", PULL, "connection refused"),
        Fault("registry-slow", "image pull", "Pulling", "pulling 127.0.0.1:", "start the container", "Pulling", False),
    ],
    "configuration": [
        start_of("user-is-root", "CreateContainerConfigError", "runAsNonRoot and image will run as root"),
        start_of("user-is-a-name", "CreateContainerConfigError", "image has non-numeric user (worker)"),
        start_of("user-unknown", "CreateContainerError", "no users found"),
        start_of("seccomp-missing", "CreateContainerError", "none.json: no such file or directory"),
        start_of("seccomp-bad", "CreateContainerError", "decoding seccomp profile failed"),
        start_of("subpath-variable", "CreateContainerConfigError", "missing value for MISSING"),
        start_of("recursive-read-only", "CreateContainerConfigError", "not supported by the runtime"),
        start_of("env-file-missing", "CreateContainerConfigError", "couldn't parse env file"),
    ],
    "admission": [
        rejected(
            "apparmor-absent", "AppArmor", "AppArmor is not enabled on the host", "at the next start of the agent"
        ),
        rejected("port-taken", "NodePorts", "didn't have free ports for the requested pod ports"),
        rejected("cpu-too-little", "UnexpectedAdmissionError", "to reclaim resources: [(res: cpu, q: "),
        rejected("memory-too-little", "UnexpectedAdmissionError", "to reclaim resources: [(res: memory, q: "),
        rejected(
            "sysctl-unsafe", "SysctlForbidden", '"kernel.msgmax" not allowlisted', "at the next start of the agent"
        ),
        rejected("groups-strict", "SupplementalGroupsPolicyNotSupported", "Strict is not supported in this node"),
        rejected("node-selector", "NodeAffinity", "didn't match Pod's node affinity/selector"),
    ],
    "volumes": [
        Fault("device-missing", "volume", "FailedMount", "/dev/nothing is not a block device", "try again"),
        Fault("device-is-a-file", "volume", "FailedMount", "/file is not a character device", "try again"),
        Fault("directory-missing", "volume", "FailedMount", "/nowhere is not a directory", "try again"),
        Fault("socket-missing", "volume", "FailedMount", "/no.sock is not a socket file", "try again"),
        start_of("mount-below-a-file", "CreateContainerError", "file/below: not a directory"),
    ],
    "sandbox": [
        Fault("sysctl-bad-value", "sandbox", "CreatePodSandboxError", "invalid argument", "", "FailedCreatePodSandBox"),
        Fault(
            "no-user-namespaces", "sandbox", "CreatePodSandboxError", "user namespaces", "", "FailedCreatePodSandBox"
        ),
        Fault("memory-for-nothing", "sandbox", "CreatePodSandboxError", "OOM-killed", "", "FailedCreatePodSandBox"),
    ],
    "starting": [
        start_of("command-missing", UNSTARTED, "/bin/none: no such file or directory"),
        start_of("command-not-allowed", UNSTARTED, '"/etc/passwd": permission denied'),
        start_of("directory-is-a-file", UNSTARTED, "mkdir /etc/passwd: not a directory"),
        start_of("out-of-memory", CRASH, "it ended with 137 (OOMKilled)", "exit"),
        start_of("crash-loop", CRASH, "it ended with 3 (Error)", "exit"),
        start_of("init-crash-loop", CRASH, "it ended with 4 (Error)", "exit"),
        over("ended-for-good", "Error", "", "exit"),
        over("deadline-passed", "DeadlineExceeded", "longer than the specified deadline", "DeadlineExceeded"),
    ],
    "running": [
        Fault("init-runs", "init container to end", "", "", "start the next one", "start", False),
        Fault("hook-runs", "postStart hook", "", "command: /bin/sleep 1000", "take it for running", "start", False),
        start_of("hook-fails", f"PostStartHookError|{CRASH}", "exited with 9", "FailedPostStartHook"),
        probe_of("startup-fails", "startup probe", "booting ("),
        probe_of("readiness-fails", "readiness probe", "sick ("),
        probe_of("readiness-hangs", "readiness probe", "timed out after 1s"),
        probe_of("nothing-listens", "readiness probe", "connect: connection refused"),
        start_of("liveness-fails", CRASH, "killed: its liveness probe failed", "exit"),
    ],
}


@dataclass(frozen=True)
class Surroundings:
    """What the faults need: registries that refuse, are slow or are down, and a folder of the host."""

    refusing: str
    slow: str
    down: str
    plain: str
    folder: Path


UNKNOWN_USER = "localhost/unknown-user:1"


def exec_probe(script: str, **terms: Any) -> Json:
    return {"exec": {"command": ["/bin/sh", "-c", script]}, "periodSeconds": 1, **terms}


def hook(*command: str) -> Json:
    return {"postStart": {"exec": {"command": list(command)}}}


def limited(**amounts: str) -> Json:
    return {"resources": {"limits": amounts}}


def with_volume(name: str, mount: Json | None = None, **source: Any) -> Json:
    mounts = [{"name": "data", "mountPath": "/data", **(mount or {})}]
    return make_pod(name, make_container(volumeMounts=mounts), volumes=[{"name": "data", **source}])


def host_path(name: str, path: str, kind: str = "") -> Json:
    return with_volume(name, hostPath={"path": path, "type": kind})


def pulled(name: str, image: str, policy: str = "IfNotPresent") -> Json:
    return make_pod(name, make_container(image=image, imagePullPolicy=policy))


def secured(name: str, image: str = images.BUSYBOX, **context: Any) -> Json:
    return make_pod(name, make_container(image=image, securityContext=context))


def seccomp(profile: str) -> Json:
    return {"type": "Localhost", "localhostProfile": profile}


def on_port(name: str) -> Json:
    return make_pod(name, make_container(ports=[{"containerPort": 80, "hostPort": HOST_PORT}]))


def image_pods(around: Surroundings) -> list[Json]:
    return [
        pulled("image-never-pulled", "localhost/missing:1", "Never"),
        pulled("image-missing", f"{around.plain}/team/missing:1"),
        pulled("image-bad-digest", f"{around.plain}/team/app@sha256:{'0' * 64}"),
        pulled("image-bad-name", "localhost/UPPER:1"),
        pulled("registry-refuses", f"{around.refusing}/team/app:1"),
        pulled("registry-down", f"{around.down}/team/app:1"),
        pulled("registry-slow", f"{around.slow}/team/app:1"),
    ]


def configuration_pods(around: Surroundings) -> list[Json]:
    env = [{"name": "A", "valueFrom": {"fileKeyRef": {"volumeName": "data", "path": "nothing.env", "key": "A"}}}]
    reading = make_pod("env-file-missing", make_container(env=env), volumes=[{"name": "data", "emptyDir": {}}])
    return [
        secured("user-is-root", runAsNonRoot=True),
        secured("user-is-a-name", images.NAMED_USER, runAsNonRoot=True),
        secured("user-unknown", UNKNOWN_USER),
        secured("seccomp-missing", seccompProfile=seccomp("none.json")),
        secured("seccomp-bad", seccompProfile=seccomp("bad.json")),
        with_volume("subpath-variable", {"subPathExpr": "$(MISSING)"}, emptyDir={}),
        with_volume("recursive-read-only", {"readOnly": True, "recursiveReadOnly": "Enabled"}, emptyDir={}),
        reading,
    ]


def admission_pods(around: Surroundings) -> list[Json]:
    groups = {"supplementalGroupsPolicy": "Strict", "supplementalGroups": [1]}
    return [
        secured("apparmor-absent", appArmorProfile=seccomp("x")),
        on_port("port-taken"),
        make_pod("cpu-too-little", make_container(resources={"requests": {"cpu": "1000"}})),
        make_pod("memory-too-little", make_container(resources={"requests": {"memory": "4Pi"}})),
        make_pod("sysctl-unsafe", securityContext={"sysctls": [{"name": "kernel.msgmax", "value": "8192"}]}),
        make_pod("groups-strict", securityContext=groups),
        make_pod("node-selector", nodeSelector={"disk": "ssd"}),
    ]


def volume_pods(around: Surroundings) -> list[Json]:
    file = str(around.folder / "file")
    return [
        host_path("device-missing", "/dev/nothing", "BlockDevice"),
        host_path("device-is-a-file", file, "CharDevice"),
        host_path("directory-missing", str(around.folder / "nowhere"), "Directory"),
        host_path("socket-missing", str(around.folder / "no.sock"), "Socket"),
        host_path("mount-below-a-file", f"{file}/below"),
    ]


def sandbox_pods(around: Surroundings) -> list[Json]:
    ports = {"name": "net.ipv4.ip_local_port_range", "value": "nonsense"}
    return [
        make_pod("sysctl-bad-value", securityContext={"sysctls": [ports]}),
        make_pod("no-user-namespaces", hostUsers=False),
        make_pod("memory-for-nothing", make_container(**limited(memory="1Mi"))),
    ]


def starting_pods(around: Surroundings) -> list[Json]:
    return [
        make_pod("command-missing", make_container(command=["/bin/none"])),
        make_pod("command-not-allowed", make_container(command=["/etc/passwd"])),
        make_pod("directory-is-a-file", make_container(workingDir="/etc/passwd")),
        make_pod("out-of-memory", make_container(script="tail /dev/zero", **limited(memory="20Mi"))),
        make_pod("crash-loop", make_container(script="exit 3")),
        make_pod("init-crash-loop", initContainers=[make_container("prepare", "exit 4")]),
        make_pod("ended-for-good", make_container(script="exit 5"), restartPolicy="Never"),
        make_pod("deadline-passed", activeDeadlineSeconds=1),
    ]


def running_pods(around: Surroundings) -> list[Json]:
    return [
        make_pod("init-runs", initContainers=[make_container("prepare", "exec sleep 1000")]),
        make_pod("hook-runs", make_container(lifecycle=hook("/bin/sleep", "1000"))),
        make_pod("hook-fails", make_container(script=DEAF, lifecycle=hook("/bin/sh", "-c", "exit 9"))),
        make_pod(
            "startup-fails", make_container(startupProbe=exec_probe("echo booting; exit 1", failureThreshold=1000))
        ),
        make_pod("readiness-fails", make_container(readinessProbe=exec_probe("echo sick; exit 1"))),
        make_pod("readiness-hangs", make_container(readinessProbe=exec_probe("sleep 1000"))),
        make_pod("nothing-listens", make_container(readinessProbe={"tcpSocket": {"port": 80}, "periodSeconds": 1})),
        make_pod("liveness-fails", make_container(livenessProbe=exec_probe("exit 1", failureThreshold=1))),
    ]


PODS = {
    "images": image_pods,
    "configuration": configuration_pods,
    "admission": admission_pods,
    "volumes": volume_pods,
    "sandbox": sandbox_pods,
    "starting": starting_pods,
    "running": running_pods,
}
