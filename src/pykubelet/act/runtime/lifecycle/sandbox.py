"""Creates or adopts a pod's sandbox, and collects what its containers need to know of it.

Owns: the calls RunPodSandbox and PodSandboxStatus on behalf of one pod. Reads: `NodeView`, `RuntimeReady`, `Content`, `Placements`,
`Mounts`.
"""

from __future__ import annotations

from pykubelet.act.runtime.lifecycle.decide_userns import user_namespace_refusal
from pykubelet.act.runtime.lifecycle.metrics import (
    STARTED_PODS,
    STARTED_PODS_ERRORS,
    STARTED_USERNS,
)
from pykubelet.act.runtime.lifecycle.userns import UserNamespaceManager
from pykubelet.act.runtime.render.context import RenderSettings, SandboxContext, runtime_handler
from pykubelet.act.runtime.render.dns import dns_config
from pykubelet.act.runtime.render.render_config import render_sandbox
from pykubelet.act.runtime.render.security import needs_user_namespace
from pykubelet.act.runtime.start_error import ContainerStartError
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.cells import Cell, Post
from pykubelet.base.kit.flight import WORK, Done, Failed, SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import Value, field, replace
from pykubelet.base.model.content import Content
from pykubelet.base.model.ids import PodUID, SandboxID
from pykubelet.base.model.kube_events import KubeEvent, warning
from pykubelet.base.model.mounts import Mounts, PodMounts
from pykubelet.base.model.node import NodeView, RuntimeReady
from pykubelet.base.model.observed import SandboxView, known_time
from pykubelet.base.model.paths import Paths
from pykubelet.base.model.placement import Placements
from pykubelet.base.model.reasons import (
    CREATE_POD_SANDBOX_ERROR,
    EVENT_FAILED_CREATE_POD_SANDBOX,
    EVENT_FAILED_POD_SANDBOX_STATUS,
)
from pykubelet.base.model.roster import pod_ref
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError
from pykubelet.edges.host.fs.beneath import make_dirs
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import read_text

log = Log("runtime")
NAME_ATTEMPTS = 5
FILES_DEADLINE_S = 30.0


class Sandbox(Value):
    """A sandbox to start containers in. `config` and `context`: what it was, or would now be, made from; `config` is empty if no
    container is to be started in it. `seen`: the view of a new sandbox, if the runtime has reported it."""

    id: SandboxID
    ips: tuple[str, ...]
    config: pb.PodSandboxConfig
    context: SandboxContext
    seen: SandboxView | None = None


class SandboxCells(Value):
    """The cells that sandboxes are made from."""

    node: Cell[NodeView]
    runtime: Cell[RuntimeReady]
    content: Cell[Content]
    placements: Cell[Placements] = field(default_factory=lambda: Cell("placements", Placements()))
    mounts: Cell[Mounts] = field(default_factory=lambda: Cell("mounts", Mounts()))


class Sandboxes:
    """Creates, adopts and releases sandboxes. `resolv_conf`: path of the host's resolver file, empty for none.

    Without `userns` no pod has a user namespace.
    """

    def __init__(
        self,
        cri: CriClient,
        flight: SingleFlight,
        settings: RenderSettings,
        cells: SandboxCells,
        resolv_conf: str,
        recorder: Post[KubeEvent],
        userns: UserNamespaceManager | None = None,
    ) -> None:
        self._cri = cri
        self._flight = flight
        self._settings = settings
        self._cells = cells
        self._resolv_conf = resolv_conf
        self._recorder = recorder
        self._userns = userns

    @property
    def paths(self) -> Paths:
        """The agent's directories on the host."""
        return self._settings.paths

    def settings(self) -> RenderSettings:
        """The current settings of containers: the node's resources may change."""
        return replace(self._settings, node=self._cells.node.get(), resolv_conf=None)

    async def _sandbox_settings(self, pod: Pod, *, is_new: bool) -> RenderSettings:
        """The current settings with the host's resolver file, which may change. The directory of a new pod's logs is made.

        All of it is one piece of work in a thread: a disk that hangs holds up its pod only.
        """
        settings, path, logs = self.settings(), self._resolv_conf, self.paths.pod_logs(pod_ref(pod))

        def work() -> RenderSettings:
            if is_new:
                make_dirs(logs, 0o755)
            return _with_resolver(settings, path)

        outcome = await self._flight.run_next(f"sandbox:{pod.metadata.uid}", work, FILES_DEADLINE_S)
        if isinstance(outcome, Done):
            return outcome.value
        if isinstance(outcome, Failed) and not isinstance(outcome.error, HostError):
            raise outcome.error
        text = str(outcome.error) if isinstance(outcome, Failed) else f"the directory {logs} does not answer"
        raise ContainerStartError(text, CREATE_POD_SANDBOX_ERROR)

    async def adopt(self, pod: Pod, sandbox: SandboxView, cgroup_parent: str, *, for_starts: bool = True) -> Sandbox:
        """Adopt an existing sandbox: with its own runtime handler, and `for_starts` of containers with the config that it would be
        created with now.

        Raises ContainerStartError.
        """
        context = await self._context(pod, sandbox.attempt, cgroup_parent, sandbox.runtime_handler)
        if not for_starts:
            return Sandbox(sandbox.id, sandbox.ips, pb.PodSandboxConfig(), context)
        settings = await self._sandbox_settings(pod, is_new=False)
        with WORK.on(pod.metadata.uid):
            config = render_sandbox(pod, settings, context)
        return Sandbox(sandbox.id, sandbox.ips, config, context)

    async def create(self, pod: Pod, attempt: int, cgroup_parent: str) -> Sandbox:
        """Run a new sandbox. If the runtime still holds its name, the next attempt number is used. Raises ContainerStartError."""
        STARTED_PODS.inc()
        if needs_user_namespace(pod):
            STARTED_USERNS.inc()
        try:
            sandbox = await self._run(pod, attempt, cgroup_parent)
        except ContainerStartError as error:
            STARTED_PODS_ERRORS.inc()
            text = f"Failed to create pod sandbox: {error.message}"
            self._recorder.post(warning(EVENT_FAILED_CREATE_POD_SANDBOX, text, pod_ref(pod)))
            raise
        return await self._with_ips(pod, sandbox)

    async def _run(self, pod: Pod, attempt: int, cgroup_parent: str) -> Sandbox:
        """Run a new sandbox; its addresses are not known yet."""
        handler = runtime_handler(pod, self._cells.content.get())
        settings = await self._sandbox_settings(pod, is_new=True)
        made_for = await self._context(pod, attempt, cgroup_parent, handler)
        for number in range(attempt, attempt + NAME_ATTEMPTS):
            context = replace(made_for, attempt=number)
            with WORK.on(pod.metadata.uid):
                config = render_sandbox(pod, settings, context)
            try:
                sandbox_id = await self._cri.run_pod_sandbox(config, context.runtime_handler)
            except CriError as error:
                if error.reserved_for is not None:
                    log.warning(
                        "a sandbox name is still reserved; the next attempt is used", pod=pod_ref(pod), error=error
                    )
                    continue
                raise ContainerStartError(str(error), CREATE_POD_SANDBOX_ERROR) from error
            self._report_dns(pod, settings)
            return Sandbox(SandboxID(sandbox_id), (), config, context)
        message = f"the runtime holds the names of attempts {attempt} to {attempt + NAME_ATTEMPTS - 1}"
        raise ContainerStartError(message, CREATE_POD_SANDBOX_ERROR)

    def with_volume_groups(self, pod: Pod, sandbox: Sandbox) -> Sandbox:
        """The sandbox with the groups of all mounted volumes, some of which may not have been mounted when it was made or adopted."""
        groups = self._volume_groups(pod)
        if groups == sandbox.context.supplemental_groups:
            return sandbox
        return replace(sandbox, context=replace(sandbox.context, supplemental_groups=groups))

    async def release(self, uid: PodUID) -> str:
        """Release the user namespace of a pod that has ended. Returns the error, or an empty string; may be repeated."""
        try:
            if self._userns is not None:
                await self._userns.release(uid)
        except HostError as error:
            return f"the user namespace cannot be released: {error}"
        return ""

    async def _context(self, pod: Pod, attempt: int, cgroup_parent: str, handler: str) -> SandboxContext:
        features = self._cells.runtime.get().handlers.get(handler)
        exclusive = not self._cells.placements.get().has_quota(PodUID(pod.metadata.uid))
        groups = self._volume_groups(pod)
        context = SandboxContext(
            attempt, cgroup_parent, handler, features, supplemental_groups=groups, exclusive_cpus=exclusive
        )
        if self._userns is None or not needs_user_namespace(pod) or user_namespace_refusal(handler, features):
            return context  # rendering refuses what the runtime does not support
        return replace(context, userns=await self._userns.allocate(PodUID(pod.metadata.uid)))

    def _volume_groups(self, pod: Pod) -> tuple[int, ...]:
        """The supplemental groups that the pod's volumes add to its own."""
        mounts = self._cells.mounts.get().pods.get(PodUID(pod.metadata.uid), PodMounts())
        context = pod.spec.securityContext
        own = context.supplementalGroups if context is not None else ()
        groups = {volume.group for volume in mounts.volumes.values() if volume.group is not None}
        return tuple(sorted(groups.difference(own)))

    async def _with_ips(self, pod: Pod, sandbox: Sandbox) -> Sandbox:
        if pod.spec.hostNetwork:
            return sandbox
        try:
            status = (await self._cri.pod_sandbox_status(sandbox.id)).status
        except CriError as error:
            message = f"Unable to get pod sandbox status: {error}"
            self._recorder.post(warning(EVENT_FAILED_POD_SANDBOX_STATUS, message, pod_ref(pod)))
            raise ContainerStartError(message, CREATE_POD_SANDBOX_ERROR) from error
        ips = tuple(ip for ip in (status.network.ip, *(more.ip for more in status.network.additional_ips)) if ip)
        ready, handler = status.state == pb.SANDBOX_READY, status.runtime_handler
        created_at = known_time(status.created_at)
        seen = SandboxView(sandbox.id, status.metadata.attempt, ready, created_at, ips, runtime_handler=handler)
        return replace(sandbox, ips=ips, seen=seen)

    def _report_dns(self, pod: Pod, settings: RenderSettings) -> None:
        try:
            recorder = dns_config(pod, settings)[1]
        except ContainerStartError as error:
            log.warning("the resolver settings of a pod cannot be rendered", pod=pod_ref(pod), error=error)
            return
        for kube_event in recorder:
            self._recorder.post(kube_event)


def _with_resolver(settings: RenderSettings, path: str) -> RenderSettings:
    """The settings with the text of the resolver file, or with the reason why it cannot be read. Blocks."""
    if not path:
        return settings
    try:
        return replace(settings, resolv_conf=read_text(path))
    except HostError as error:
        return replace(settings, resolv_conf="", resolv_conf_error=str(error))
