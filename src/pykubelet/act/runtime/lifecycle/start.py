"""Makes and starts one container in a sandbox: its files, its config and CreateContainer; then StartContainer.

Owns: what each of these steps does, and the waiting reason of each failure. The files are the termination message file, the
pod's /etc/hosts and the log directory. A container may be created long before its start: what users see of it comes with its start.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar, assert_never

from pykubelet.act.runtime.lifecycle.hooks import HookRunner, HookTarget, hook_words, words_for_log
from pykubelet.act.runtime.lifecycle.metrics import STARTED_CONTAINERS_ERRORS
from pykubelet.act.runtime.lifecycle.sandbox import Sandbox
from pykubelet.act.runtime.lifecycle.stop import ContainerStopper, StopTarget, restart_grace
from pykubelet.act.runtime.render.container_values import GiveRealtime, ask_extensions
from pykubelet.act.runtime.render.context import AnyContainer, ContainerContext, EnvFile, RenderSettings
from pykubelet.act.runtime.render.dns import etc_hosts_content
from pykubelet.act.runtime.render.env import UNREADABLE, parse_env_file
from pykubelet.act.runtime.render.render_config import HEAVY, log_path, render_container, weight
from pykubelet.act.runtime.render.render_mounts import PATH_LIMIT, is_too_long
from pykubelet.act.runtime.start_error import ContainerStartError
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.cells import Post
from pykubelet.base.kit.flight import WORK, Done, Failed, SingleFlight, Uncertain, value_of
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import beside, finish
from pykubelet.base.kit.text import parse_decimal
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.containers import container_field_path, container_kind
from pykubelet.base.model.ids import ContainerID
from pykubelet.base.model.kube_events import KubeEvent, normal, warning
from pykubelet.base.model.mounts import MountedVolume
from pykubelet.base.model.observed import ContainerView
from pykubelet.base.model.paths import Beneath, Paths
from pykubelet.base.model.reasons import (
    CREATE_CONTAINER_ERROR,
    EVENT_CREATED,
    EVENT_EXTENSION_FAILED,
    EVENT_FAILED,
    EVENT_FAILED_POST_START_HOOK,
    EVENT_STARTED,
    POST_START_HOOK_ERROR,
    RUN_CONTAINER_ERROR,
)
from pykubelet.base.model.roster import pod_ref
from pykubelet.base.model.waits import UNRECORDED, Owner, Wait, Waits
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError
from pykubelet.edges.host.fs.beneath import (
    create_file,
    list_dir,
    list_entries,
    make_dirs,
    remove_file,
    replace_symlink,
    write_in_place,
)
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import FileKind, read_text
from pykubelet.edges.host.fs.subpaths import read_beneath

T = TypeVar("T")
log = Log("runtime")
NAME_ATTEMPTS = 5
START_LIMIT_S = 5.0
#: A start that fails because the sandbox is being stopped fails shortly before the runtime reports the end of the sandbox.
SETTLE_S = (0.05, 0.1, 0.2)
FILES_DEADLINE_S = 30.0
NODE_HOSTS = "/etc/hosts"
ENV_FILE_LIMIT = 1 << 20
#: Of all files of one container together, in bytes.
ENV_FILES_LIMIT = 4 << 20
#: The highest number of a log that is believed: 31 years at a restart a second. Counts in the API and the runtime have 32 bits.
MAX_RESTARTS = 10**9
_MESSAGE_FILE = re.compile("[0-9a-f]{8}")


class ContainerFiles(Value):
    """What is made on the host for one instance. The path is empty if the container has no termination message file."""

    restart_count: int
    termination_log: str


class CreatedContainer(Value):
    """A container that is to be started. `count`: its restart count. `refusals`: why the runtime has refused lower counts.

    `realtime_us`: as of `ask_extensions`.
    """

    id: ContainerID
    count: int
    refusals: tuple[str, ...] = ()
    realtime_us: int | None = None


class SandboxEnded(Value):
    """The sandbox ended before the container was started. The created container is left in it."""


class ContainerStarter:
    """Starts single containers; the caller decides on restarts. All steps raise ContainerStartError, within `reporting`."""

    def __init__(
        self,
        cri: CriClient,
        hooks: HookRunner,
        stopper: ContainerStopper,
        flight: SingleFlight,
        recorder: Post[KubeEvent],
        give_realtime: GiveRealtime | None = None,
    ) -> None:
        self._cri = cri
        self._give_realtime = give_realtime
        self._hooks = hooks
        self._stopper = stopper
        self._flight = flight
        self._recorder = recorder

    @contextmanager
    def reporting(self, pod: Pod, container: AnyContainer) -> Iterator[None]:
        """A context manager for the steps of a start: counts its failure and records its Event, if this was not done yet."""
        try:
            yield
        except ContainerStartError as error:
            self._report_refusals(pod, container, error.refusals)
            if not error.is_reported:
                self._report(pod, container, error.reason, error.message)
                error.is_reported = True
            raise

    async def make_files(
        self,
        pod: Pod,
        container: AnyContainer,
        instances: Sequence[ContainerView],
        paths: Paths,
        *,
        least_count: int = 0,
    ) -> ContainerFiles:
        """Make the files of the next instance, in a thread: its log directory and termination message.

        `instances`: all existing instances, newest first. `least_count`: the restart count is not lower, whatever they and logs show.
        """
        files = await self._in_thread(
            f"files:{pod.metadata.uid}:{container.name}", lambda: _make_files(pod, container, instances, paths)
        )
        return replace(files, restart_count=max(files.restart_count, least_count))

    async def write_hosts(self, pod: Pod, settings: RenderSettings, pod_ips: tuple[str, ...]) -> str:
        """Write the pod's /etc/hosts, in a thread, and return its path on the host."""
        return await self._in_thread(f"hosts:{pod.metadata.uid}", lambda: _write_hosts(pod, settings, pod_ips))

    async def _in_thread(self, key: str, work: Callable[[], T]) -> T:
        """The result of work on the pod's directory."""
        outcome = await self._flight.run_next(key, work, FILES_DEADLINE_S)
        match outcome:
            case Done(value):
                return value
            case Failed(HostError() as error):
                raise ContainerStartError(str(error)) from error
            case Failed(error):
                raise error
            case Uncertain():
                raise ContainerStartError("the pod directory does not answer")
            case _:
                assert_never(outcome)

    async def read_env_files(
        self, pod: Pod, container: AnyContainer, mounts: Mapping[str, MountedVolume]
    ) -> dict[tuple[str, str], EnvFile]:
        """The variables that the container's `fileKeyRef`s name, by volume and path of their file.

        The container is refused for the first file that cannot be read, so there are none of those after it. Raises
        ContainerStartError for a path that no file can have.
        """
        wanted: dict[tuple[str, str], set[str]] = {}
        for variable in container.env:
            if variable.valueFrom is not None and (ref := variable.valueFrom.fileKeyRef) is not None:
                if is_too_long(ref.path):
                    raise ContainerStartError(
                        f'the path of the fileKeyRef of "{variable.name}" is too long: {PATH_LIMIT}'
                    )
                wanted.setdefault((ref.volumeName, ref.path), set()).add(ref.key)
        if not wanted:
            return {}
        roots = {volume: mounts[volume].host_path for volume, _ in wanted if volume in mounts}
        outcome = await self._flight.run_next(
            f"env:{pod.metadata.uid}:{container.name}", lambda: _read_env_files(roots, wanted), FILES_DEADLINE_S
        )
        return outcome.value if isinstance(outcome, Done) else {}

    async def create(
        self,
        pod: Pod,
        container: AnyContainer,
        sandbox: Sandbox,
        settings: RenderSettings,
        ctx: ContainerContext,
        *,
        may_have_ended: bool = False,
    ) -> CreatedContainer | SandboxEnded:
        """Create a container. No Event and no count is made of it before `start`. `may_have_ended`: as of `start`."""
        refusals: list[str] = []
        for count in range(ctx.restart_count, ctx.restart_count + NAME_ATTEMPTS):
            config = await self._render(pod, container, settings, replace(ctx, restart_count=count))
            realtime_us = None
            if settings.ask_extensions is not None:
                realtime_us = ask_extensions(config.linux.resources, pod, container, settings, is_new=True)
            try:
                made = ContainerID(await self._cri.create_container(sandbox.id, config, sandbox.config))
                return CreatedContainer(made, count, tuple(refusals), realtime_us)
            except CriError as error:
                if await self._has_ended(sandbox, SETTLE_S if may_have_ended else ()):
                    return SandboxEnded()
                if error.reserved_for is None:
                    refused = tuple(refusals)
                    raise ContainerStartError(error.message, CREATE_CONTAINER_ERROR, refusals=refused) from error
                log.warning(
                    "a container name is still reserved; the next attempt is used", pod=pod_ref(pod), error=error
                )
                # an Event for each attempt, because the restart count is higher than the number of containers that ran
                refusals.append(error.message)
        message = f"the runtime holds the names of attempts {ctx.restart_count} to {count}: {refusals[-1]}"
        raise ContainerStartError(message, CREATE_CONTAINER_ERROR, refusals=tuple(refusals))

    async def start(
        self,
        pod: Pod,
        container: AnyContainer,
        created: CreatedContainer,
        sandbox: Sandbox,
        settings: RenderSettings,
        *,
        may_have_ended: bool = False,
    ) -> ContainerID | SandboxEnded:
        """Start a created container, without its postStart hook. One that could not be started is not removed: it is the `unstarted`
        of the error, and most runtimes show it as exited.

        `may_have_ended`: the runtime may be stopping the sandbox, so it is asked once more before the container is started.
        It is also asked after a failure: what fails because the sandbox has ended is no fault of the container.
        """
        container_id, ref = created.id, pod_ref(pod)
        self._report_refusals(pod, container, created.refusals)
        if may_have_ended and await self._has_ended(sandbox):
            return SandboxEnded()
        path = container_field_path(pod, container.name)
        self._recorder.post(normal(EVENT_CREATED, "Container created", ref, path))
        if created.realtime_us is not None and self._give_realtime is not None:
            problem = await self._give_realtime(pod, container_id, created.realtime_us)
            if problem:  # the container may do without
                self._recorder.post(warning(EVENT_EXTENSION_FAILED, problem, ref, path))
        try:
            # an interrupted call would leave a container that could not be started
            started = finish(self._cri.start_container(container_id), START_LIMIT_S)
            await beside(self._link_log(pod, container, container_id, created.count, settings), started)
        except CriError as error:
            if await self._has_ended(sandbox, SETTLE_S if may_have_ended else ()):
                return SandboxEnded()
            # the name instead of the ID: Events of many instances are to be aggregated into one
            self._report(pod, container, RUN_CONTAINER_ERROR, error.message.replace(container_id, container.name))
            raise ContainerStartError(
                error.message, RUN_CONTAINER_ERROR, unstarted=container_id, is_reported=True
            ) from error
        self._recorder.post(normal(EVENT_STARTED, "Container started", ref, path))
        return container_id

    async def _has_ended(self, sandbox: Sandbox, pauses: Sequence[float] = ()) -> bool:
        """Whether the sandbox takes no containers any more. While it does, the runtime is asked again after each of `pauses`."""
        for pause in (0.0, *pauses):
            await asyncio.sleep(pause)
            try:
                if (await self._cri.pod_sandbox_status(sandbox.id)).status.state != pb.SANDBOX_READY:
                    return True
            except CriError as error:
                return error.is_not_found
        return False

    async def post_start(
        self, pod: Pod, container: AnyContainer, instance: ContainerID, pod_ip: str, waits: Waits = UNRECORDED
    ) -> None:
        """Run the hook, if there is one. On an error the caller must stop the container."""
        lifecycle = container.lifecycle
        if lifecycle is None or lifecycle.postStart is None:
            return
        target = StopTarget(pod, pod_ref(pod), container.name, instance, pod_ip)
        detail = hook_words(lifecycle.postStart)
        wait = Wait(
            "postStart hook", Owner.RUNTIME_MANAGER, 0.0, container.name, detail=detail, next_step="take it for running"
        )
        with waits.waiting(wait):
            hook_target = HookTarget(target.ref, container, instance, target.pod_ip)
            problem = await self._hooks.run(lifecycle.postStart, hook_target)
        if not problem:
            return
        path = container_field_path(pod, container.name)
        log.warning("postStart hook failed", pod=target.ref, container=container.name, error=words_for_log(problem))
        # its output stays out of the Event: it may contain secrets
        self._recorder.post(warning(EVENT_FAILED_POST_START_HOOK, "PostStartHook failed", target.ref, path))
        raise ContainerStartError(problem, POST_START_HOOK_ERROR, instance=instance, is_reported=True)

    async def stop_after_failed_hook(
        self, pod: Pod, container: AnyContainer, instance: ContainerID, pod_ip: str, waits: Waits = UNRECORDED
    ) -> None:
        """Stop a container whose hook failed, within the grace period of its pod."""
        target = StopTarget(pod, pod_ref(pod), container.name, instance, pod_ip)
        try:
            await self._stopper.stop_container(target, restart_grace(pod), "FailedPostStartHook", waits)
        except CriError as error:
            log.warning("a container whose hook failed cannot be stopped", container=container.name, error=error)

    async def _render(
        self, pod: Pod, container: AnyContainer, settings: RenderSettings, ctx: ContainerContext
    ) -> pb.ContainerConfig:
        if weight(container, ctx) < HEAVY:
            with WORK.on(pod.metadata.uid):
                return render_container(pod, container, settings, ctx)
        return value_of(
            await self._flight.run_next(
                f"render:{pod.metadata.uid}:{container.name}",
                lambda: render_container(pod, container, settings, ctx),
                FILES_DEADLINE_S,
            ),
            lambda _: ContainerStartError("the configuration takes too long to make"),
        )

    def _report_refusals(self, pod: Pod, container: AnyContainer, refusals: Sequence[str]) -> None:
        for refusal in refusals:
            self._report(pod, container, CREATE_CONTAINER_ERROR, refusal)

    def _report(self, pod: Pod, container: AnyContainer, reason: str, message: str) -> None:
        """Count a failed start and record its Event."""
        STARTED_CONTAINERS_ERRORS.inc(container_kind(pod, container), reason)
        path = container_field_path(pod, container.name)
        self._recorder.post(warning(EVENT_FAILED, f"Error: {message}", pod_ref(pod), path))

    async def _link_log(
        self, pod: Pod, container: AnyContainer, container_id: ContainerID, count: int, settings: RenderSettings
    ) -> None:
        """Make the link to the log, while the container is being started."""
        ref = pod_ref(pod)
        target = settings.paths.pod_logs(ref) / log_path(container.name, count)
        link = settings.paths.log_link(ref, container.name, container_id)
        outcome = await self._flight.run(
            f"link:{container_id}", lambda: replace_symlink(target, link), FILES_DEADLINE_S
        )
        if not isinstance(outcome, Done):
            error = outcome.error if isinstance(outcome, Failed) else "the directory of the links does not answer"
            log.warning("cannot link a container's log", pod=ref, error=error)


def _make_files(pod: Pod, container: AnyContainer, instances: Sequence[ContainerView], paths: Paths) -> ContainerFiles:
    ref = pod_ref(pod)
    log_dir = paths.container_logs(ref, container.name)
    existed = not make_dirs(log_dir, 0o755)
    termination = ""
    if container.terminationMessagePath:
        directory = paths.container(ref.uid, container.name)
        make_dirs(directory, 0o750)
        _remove_unused(directory, instances)
        message = directory / secrets.token_hex(4)
        create_file(message, 0o666)
        termination = str(message)
    newest = instances[0] if instances else None
    return ContainerFiles(_restart_count(newest, log_dir, existed), termination)


def _write_hosts(pod: Pod, settings: RenderSettings, pod_ips: tuple[str, ...]) -> str:
    path = settings.paths.etc_hosts(pod_ref(pod).uid)
    node_hosts = read_text(NODE_HOSTS) if pod.spec.hostNetwork else ""
    write_in_place(path, etc_hosts_content(pod, settings, pod_ips, node_hosts).encode(), 0o644)
    return str(path)


def _remove_unused(directory: Beneath, instances: Sequence[ContainerView]) -> None:
    """Remove message files of instances that are gone or were never created, because a crash loop leaves many."""
    if not all(instance.mounts for instance in instances):
        return  # an instance whose mounts are unknown may use any of them
    used = {mount.host_path for instance in instances for mount in instance.mounts}
    for entry in list_entries(directory):
        path = directory / entry.name
        if _MESSAGE_FILE.fullmatch(entry.name) and path not in used:
            remove_file(path)


def _read_env_files(
    roots: Mapping[str, str], wanted: Mapping[tuple[str, str], Collection[str]]
) -> dict[tuple[str, str], EnvFile]:
    files: dict[tuple[str, str], EnvFile] = {}
    left = ENV_FILES_LIMIT
    for (volume, path), names in wanted.items():
        if volume not in roots:
            continue
        try:
            data = read_beneath(roots[volume], path, ENV_FILE_LIMIT)
        except HostError as error:
            files[volume, path] = EnvFile(problem=UNREADABLE, cause=str(error))
            break
        left -= len(data)
        if left < 0:
            files[volume, path] = EnvFile(problem=f"the environment files are larger than {ENV_FILES_LIMIT >> 20} MiB")
            break
        files[volume, path] = parse_env_file(data.decode("utf-8", "surrogateescape"), names)
    return files


def wants_hosts(pod: Pod, container: AnyContainer, pod_ips: tuple[str, ...]) -> bool:
    """Whether a container gets the pod's /etc/hosts."""
    if not pod_ips and not pod.spec.hostNetwork:
        return False
    return all(mount.mountPath != "/etc/hosts" for mount in container.volumeMounts)


def _restart_count(newest: ContainerView | None, log_dir: Beneath, existed: bool) -> int:
    """One more than that of the newest instance and of the newest log: the runtime may have lost instances.

    A pod may be able to write to the directory: only regular files count, and numbers that the runtime can have.
    """
    least = newest.restart_count + 1 if newest is not None else 0
    if not existed:
        return least
    names = [entry.name for entry in list_dir(log_dir) if ".log" in entry.name and entry.kind is FileKind.FILE]
    numbers = [parse_decimal(name.partition(".")[0], MAX_RESTARTS) for name in names]
    return max((least, *(number + 1 for number in numbers if number is not None)))
