"""The parts of Docker Engine's JSON that this program reads and writes. Names are those of the API in snake case. Pure.

Source: the Docker Engine API reference, version 1.41.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType, field


class EngineAnswer(msgspec.Struct, rename="pascal"):
    """The base of what Docker Engine answers. Unknown fields are skipped."""


class RequestBody(msgspec.Struct, rename="pascal", omit_defaults=True):
    """The base of what is sent. A field with its default is left out."""


class EngineVersion(EngineAnswer):
    """GET /version."""

    version: str = ""
    api_version: str = ""
    min_api_version: str = field(default="", name="MinAPIVersion")
    kernel_version: str = ""


class EngineInfo(EngineAnswer):
    """GET /info. `cdi_spec_dirs`: None or empty for an engine without CDI of its own."""

    class Plugins(EngineAnswer):
        """`log`: the logging drivers."""

        log: list[str] | None = None

    id: str = field(default="", name="ID")
    driver: str = ""
    docker_root_dir: str = ""
    cgroup_driver: str = ""
    cgroup_version: str = ""
    security_options: list[str] | None = None
    swap_limit: bool = False
    runtimes: dict[str, object] | None = None
    plugins: Plugins = field(default_factory=Plugins)
    cdi_spec_dirs: list[str] | None = field(default=None, name="CDISpecDirs")


class Created(EngineAnswer):
    """The answer to the creation of a container or an exec."""

    id: str
    warnings: list[str] | None = None


class ContainerSummary(EngineAnswer):
    """An entry of GET /containers/json. `created`: seconds since the epoch. `state`: as in `DockerState.status`."""

    id: str
    names: list[str] | None = None
    image: str = ""
    image_id: str = field(default="", name="ImageID")
    created: int = 0
    labels: dict[str, str] | None = None
    state: str = ""


class DockerState(EngineAnswer):
    """`status`: created, running, paused, restarting, removing, exited or dead. Times are RFC 3339; 0001-01-01 is none."""

    status: str = ""
    oom_killed: bool = field(default=False, name="OOMKilled")
    pid: int = 0
    exit_code: int = 0
    error: str = ""
    started_at: str = ""
    finished_at: str = ""


class DockerConfig(EngineAnswer):
    """What a container was made with, and what its image added."""

    labels: dict[str, str] | None = None
    image: str = ""
    user: str = ""
    tty: bool = False
    open_stdin: bool = False
    stop_signal: str = ""
    env: list[str] | None = None


class DockerHostConfig(EngineAnswer):
    """The part of a container that depends on the host."""

    network_mode: str = ""
    ipc_mode: str = ""
    pid_mode: str = ""
    userns_mode: str = ""
    cgroup_parent: str = ""
    cpu_shares: int = 0
    cpu_period: int = 0
    cpu_quota: int = 0
    cpuset_cpus: str = ""
    cpuset_mems: str = ""
    memory: int = 0
    memory_swap: int = 0
    oom_score_adj: int = 0


class ContainerMount(EngineAnswer):
    """A mount of a container."""

    type: str = ""
    source: str = ""
    destination: str = ""
    rw: bool = field(default=True, name="RW")
    propagation: str = ""


class GraphDriver(EngineAnswer):
    """Where the storage driver keeps a container. `data`: None for a driver without overlays."""

    class Overlay(EngineAnswer):
        """`upper_dir`: the writable layer; empty for another driver."""

        upper_dir: str = ""

    data: Overlay | None = None


class DockerContainer(EngineAnswer):
    """GET /containers/ID/json."""

    id: str
    name: str = ""
    created: str = ""
    image: str = ""
    state: DockerState = field(default_factory=DockerState)
    config: DockerConfig = field(default_factory=DockerConfig)
    host_config: DockerHostConfig = field(default_factory=DockerHostConfig)
    mounts: list[ContainerMount] | None = None
    log_path: str = ""
    resolv_conf_path: str = ""
    hostname_path: str = ""
    graph_driver: GraphDriver | None = None

    @property
    def labels(self) -> dict[str, str]:
        """Its labels."""
        return self.config.labels or {}


class ImageSummary(EngineAnswer):
    """An entry of GET /images/json."""

    id: str
    repo_tags: list[str] | None = None
    repo_digests: list[str] | None = None
    size: int = 0


class DiskUsage(EngineAnswer):
    """GET /system/df?type=image. `layers_size`: bytes, each layer once."""

    layers_size: int = 0


class ImageConfig(EngineAnswer):
    """What an image sets for its containers."""

    user: str = ""
    labels: dict[str, str] | None = None
    volumes: dict[str, object] | None = None


class DockerImage(EngineAnswer):
    """GET /images/NAME/json."""

    id: str
    repo_tags: list[str] | None = None
    repo_digests: list[str] | None = None
    size: int = 0
    config: ImageConfig | None = None


class ExecState(EngineAnswer):
    """GET /exec/ID/json."""

    running: bool = False
    exit_code: int | None = None
    pid: int = 0
    container_id: str = field(default="", name="ContainerID")


class DockerEvent(EngineAnswer):
    """A line of GET /events. `time_nano`: nanoseconds since the epoch."""

    class Actor(EngineAnswer):
        """The object."""

        id: str = field(default="", name="ID")
        attributes: dict[str, str] | None = None

    type: str = ""
    action: str = ""
    actor: Actor = field(default_factory=Actor)
    time_nano: int = field(default=0, name="timeNano")


class PullProgress(msgspec.Struct):
    """A line of the answer to a pull."""

    status: str = ""
    error: str = ""


# What is sent


class DockerMount(RequestBody, kw_only=True):
    """A mount. `type`: bind or tmpfs."""

    class BindOptions(RequestBody):
        """`non_recursive`: without the mounts below. The last two need version 1.44."""

        propagation: str = ""
        non_recursive: bool = False
        read_only_non_recursive: bool = False
        read_only_force_recursive: bool = False

    type: str
    source: str = ""
    target: str
    read_only: bool = False
    bind_options: BindOptions | None = None


class DockerDevice(RequestBody):
    """A device of the host in a container."""

    path_on_host: str
    path_in_container: str
    cgroup_permissions: str


class DeviceRequest(RequestBody):
    """Devices that a driver of the engine gives a container. `driver`: cdi, from Docker Engine 25 on."""

    driver: str
    device_ids: list[str] = field(default_factory=list, name="DeviceIDs")


class LogConfig(RequestBody):
    """The logging driver of a container."""

    type: str
    config: dict[str, str] = field(default_factory=dict)


class Resources(RequestBody):
    """Limits of a container. An `UpdateContainer` request is made of these alone."""

    cpu_shares: int = 0
    cpu_period: int = 0
    cpu_quota: int = 0
    cpuset_cpus: str = ""
    cpuset_mems: str = ""
    memory: int = 0
    memory_swap: int = 0
    memory_swappiness: int | None = None
    pids_limit: int = 0


class HostConfig(Resources, kw_only=True):
    """The part of a new container that depends on the host. `security_opt`: such as `seccomp=unconfined`. `binds`: mounts in their
    short form, such as `/a:/b:ro,Z`."""

    network_mode: str = ""
    ipc_mode: str = ""
    pid_mode: str = ""
    uts_mode: str = field(default="", name="UTSMode")
    userns_mode: str = ""
    runtime: str = ""
    cgroup_parent: str = ""
    oom_score_adj: int = 0
    privileged: bool = False
    readonly_rootfs: bool = False
    cap_add: list[str] = field(default_factory=list)
    cap_drop: list[str] = field(default_factory=list)
    group_add: list[str] = field(default_factory=list)
    security_opt: list[str] = field(default_factory=list)
    masked_paths: list[str] | UnsetType = UNSET
    readonly_paths: list[str] | UnsetType = UNSET
    sysctls: dict[str, str] = field(default_factory=dict)
    mounts: list[DockerMount] = field(default_factory=list)
    binds: list[str] = field(default_factory=list)
    devices: list[DockerDevice] = field(default_factory=list)
    device_requests: list[DeviceRequest] = field(default_factory=list)
    log_config: LogConfig
    dns: list[str] = field(default_factory=list)
    dns_search: list[str] = field(default_factory=list)
    dns_options: list[str] = field(default_factory=list)


class NewContainer(RequestBody, kw_only=True):
    """POST /containers/create. `entrypoint` and `cmd`: None for those of the image."""

    image: str
    hostname: str = ""
    user: str = ""
    entrypoint: list[str] | None = None
    cmd: list[str] | None = None
    env: list[str] = field(default_factory=list)
    working_dir: str = ""
    tty: bool = False
    open_stdin: bool = False
    stdin_once: bool = False
    stop_signal: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    healthcheck: dict[str, list[str]] = field(default_factory=dict)
    host_config: HostConfig


class NewExec(RequestBody):
    """POST /containers/ID/exec."""

    cmd: list[str]
    tty: bool = False
    attach_stdin: bool = False
    attach_stdout: bool = False
    attach_stderr: bool = False


class StartExec(RequestBody):
    """POST /exec/ID/start."""

    tty: bool = False
    detach: bool = False
