"""Where things lie below the root directory and the pod log directory. Pure string work; the layout is the reference's."""

from __future__ import annotations

from pykubelet.base.kit.values import Value
from pykubelet.base.model.ids import PodRef, PodUID

CONTAINER_LOG_LINKS = "/var/log/containers"
MAX_FILE_NAME = 255


class Paths(Value):
    """`root`: --root-dir. `logs`: podLogsDir. `log_links`: where container log symlinks go."""

    root: str
    logs: str
    log_links: str = CONTAINER_LOG_LINKS

    @property
    def pods(self) -> str:
        return f"{self.root}/pods"

    @property
    def seccomp(self) -> str:
        return f"{self.root}/seccomp"

    @property
    def socket(self) -> str:
        """The root-only unix socket of `pykubelet pods` and `pykubelet explain`."""
        return f"{self.root}/pykubelet.sock"

    def pod(self, uid: PodUID) -> str:
        return f"{self.root}/pods/{uid}"

    def pod_volumes(self, uid: PodUID) -> str:
        return f"{self.pod(uid)}/volumes"

    def volume(self, uid: PodUID, plugin: str, name: str) -> str:
        """`plugin` as in `kubernetes.io/empty-dir`; its slash becomes a tilde on disk."""
        return f"{self.pod(uid)}/volumes/{plugin.replace('/', '~')}/{name}"

    def pod_plugins(self, uid: PodUID) -> str:
        return f"{self.pod(uid)}/plugins"

    def subpaths(self, uid: PodUID) -> str:
        return f"{self.pod(uid)}/volume-subpaths"

    def subpath(self, uid: PodUID, volume: str, container: str, index: int) -> str:
        return f"{self.subpaths(uid)}/{volume}/{container}/{index}"

    def container(self, uid: PodUID, container: str) -> str:
        """Holds the termination message files."""
        return f"{self.pod(uid)}/containers/{container}"

    def etc_hosts(self, uid: PodUID) -> str:
        return f"{self.pod(uid)}/etc-hosts"

    def user_namespace(self, uid: PodUID) -> str:
        """The ids that the pod's user namespace has."""
        return f"{self.pod(uid)}/userns"

    def pod_logs(self, ref: PodRef) -> str:
        return f"{self.logs}/{ref.namespace}_{ref.name}_{ref.uid}"

    def container_logs(self, ref: PodRef, container: str) -> str:
        return f"{self.pod_logs(ref)}/{container}"

    def log_link(self, ref: PodRef, container: str, container_id: str) -> str:
        """`<pod>_<namespace>_<container>-<id>.log`, the file name cut so that it fits a file system."""
        stem = f"{ref.name}_{ref.namespace}_{container}-{container_id}"
        return f"{self.log_links}/{stem[: MAX_FILE_NAME - len('.log')]}.log"
