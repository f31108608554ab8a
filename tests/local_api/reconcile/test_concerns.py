"""The loop skips writes that do not concern a reconciler: its definition gives nothing after them, in random histories."""

from __future__ import annotations

import random

import pytest
from local_api.reconcile.world import World, thing

from pykubelet.base.kit.clock import ManualClock
from pykubelet_local_api.errors import StatusError
from pykubelet_local_api.objects import Json, copied
from pykubelet_local_api.reconcile.loop import ReconcileLoop
from pykubelet_local_api.reconcile.reconciler import Reconciler
from pykubelet_local_api.reconcile.services import ApiAddress
from pykubelet_local_api.reconcile.table import Setup, reconcilers
from pykubelet_local_api.view import ObjectChange

STEPS, LETTERS = 120, "abc"
#: Reconcilers that look at everything from time to time, whatever is written.
BY_TIME = {"old-events", "old-requests"}


class History:
    """Random writes of clients and agents to few objects that refer to each other."""

    def __init__(self, seed: int, world: World) -> None:
        self.random = random.Random(seed)
        self.world = world

    def step(self) -> None:
        found = self.random.choice([self.create, self.create, self.change, self.change, self.delete, self.remove])
        found()

    def _letter(self) -> str:
        return self.random.choice(LETTERS)

    def _maybe(self, fields: Json) -> Json:
        return fields if self.random.random() < 0.5 else {}

    def _new(self) -> Json:
        name, r = self._letter(), self.random
        size = {"storage": r.choice(["1Gi", "2Gi"])}
        match r.randrange(14):  # from 8: a ConfigMap, perhaps with an owner
            case 0:
                claims = [{"name": "v", "persistentVolumeClaim": {"claimName": self._letter()}}]
                spec = self._maybe({"nodeName": r.choice(["n", "away"])}) | self._maybe({"volumes": claims})
                spec |= self._maybe({"resourceClaims": [{"name": "r", "resourceClaimName": self._letter()}]})
                spec["containers"] = [{"name": "c", "image": "x"}]
                return thing(
                    "Pod",
                    name,
                    "ns",
                    metadata={"labels": {"app": self._letter()}},
                    spec=spec,
                    status={"phase": "Pending"},
                )
            case 1:
                fields = {
                    "accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": size},
                    "storageClassName": r.choice(["", "s"]),
                }
                return thing("PersistentVolumeClaim", name, "ns", spec=fields, status={"phase": "Pending"})
            case 2:
                fields = {
                    "accessModes": ["ReadWriteOnce"],
                    "capacity": size,
                    "csi": {"driver": "d", "volumeHandle": name},
                }
                return thing("PersistentVolume", name, spec=fields, status={"phase": "Pending"})
            case 3:
                return thing("Service", name, "ns", spec={"selector": {"app": self._letter()}, "ports": [{"port": 80}]})
            case 4:
                return thing(
                    "Node",
                    "n",
                    spec={},
                    status={"allocatable": {"pods": "3"}, "conditions": [{"type": "Ready", "status": "True"}]},
                )
            case 5:
                return thing("ResourceClaim", name, "ns", "resource.k8s.io/v1", spec={"devices": {"requests": []}})
            case 6:
                return thing("Namespace", "ns", spec={"finalizers": ["kubernetes"]}, status={"phase": "Active"})
            case 7:
                mode = r.choice(["Immediate", "WaitForFirstConsumer"])
                return thing("StorageClass", "s", "", "storage.k8s.io/v1", provisioner="d", volumeBindingMode=mode)
        owner = self.world.get("configmaps", "ns", self._letter())
        found = thing("ConfigMap", name, "ns")
        if owner is not None and owner["metadata"]["name"] != name:
            reference = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "name": owner["metadata"]["name"],
                "uid": owner["metadata"]["uid"],
            }
            found["metadata"]["ownerReferences"] = [reference]
        return found

    def create(self) -> None:
        new = self._new()
        if not any(
            key[1:] == (new["metadata"].get("namespace", ""), new["metadata"]["name"])
            for key in self._keys(new["kind"])
        ):
            self.world.add(new)

    def _keys(self, kind: str = "") -> list[tuple[str, str, str]]:
        return [
            (resource, item["metadata"].get("namespace", ""), item["metadata"]["name"])
            for resource in sorted({key[0] for key in self.world.ever_written})
            for item in self.world.list(resource)
            if kind in ("", item["kind"])
        ]

    def _any(self) -> tuple[str, str, str] | None:
        keys = [key for key in self._keys() if key[0] != "events"]
        return self.random.choice(keys) if keys else None

    def change(self) -> None:
        key = self._any()
        found = self.world.get(*key) if key else None
        if found is None:
            return
        new = copied(found)
        if new["kind"] == "Pod":
            phase = self.random.choice(["Pending", "Running", "Running", "Succeeded"])
            ready = self.random.choice(["True", "False"])
            status = {
                "phase": phase,
                "conditions": [{"type": "Ready", "status": ready}],
                "podIPs": [{"ip": "10.0.0.1"}],
            }
            new["status"] = new.get("status", {}) | status
        else:
            new["metadata"].setdefault("labels", {})["changed"] = str(self.random.randrange(100))
        self.world.add(new)

    def delete(self) -> None:
        key = self._any()
        found = self.world.get(*key) if key else None
        if key and found and key[0] == "configmaps" and not found["metadata"].get("deletionTimestamp"):
            finalizer = self.random.choice([[], ["orphan"], ["foregroundDeletion"]])
            self.world.add({**found, "metadata": {**found["metadata"], "finalizers": finalizer}})
        if key and key[0] not in ("nodes", "storageclasses.storage.k8s.io"):
            self.world.delete(*key)

    def remove(self) -> None:
        keys = [key for key in self._keys() if key[0] in ("pods", "configmaps", "nodes")]
        if keys:
            self.world.remove(*self.random.choice(keys))


def _settle(world: World, tasks: tuple[Reconciler, ...]) -> None:
    for _ in range(60):
        wanted = False
        for reconciler in tasks:
            for change in reconciler.reconcile(world):
                wanted = True
                try:
                    world.make(change)
                except StatusError as error:
                    assert error.code in (404, 409)
        if not wanted:
            return
    raise AssertionError("the reconcilers do not come to an end")


@pytest.mark.parametrize("seed", range(12))
def test_writes_that_do_not_concern_change_nothing(seed: int) -> None:
    world = World()
    tasks = reconcilers(Setup(lambda: "ca", ApiAddress("10.96.0.1", "192.0.2.1", 6443), ManualClock().monotonic))
    history = History(seed, world)
    _settle(world, tasks)
    skipped = 0
    for _ in range(STEPS):
        world.written.clear()
        history.step()
        for reconciler in tasks:
            if reconciler.name in BY_TIME:
                continue
            keys = [key for key in world.written if key[0] in reconciler.reads]
            if not any(reconciler.concerns(world, *key) for key in keys):
                skipped += 1
                assert reconciler.reconcile(world) == [], (reconciler.name, world.written)
        _settle(world, tasks)
    assert skipped > STEPS


class _Noting(World):
    """A world that notes its writes in a loop."""

    loop: ReconcileLoop | None = None

    def note_written(self) -> None:
        assert self.loop is not None
        for key in self.written:
            self.loop.note(*key)
        self.written.clear()

    async def apply(self, change: ObjectChange) -> None:
        self.make(change)


@pytest.mark.parametrize("seed", range(12))
async def test_the_loop_leaves_nothing_undone(seed: int) -> None:
    """After each write of a client, the loop comes to an end by itself, and nothing is due then."""
    clock = ManualClock()
    world = _Noting()
    tasks = reconcilers(Setup(lambda: "ca", ApiAddress("10.96.0.1", "192.0.2.1", 6443), clock.monotonic))
    world.loop = ReconcileLoop(tasks, world, world, clock)
    history = History(seed, world)
    for _ in range(STEPS):
        history.step()
        for _ in range(100):
            world.note_written()
            await world.loop.step()
            clock.advance(0.001)
            if not world.written and world.loop.is_idle():
                break
        else:
            raise AssertionError("the loop does not come to an end")
        for reconciler in tasks:
            if reconciler.name not in BY_TIME:
                assert reconciler.reconcile(world) == [], reconciler.name
