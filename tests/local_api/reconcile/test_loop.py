"""The loop asks whom a write concerns, makes the changes, and lets nothing stop the rest."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from local_api.reconcile.world import World, thing

from pykubelet.base.kit.clock import ManualClock
from pykubelet_local_api.errors import StatusError, forbidden
from pykubelet_local_api.kinds.table import STORED
from pykubelet_local_api.objects import name_of
from pykubelet_local_api.reconcile.changes import created, deleted, updated, with_metadata
from pykubelet_local_api.reconcile.loop import CPU_SAVED_S, MAX_CHANGES, MAX_ON_LOOP_BYTES, MAX_WAIT_S, ReconcileLoop
from pykubelet_local_api.reconcile.reconciler import Reconciler
from pykubelet_local_api.view import ObjectChange, View


class Server(World):
    """A world that notes its writes in the loop. `refused`: the names of objects that cannot be written."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock
        self.refused: dict[str, StatusError] = {}
        self.attempts: list[str] = []
        self.loop: ReconcileLoop | None = None

    async def apply(self, change: ObjectChange) -> None:
        name = name_of(change.object)
        self.attempts.append(name)
        if name in self.refused:
            raise self.refused[name]
        before = len(self.written)
        self.make(change)
        assert self.loop is not None
        for key in self.written[before:]:
            self.loop.note(*key)

    def put(self, name: str) -> None:
        self.add(thing("ConfigMap", name, "ns"))
        assert self.loop is not None
        self.loop.note("configmaps", "ns", name)


def stand(*reconcilers: Reconciler) -> tuple[Server, ReconcileLoop, ManualClock]:
    clock = ManualClock()
    server = Server(clock)
    server.loop = ReconcileLoop(reconcilers, server, server, clock)
    return server, server.loop, clock


def labeling(view: View) -> list[ObjectChange]:
    """Wants a label on every ConfigMap."""
    return [
        updated("configmaps", with_metadata(found, labels={"seen": "yes"}))
        for found in view.list("configmaps")
        if not found["metadata"].get("labels")
    ]


LABELING = Reconciler("labeling", frozenset({"configmaps"}), labeling)


def labeled(server: Server) -> list[str]:
    return [name_of(found) for found in server.list("configmaps") if found["metadata"].get("labels")]


async def steps(loop: ReconcileLoop, most: int = 20) -> None:
    for _ in range(most):
        if loop.is_idle():
            return
        await loop.step()
    raise AssertionError("the loop does not come to an end")


async def test_what_is_there_at_the_start_is_reconciled() -> None:
    server, loop, _ = stand(LABELING)
    server.add(thing("ConfigMap", "a", "ns"))
    await steps(loop)
    assert labeled(server) == ["a"]


async def test_a_write_wakes_who_reads_it() -> None:
    server, loop, _ = stand(LABELING)
    await steps(loop)
    loop.note("secrets", "ns", "s")
    assert loop.is_idle()
    server.put("a")
    assert not loop.is_idle()
    await steps(loop)
    assert labeled(server) == ["a"]


async def test_a_write_that_does_not_concern_is_not_asked_about() -> None:
    asked: list[int] = []

    def count(view: View) -> list[ObjectChange]:
        asked.append(1)
        return []

    def is_b(view: View, resource: str, namespace: str, name: str) -> bool:
        return name == "b"

    server, loop, _ = stand(Reconciler("counting", frozenset({"configmaps"}), count, is_b))
    await steps(loop)
    server.put("a")
    await steps(loop)
    assert len(asked) == 1
    server.put("b")
    await steps(loop)
    assert len(asked) == 2


async def test_a_change_that_fails_backs_off_and_stops_no_other() -> None:
    server, loop, clock = stand(LABELING)
    server.refused["a"] = forbidden(STORED["configmaps"], "a", "no")
    server.add(thing("ConfigMap", "a", "ns"))
    server.add(thing("ConfigMap", "b", "ns"))
    await steps(loop)
    assert labeled(server) == ["b"]
    server.put("c")
    await steps(loop)
    assert labeled(server) == ["b", "c"]
    assert server.attempts.count("a") == 1
    clock.advance(1.0)
    await loop.step()
    assert server.attempts.count("a") == 2
    del server.refused["a"]
    clock.advance(10.0)
    await loop.step()
    assert labeled(server) == ["a", "b", "c"]


async def test_a_defect_in_one_reconciler_leaves_the_others_alone() -> None:
    def broken(view: View) -> list[ObjectChange]:
        raise ValueError("a defect")

    server, loop, _ = stand(Reconciler("broken", frozenset({"configmaps"}), broken), LABELING)
    server.add(thing("ConfigMap", "a", "ns"))
    await steps(loop)
    assert labeled(server) == ["a"]


async def test_a_change_to_an_older_version_is_dropped() -> None:
    stale = thing("ConfigMap", "a", "ns", metadata={"resourceVersion": "0"})
    server, loop, _ = stand(Reconciler("late", frozenset({"configmaps"}), lambda view: [deleted("configmaps", stale)]))
    server.add(thing("ConfigMap", "a", "ns"))
    await steps(loop)
    assert server.names("configmaps") == ["a"]


async def test_many_changes_are_made_in_parts() -> None:
    server, loop, _ = stand(LABELING)
    for number in range(3 * MAX_CHANGES):
        server.add(thing("ConfigMap", f"m{number}", "ns"))
    await loop.step()
    assert len(labeled(server)) == MAX_CHANGES
    await steps(loop)
    assert len(labeled(server)) == 3 * MAX_CHANGES


def at(moment: float) -> Callable[[View], float | None]:
    return lambda view: None if view.get("configmaps", "ns", "late") else moment


async def test_time_alone_wakes() -> None:
    clock_wall = ManualClock().wall()

    def create_late(view: View) -> list[ObjectChange]:
        wanted = view.now >= clock_wall + 100 and not view.get("configmaps", "ns", "late")
        return [created("configmaps", thing("ConfigMap", "late", "ns"))] if wanted else []

    server, loop, clock = stand(Reconciler("late", frozenset(), create_late, wakes_at=at(clock_wall + 100)))
    server.now = clock.wall()
    await loop.step()
    assert server.names("configmaps") == []
    clock.advance(101)
    server.now = clock.wall()
    await loop.step()
    assert server.names("configmaps") == ["late"]


async def test_a_clock_that_was_set_asks_all() -> None:
    asked: list[int] = []

    def count(view: View) -> list[ObjectChange]:
        asked.append(1)
        return []

    _, loop, clock = stand(Reconciler("counting", frozenset(), count))
    await steps(loop)
    clock.jump_wall(-3600)
    await loop.step()
    assert len(asked) == 2


@pytest.mark.virtual_time
async def test_the_loop_runs_until_it_is_canceled() -> None:
    server, loop, _ = stand(LABELING)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(loop.run())
        await asyncio.sleep(0.1)
        server.put("a")
        await asyncio.sleep(0.1)
        assert labeled(server) == ["a"]
        task.cancel()


async def test_a_reconciler_that_costs_much_waits_and_delays_no_other() -> None:
    clock = ManualClock()
    asked: list[float] = []

    def slow(view: View) -> list[ObjectChange]:
        asked.append(clock.monotonic())
        clock.advance(CPU_SAVED_S + 0.1)
        return []

    server = Server(clock)
    costly = Reconciler("costly", frozenset({"configmaps"}), slow)
    server.loop = loop = ReconcileLoop((costly, LABELING), server, server, clock)
    await loop.step()
    server.put("a")
    await loop.step()
    assert (len(asked), labeled(server)) == (1, ["a"])
    clock.advance(MAX_WAIT_S)
    await loop.step()
    assert len(asked) == 2, "what it owes for is earned again"


async def test_a_reconciler_that_reads_much_decides_in_a_thread() -> None:
    threads: list[int] = []
    own, has_begun, may_end = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def slow(view: View) -> list[ObjectChange]:
        threads.append(threading.get_ident())
        own.call_soon_threadsafe(has_begun.set)
        assert may_end.wait(30)
        return labeling(view)

    server, loop, _ = stand(Reconciler("slow", frozenset({"configmaps"}), slow))
    server.bytes = MAX_ON_LOOP_BYTES + 1
    server.add(thing("ConfigMap", "a", "ns"))
    step = asyncio.create_task(loop.step())
    async with asyncio.timeout(30):
        await has_begun.wait()
        server.add(thing("ConfigMap", "b", "ns"))  # the event loop goes on meanwhile
        may_end.set()
        await step
    assert threads != [threading.get_ident()]
    assert labeled(server) == ["a"], "it decides from the objects at its beginning"
    server.put("b")
    await steps(loop)
    assert labeled(server) == ["a", "b"]


async def test_a_defect_in_a_thread_is_one_of_that_reconciler() -> None:
    def broken(view: View) -> list[ObjectChange]:
        raise ValueError("broken")

    server, loop, _ = stand(Reconciler("broken", frozenset({"configmaps"}), broken), LABELING)
    server.bytes = MAX_ON_LOOP_BYTES + 1
    server.put("a")
    await loop.step()
    await loop.step()
    assert labeled(server) == ["a"]
