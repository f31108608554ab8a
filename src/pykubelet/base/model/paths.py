"""Paths below the root directory and the pod log directory, laid out as the reference kubelet does. Pure."""

from __future__ import annotations

import posixpath

from pykubelet.base.kit.values import Value
from pykubelet.base.model.ids import PodRef, PodUID

CONTAINER_LOG_LINKS = "/var/log/containers"
MAX_FILE_NAME = 255


class Beneath(str):
    """The path of a file below a directory of the agent. Its parts may be named by a pod, a plugin or an image.

    `top`: the agent's own directory, which an administrator may have replaced by a link. `inside`: the path below it. As a
    string it is the whole path, to be shown, compared or sent. The functions of `edges/host/fs/beneath.py` work on the file:
    from a descriptor of `top`, without links and without `..`, so that no name leads out of `top`. `a / b` is the file `b` in the
    directory `a`; no check is made before the file is used. Values that other components read have plain text: `str(path)`.
    """

    __slots__ = ("inside", "top")
    top: str
    inside: str

    def __new__(cls, top: str, inside: str) -> Beneath:
        """The file at `inside` below `top`; `top` itself if `inside` is empty."""
        made = super().__new__(cls, f"{top.rstrip('/')}/{inside}" if inside else top)
        made.top, made.inside = top, inside
        return made

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]  # for copies
        return self.top, self.inside

    def __truediv__(self, name: str) -> Beneath:
        return Beneath(self.top, f"{self.inside}/{name}" if self.inside else name)

    def suffixed(self, suffix: str) -> Beneath:
        """The file beside this one that has its name with a suffix."""
        return Beneath(self.top, self.inside + suffix)

    @property
    def parent(self) -> Beneath:
        """The directory of the file."""
        return Beneath(self.top, posixpath.dirname(self.inside))

    @property
    def name(self) -> str:
        """The file's own name."""
        return posixpath.basename(self.inside)


def below(path: str, top: str) -> Beneath:
    """The file at an absolute path: below the directory `top` if it lies there, or else below the root."""
    own = f"{top}/"
    return Beneath(top, path.removeprefix(own)) if top and path.startswith(own) else Beneath("/", path.lstrip("/"))


def log_file(path: str) -> Beneath:
    """The log of a container at the path that the runtime reports: `<all pods' logs>/<pod>/<container>/<number>.log`."""
    top, *inside = path.rsplit("/", 3)
    return Beneath(top or "/", "/".join(inside))


class Paths(Value):
    """The agent's paths. `root`: --root-dir. `logs`: podLogsDir. `log_links`: the directory of container log symlinks."""

    root: str
    logs: str
    log_links: str = CONTAINER_LOG_LINKS

    @property
    def pods(self) -> str:
        """The directory with one directory for each pod."""
        return f"{self.root}/pods"

    @property
    def seccomp(self) -> str:
        """The directory of seccomp profiles that pods refer to as `Localhost`."""
        return f"{self.root}/seccomp"

    @property
    def socket(self) -> str:
        """The root-only unix socket of `pykubelet pods` and `pykubelet explain`."""
        return f"{self.root}/pykubelet.sock"

    @property
    def plugins(self) -> str:
        """The directory of the plugins' own sockets and files."""
        return f"{self.root}/plugins"

    @property
    def plugin_sockets(self) -> str:
        """The directory in which plugins create sockets to be registered."""
        return f"{self.root}/plugins_registry"

    @property
    def device_plugins(self) -> str:
        """The directory of the sockets of device plugins, and of the file of their allocations."""
        return f"{self.root}/device-plugins"

    def pod(self, uid: PodUID) -> Beneath:
        """The pod's own directory."""
        return Beneath(self.pods, uid)

    def pod_volumes(self, uid: PodUID) -> Beneath:
        """The directory of the pod's volumes, with one directory for each plugin."""
        return self.pod(uid) / "volumes"

    def volume(self, uid: PodUID, plugin: str, name: str) -> Beneath:
        """The directory of one volume. `plugin`: as in `kubernetes.io/empty-dir`; its slash becomes a tilde on disk."""
        return self.pod_volumes(uid) / plugin.replace("/", "~") / name

    def pod_devices(self, uid: PodUID) -> Beneath:
        """The directory of the links to the pod's block volumes, with one directory for each plugin."""
        return self.pod(uid) / "volumeDevices"

    def pod_plugins(self, uid: PodUID) -> Beneath:
        """The directory of the volume plugins' own files for the pod."""
        return self.pod(uid) / "plugins"

    def subpaths(self, uid: PodUID) -> Beneath:
        """The directory of all bind mounts of the pod's `subPath`s."""
        return self.pod(uid) / "volume-subpaths"

    def subpath(self, uid: PodUID, volume: str, container: str, index: int) -> Beneath:
        """The bind mount of one `subPath`; `index`: that of the volume mount in the container."""
        return self.subpaths(uid) / volume / container / str(index)

    def container(self, uid: PodUID, container: str) -> Beneath:
        """The directory of the container's termination message files."""
        return self.pod(uid) / "containers" / container

    def etc_hosts(self, uid: PodUID) -> Beneath:
        """The pod's hosts file."""
        return self.pod(uid) / "etc-hosts"

    def user_namespace(self, uid: PodUID) -> Beneath:
        """The file with the id ranges of the pod's user namespace."""
        return self.pod(uid) / "userns"

    def pod_logs(self, ref: PodRef) -> Beneath:
        """The directory of the pod's container logs."""
        return Beneath(self.logs, f"{ref.namespace}_{ref.name}_{ref.uid}")

    def container_logs(self, ref: PodRef, container: str) -> Beneath:
        """The directory with the log files of all instances of one container."""
        return self.pod_logs(ref) / container

    def log_link(self, ref: PodRef, container: str, container_id: str) -> Beneath:
        """The symlink `<pod>_<namespace>_<container>-<id>.log`, its file name cut to what a file system allows."""
        stem = _link_stem(f"{ref.name}_{ref.namespace}_{container}-{container_id}")
        return Beneath(self.log_links, f"{stem}.log")

    def may_be_log_link(self, name: str, ref: PodRef) -> bool:
        """Whether a file of this name in `log_links` may be a link to a log of the pod. Its target shows whether it is."""
        return name.startswith(_link_stem(f"{ref.name}_{ref.namespace}_"))


def _link_stem(stem: str) -> str:
    """At most as much as a file system allows before `.log`."""
    return stem[: MAX_FILE_NAME - len(".log")]
