"""The end of one pod: its containers and sandboxes stopped, their ends told, and all that it had given back.

Owns: the order of these steps, and what is known of the pod's traces. Reads: `Mounts`, `Observed`, `RuntimeReady`, `Statuses`.
Every step may be repeated: what is gone already is fine.
"""

from __future__ import annotations

import asyncio

from pykubelet.act.pods.model import CleanEnded, CleanUp, StopPod
from pykubelet.act.pods.tools import PodTools, pod_ip, runtime_wait
from pykubelet.act.pods.waitbook import ENDING, WaitBook
from pykubelet.act.runtime.lifecycle.stop import PodRemains
from pykubelet.base.kit.flight import Done
from pykubelet.base.kit.log import Log
from pykubelet.base.model.ids import PodRef
from pykubelet.base.model.kube_events import warning
from pykubelet.base.model.observed import PodView
from pykubelet.base.model.reasons import EVENT_FAILED_KILL_POD
from pykubelet.base.model.statuses import Statuses
from pykubelet.base.model.waits import Wait
from pykubelet.edges.cri.errors import CriError
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import names_in, read_link, remove_file
from pykubelet.edges.host.fs.trees import remove_tree

log = Log("pods")
LOGS_DEADLINE_S = 60.0
#: How long a stopped pod waits to be looked at before it is removed all the same.
TOLD_DEADLINE_S = 3.0


class PodEnding:
    """Of one pod. At most one of `stop` and `clean` runs at a time."""

    def __init__(self, tools: PodTools, ref: PodRef) -> None:
        self._tools = tools
        self._ref = ref
        self._remains: PodRemains | None = None
        self._acted_at = 0.0

    def acted(self) -> None:
        """Something was done to the pod: looks from before do not count any more."""
        self._acted_at = self._tools.clock.monotonic()

    def _view(self) -> PodView | None:
        return self._tools.cells.observed.get().pods.get(self._ref.uid)

    def _fresh_view(self) -> PodView | None:
        """The last look at the pod, if nothing was done to it since."""
        view = self._view()
        return view if view is not None and view.read_at > self._acted_at else None

    async def _runtime_back(self, waits: WaitBook) -> None:
        """Nothing can be stopped or removed while the runtime is away."""
        cell = self._tools.cells.runtime
        if not cell.get().takes_calls:
            with waits.waiting(runtime_wait(cell.get())):
                await cell.wait_for(lambda now: now.takes_calls)

    async def stop(self, command: StopPod, waits: WaitBook, *, for_good: bool = False) -> str:
        """Stop all containers, then the sandboxes; what is still wrong, or an empty string. `for_good`: see `stop_pod`."""
        await self._runtime_back(waits)
        stopper = self._tools.stopper
        next_at = self._tools.clock.wall() + command.grace_s
        wait = Wait(ENDING, "act/runtime", 0.0, next_step="SIGKILL", next_at=next_at)
        try:
            with waits.waiting(wait):
                self._remains = await stopper.stop_pod(
                    command.pod,
                    self._ref,
                    command.grace_s,
                    pod_ip(self._view()),
                    self._fresh_view(),
                    waits,
                    for_good=for_good,
                )
        except CriError as error:
            self._tools.recorder.post(warning(EVENT_FAILED_KILL_POD, f"error killing pod: {error}", self._ref))
            return str(error)
        return ""

    async def wait_ends_told(self, waits: WaitBook) -> None:
        """Until the pod's status tells how its containers ended: what they leave behind is removed next."""
        uid, cell = self._ref.uid, self._tools.cells.statuses

        def are_told(now: Statuses) -> bool:
            status = now.pods.get(uid)
            return status is None or not any(
                told.state is not None and told.state.running is not None
                for told in (*status.initContainerStatuses, *status.containerStatuses)
            )

        with waits.waiting(Wait("how the containers ended", "report/status", 0.0, next_step="remove them")):
            try:
                async with asyncio.timeout(TOLD_DEADLINE_S):
                    await cell.wait_for(are_told)
            except TimeoutError:
                log.warning("nobody saw how the containers of a pod ended", pod=self._ref, uid=uid)

    async def clean(self, command: CleanUp, waits: WaitBook) -> CleanEnded:
        """Give back volumes, cgroup and ids; with `remove`, also containers, sandboxes and logs. All side by side: no
        process of the pod is left."""
        self._tools.images.forget(self._ref.uid)
        if command.remove:
            await self._runtime_back(waits)
        work = [self._release(waits)]
        if command.remove:
            work += [self._remove_from_runtime(waits), self._remove_logs()]
        problems = [*await asyncio.gather(*work), self._tools.sandboxes.release(self._ref.uid)]
        error = "; ".join(problem for problem in problems if problem)
        is_gone = command.remove and not error
        return CleanEnded(error, gone_at=self._tools.clock.monotonic() if is_gone else None)

    async def _release(self, waits: WaitBook) -> str:
        """The volumes, then the cgroup that their memory counts for."""
        await self._volumes_gone(waits)
        return "" if await self._tools.cgroups.remove_pod(self._ref.uid) else "the pod's cgroup is still in use"

    async def _volumes_gone(self, waits: WaitBook) -> str:
        uid, cell = self._ref.uid, self._tools.cells.mounts
        if uid in cell.get().pods:
            with waits.waiting(Wait("volumes to be unmounted", "act/volumes", 0.0, next_step="remove the cgroup")):
                await cell.wait_for(lambda now: uid not in now.pods)
        return ""

    async def _remove_from_runtime(self, waits: WaitBook) -> str:
        try:
            await self._tools.stopper.remove_pod(self._ref, self._remains, waits)
        except CriError as error:
            self._remains = None
            return str(error)
        return ""

    async def _remove_logs(self) -> str:
        """With all links to them, also those that an earlier run of the agent made for what is gone by now."""
        paths = self._tools.sandboxes.paths
        directory, links, ref = paths.pod_logs(self._ref), paths.log_links, self._ref

        def remove() -> None:
            prefix = f"{ref.name}_{ref.namespace}_"
            for name in names_in(links):
                target = read_link(f"{links}/{name}") if name.startswith(prefix) else None
                if target is not None and target.startswith(directory + "/"):
                    remove_file(f"{links}/{name}")
            remove_tree(directory, may_hold_mounts=False)

        outcome = await self._tools.flight.run(f"logs:{ref.uid}", remove, LOGS_DEADLINE_S)
        if isinstance(outcome, Done):
            return ""
        error = getattr(outcome, "error", None)
        if error is not None and not isinstance(error, HostError):
            raise error
        return f"logs cannot be removed: {error}" if error is not None else "the log directory does not answer"
