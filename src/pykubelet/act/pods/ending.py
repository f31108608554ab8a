"""Ends one pod: stops its containers and sandboxes, waits until their exits are reported, and releases its resources.

Owns: the order of these steps, and the list of sandboxes that are left to remove. Reads: `Observed`, `RuntimeReady`,
`Statuses`. Every step may be repeated: what is already gone is no error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pykubelet.act.pods.model import CleanEnded, CleanUp, StopPod
from pykubelet.act.pods.need import PodNeed
from pykubelet.act.pods.tools import PodTools, pod_ip, runtime_wait
from pykubelet.act.pods.waitbook import ENDING, WaitBook
from pykubelet.act.runtime.lifecycle.stop import PodLeftovers
from pykubelet.base.api.core import PodStatus
from pykubelet.base.kit.flight import Done
from pykubelet.base.kit.log import Log
from pykubelet.base.model.ids import PodRef, pods_of
from pykubelet.base.model.kube_events import warning
from pykubelet.base.model.observed import PodView
from pykubelet.base.model.paths import Beneath
from pykubelet.base.model.reasons import EVENT_FAILED_KILL_POD
from pykubelet.base.model.waits import Owner, Wait
from pykubelet.edges.cri.errors import CriError
from pykubelet.edges.host.fs.beneath import read_link, remove_file, remove_tree
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import names_in

log = Log("pods")
LOGS_DEADLINE_S = 60.0
#: Seconds that a stopped pod waits for a status with the exits of its containers before it is removed anyway.
REPORTED_DEADLINE_S = 3.0


class PodEnding:
    """Ends one pod. At most one of `stop` and `clean` runs at a time."""

    def __init__(self, tools: PodTools, ref: PodRef, needs: Sequence[PodNeed]) -> None:
        self._tools = tools
        self._ref = ref
        self._needs = needs
        self._remains: PodLeftovers | None = None

    def _view(self) -> PodView | None:
        return self._tools.cells.observed.get().pods.get(self._ref.uid)

    async def _runtime_back(self, waits: WaitBook) -> None:
        """Wait until the runtime takes calls; without it nothing can be stopped or removed."""
        await waits.until(self._tools.cells.runtime, lambda now: None if now.takes_calls else runtime_wait(now))

    @property
    def is_held(self) -> bool:
        """Whether a need is given back only after the pod was seen without containers."""
        return any(need.is_held for need in self._needs)

    async def stop(self, command: StopPod, waits: WaitBook, changed_at: float, *, for_good: bool = False) -> str:
        """Stop all containers, then the sandboxes. Returns the error, or an empty string. `changed_at`: when the pod was changed last;
        views read earlier are outdated. `for_good`: see `stop_pod`.
        """
        for need in reversed(self._needs):
            need.cancel()
        await self._runtime_back(waits)
        stopper = self._tools.stopper
        next_at = self._tools.clock.wall() + command.grace_s
        view = self._view()
        wait = Wait(ENDING, Owner.RUNTIME_MANAGER, 0.0, next_step="SIGKILL", next_at=next_at)
        try:
            with waits.waiting(wait):
                self._remains = await stopper.stop_pod(
                    command.pod,
                    self._ref,
                    command.grace_s,
                    pod_ip(view),
                    view if view is not None and view.read_at > changed_at else None,
                    waits,
                    for_good=for_good,
                )
        except CriError as error:
            self._tools.recorder.post(warning(EVENT_FAILED_KILL_POD, f"error killing pod: {error}", self._ref))
            return str(error)
        return ""

    async def wait_ends_reported(self, waits: WaitBook) -> None:
        """Wait until the pod's status shows how its containers ended, because the containers are removed next."""
        uid = self._ref.uid
        wait = Wait("how the containers ended", Owner.STATUS_MANAGER, 0.0, next_step="remove them")

        def unreported(status: PodStatus | None) -> Wait | None:
            every = (*status.initContainerStatuses, *status.containerStatuses) if status is not None else ()
            is_running = any(container.state is not None and container.state.running is not None for container in every)
            return wait if is_running else None

        try:
            async with asyncio.timeout(REPORTED_DEADLINE_S):
                await waits.until(self._tools.cells.statuses.entry(pods_of, uid), unreported)
        except TimeoutError:
            log.warning("a pod is removed before its status shows how its containers ended", pod=self._ref, uid=uid)

    async def after_stop(self, waits: WaitBook) -> None:
        """Wait for what must be given back before the pod counts as terminated."""
        for need in reversed(self._needs):
            await need.after_stop(waits)

    async def clean(self, command: CleanUp, waits: WaitBook) -> CleanEnded:
        """Release what the pod needed, and its user namespace; with `remove`, also remove containers, sandboxes and logs. The steps
        run in parallel, because no process of the pod is left."""
        if command.remove:
            await self._tools.hook_records.forget(self._ref.uid)
            await self._runtime_back(waits)
        work = [self._release(waits), self._tools.sandboxes.release(self._ref.uid)]
        if command.remove:
            work += [self._remove_from_runtime(waits), self._remove_logs()]
        error = "; ".join(problem for problem in await asyncio.gather(*work) if problem)
        is_gone = command.remove and not error
        return CleanEnded(error, removed_at=self._tools.clock.monotonic() if is_gone else None)

    async def _release(self, waits: WaitBook) -> str:
        """Release the needs, the last one first. Returns the errors, or an empty string."""
        problems = [await need.release(waits) for need in reversed(self._needs)]
        return "; ".join(problem for problem in problems if problem)

    async def _remove_from_runtime(self, waits: WaitBook) -> str:
        try:
            await self._tools.stopper.remove_pod(self._ref, self._remains, waits)
        except CriError as error:
            self._remains = None
            return str(error)
        return ""

    async def _remove_logs(self) -> str:
        """Remove the pod's logs with all links to them, including links that an earlier run of the agent has made."""
        paths = self._tools.sandboxes.paths
        directory, links, ref = paths.pod_logs(self._ref), paths.log_links, self._ref

        def remove() -> None:
            for name in names_in(links):
                target = read_link(Beneath(links, name)) if paths.may_be_log_link(name, ref) else None
                if target is not None and target.startswith(directory + "/"):
                    remove_file(Beneath(links, name))
            remove_tree(directory, may_hold_mounts=False)

        outcome = await self._tools.flight.run(f"logs:{ref.uid}", remove, LOGS_DEADLINE_S)
        if isinstance(outcome, Done):
            return ""
        error = getattr(outcome, "error", None)
        if error is not None and not isinstance(error, HostError):
            raise error
        return f"logs cannot be removed: {error}" if error is not None else "the log directory does not answer"
