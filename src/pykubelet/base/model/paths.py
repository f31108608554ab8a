"""Paths below the root directory and the pod log directory, laid out as the reference kubelet does. Pure."""

from __future__ import annotations

from pykubelet.base.kit.values import Value
from pykubelet.base.model.ids import PodRef, PodUID

CONTAINER_LOG_LINKS = "/var/log/containers"
MAX_FILE_NAME = 255


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

    def pod(self, uid: PodUID) -> str:
        """The pod's own directory."""
        return f"{self.root}/pods/{uid}"

    def pod_volumes(self, uid: PodUID) -> str:
        """The directory of the pod's volumes, with one directory for each plugin."""
        return f"{self.pod(uid)}/volumes"

    def volume(self, uid: PodUID, plugin: str, name: str) -> str:
        """The directory of one volume. `plugin`: as in `kubernetes.io/empty-dir`; its slash becomes a tilde on disk."""
        return f"{self.pod(uid)}/volumes/{plugin.replace('/', '~')}/{name}"

    def pod_devices(self, uid: PodUID) -> str:
        """The directory of the links to the pod's block volumes, with one directory for each plugin."""
        return f"{self.pod(uid)}/volumeDevices"

    def pod_plugins(self, uid: PodUID) -> str:
        """The directory of the volume plugins' own files for the pod."""
        return f"{self.pod(uid)}/plugins"

    def subpaths(self, uid: PodUID) -> str:
        """The directory of all bind mounts of the pod's `subPath`s."""
        return f"{self.pod(uid)}/volume-subpaths"

    def subpath(self, uid: PodUID, volume: str, container: str, index: int) -> str:
        """The bind mount of one `subPath`; `index`: that of the volume mount in the container."""
        return f"{self.subpaths(uid)}/{volume}/{container}/{index}"

    def container(self, uid: PodUID, container: str) -> str:
        """The directory of the container's termination message files."""
        return f"{self.pod(uid)}/containers/{container}"

    def etc_hosts(self, uid: PodUID) -> str:
        """The pod's hosts file."""
        return f"{self.pod(uid)}/etc-hosts"

    def user_namespace(self, uid: PodUID) -> str:
        """The file with the id ranges of the pod's user namespace."""
        return f"{self.pod(uid)}/userns"

    def pod_logs(self, ref: PodRef) -> str:
        """The directory of the pod's container logs."""
        return f"{self.logs}/{ref.namespace}_{ref.name}_{ref.uid}"

    def container_logs(self, ref: PodRef, container: str) -> str:
        """The directory with the log files of all instances of one container."""
        return f"{self.pod_logs(ref)}/{container}"

    def log_link(self, ref: PodRef, container: str, container_id: str) -> str:
        """The symlink `<pod>_<namespace>_<container>-<id>.log`, its file name cut to what a file system allows."""
        return f"{self.log_links}/{_link_stem(f'{ref.name}_{ref.namespace}_{container}-{container_id}')}.log"

    def may_be_log_link(self, name: str, ref: PodRef) -> bool:
        """Whether a file of this name in `log_links` may be a link to a log of the pod. Its target shows whether it is."""
        return name.startswith(_link_stem(f"{ref.name}_{ref.namespace}_"))


def _link_stem(stem: str) -> str:
    """At most as much as a file system allows before `.log`."""
    return stem[: MAX_FILE_NAME - len(".log")]
