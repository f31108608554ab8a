"""Which containers wait for a postStart hook, and are hidden until then."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from act.pods.scenes import REF, box, container, pod, running, view

from pykubelet.act.pods.hooks import HookRecords, PodHooks
from pykubelet.act.pods.waitbook import LifecycleChanged, WaitBook
from pykubelet.act.runtime.lifecycle.start import ContainerStarter
from pykubelet.base.kit.cells import Mailbox
from pykubelet.base.kit.clock import SystemClock
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.model.lifecycle import PodLifecycle, Stage
from pykubelet.report.status.model import reported_view

HOOKED = container(lifecycle={"postStart": {"exec": {"command": ["migrate"]}}})


def shown(hooks: PodHooks, attempt: int) -> list[int]:
    """The attempts of the container's instances in the status, if the runtime shows this one running."""
    lifecycle = PodLifecycle(REF, pod(HOOKED), Stage.SYNCING, 0.0, 0.0, post_starting=hooks.running)
    found = reported_view(view(box(), running(attempt=attempt)), lifecycle)
    assert found is not None
    return [c.attempt for c in found.containers]


async def test_an_instance_whose_hook_was_cut_off_stays_hidden_while_the_next_one_is_made(tmp_path: Path) -> None:
    """The runtime still shows it running for a moment after its end."""
    (tmp_path / "pods" / REF.uid).mkdir(parents=True)
    waits = WaitBook(SystemClock(), Mailbox[LifecycleChanged]("waits"))
    hooks = PodHooks(REF, cast(ContainerStarter, None), HookRecords(str(tmp_path), SingleFlight("test")))
    await hooks.announce(HOOKED, 1, waits)
    assert (shown(hooks, 0), shown(hooks, 1)) == ([0], []), "the instance before it has run"
    await hooks.announce(HOOKED, 2, waits)
    assert (shown(hooks, 1), shown(hooks, 2)) == ([], [])
