"""Expansion of volumes on the node: what is done, and what the claim reports."""

from __future__ import annotations

from typing import Any

import pytest

from pykubelet.base.api.codec import from_object, to_object
from pykubelet.base.api.storage import PersistentVolumeClaim
from pykubelet.base.kit.cells import Sink
from pykubelet.base.kit.clock import ManualClock
from pykubelet.base.model.ids import PodRef, PodUID
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.provide.volumes.expand import Expander
from pykubelet.provide.volumes.expansion import ExpandError, ExpandFault, Expansion
from pykubelet.provide.volumes.kind import TransientError, VolumesError
from pykubelet_local_api.patch.json_patch import merge_patch

pytestmark = pytest.mark.virtual_time

GI = 1 << 30
POD = PodRef("shop", "web", PodUID("u1"))
WANTED = Expansion(("shop", "data"), "c1", "pv", 2 * GI, "2Gi", pod=POD)
GROWS = ("grown", 2 * GI)


class Cluster:
    """The API server's claim, and a driver. `log`: what was done, in order.

    `conflicts`: so many patches meet a claim that was just changed. `fails`: the error of the driver. `lost`: so many patches
    from the end are refused.
    """

    def __init__(self, status: dict[str, Any], spec: dict[str, Any] | None = None, **metadata: Any) -> None:
        metadata = {"name": "data", "namespace": "shop", "uid": "c1", "resourceVersion": "1", **metadata}
        self.claim: dict[str, Any] = {"metadata": metadata, "spec": spec or {}, "status": {"phase": "Bound", **status}}
        self.log: list[tuple[str, Any]] = []
        self.events: Sink[KubeEvent] = Sink()
        self.conflicts = 0
        self.fails: Exception | None = None
        self.refused: ApiError | None = None
        self.expander = Expander(self, "n1", ManualClock(), self.events)

    async def get(self, namespace: str, name: str) -> PersistentVolumeClaim:
        assert (namespace, name) == ("shop", "data")
        if self.refused is not None and not self.log:
            raise self.refused
        return from_object(PersistentVolumeClaim, self.claim)

    async def patch_status(self, claim: PersistentVolumeClaim, body: dict[str, Any]) -> PersistentVolumeClaim:
        if self.conflicts:
            self.conflicts -= 1
            self.claim["metadata"]["resourceVersion"] = f"x{self.conflicts}"
        if body["metadata"]["resourceVersion"] != self.claim["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "the object has been modified")
        if self.refused is not None:
            raise self.refused
        self.claim = merge_patch(self.claim, body)
        self.claim["metadata"]["resourceVersion"] += "0"
        self.log.append(("patched", body["status"]))
        return from_object(PersistentVolumeClaim, self.claim)

    async def grow(self, size: int) -> int:
        self.log.append(("grown", size))
        if self.fails is not None:
            raise self.fails
        return size

    async def expand(self, expansion: Expansion = WANTED) -> int:
        return await self.expander.expand(expansion, self.grow)

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = to_object(from_object(PersistentVolumeClaim, self.claim))["status"]
        return found

    def event_texts(self) -> list[tuple[str, str, str]]:
        objects = [event.about.kind if event.about is not None else "Pod" for event in self.events.events]
        return [(kind, event.reason, event.message) for kind, event in zip(objects, self.events.events, strict=True)]


def condition(kind: str, **more: str) -> dict[str, str]:
    return {"type": kind, "status": "True", **more}


def recovering(state: str, **more: Any) -> dict[str, Any]:
    states = {"allocatedResourceStatuses": {"storage": state}} if state else {}
    return {"capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "2Gi"}, **states, **more}


async def test_a_claim_without_allocated_resources_gets_the_size_of_its_volume() -> None:
    resizing = [condition("FileSystemResizePending"), condition("Resizing"), condition("ModifyingVolume")]
    cluster = Cluster({"capacity": {"storage": "1Gi"}, "conditions": resizing})

    assert await cluster.expand() == 2 * GI
    (grown, (patched, body)) = cluster.log
    assert (grown, patched) == (GROWS, "patched") and set(body) == {"capacity", "conditions"}
    assert cluster.status["capacity"] == {"storage": "2Gi"}
    assert [entry["type"] for entry in cluster.status["conditions"]] == ["ModifyingVolume"]
    text = 'MountVolume.NodeExpandVolume succeeded for volume "pv" n1'
    assert cluster.event_texts() == [
        ("Pod", "FileSystemResizeSuccessful", text),
        ("PersistentVolumeClaim", "FileSystemResizeSuccessful", text),
    ]


@pytest.mark.parametrize("state", ["NodeResizePending", "NodeResizeInProgress"])
async def test_a_pending_resize_is_reported_as_begun_and_ended(state: str) -> None:
    cluster = Cluster(recovering(state, conditions=[condition("NodeResizeError"), condition("ControllerResizeError")]))

    assert await cluster.expand() == 2 * GI
    begun = [("patched", {"allocatedResourceStatuses": {"storage": "NodeResizeInProgress"}})]
    assert cluster.log[:-1] == [*(begun if state == "NodeResizePending" else []), GROWS]
    assert cluster.status == {
        "phase": "Bound",
        "capacity": {"storage": "2Gi"},
        "allocatedResources": {"storage": "2Gi"},
    }


async def test_the_target_is_the_allocated_size_when_there_is_one() -> None:
    cluster = Cluster(recovering("NodeResizePending", allocatedResources={"storage": "1536Mi"}))

    assert await cluster.expand() == 1536 << 20
    assert ("grown", 1536 << 20) in cluster.log
    assert cluster.status["capacity"] == {"storage": "1536Mi"}


@pytest.mark.parametrize(
    ("status", "known"),
    [
        (recovering("ControllerResizeInProgress"), 0),
        (recovering("NodeResizeInfeasible"), 0),
        (recovering("ControllerResizeInfeasible"), 0),
        (recovering(""), 0),
        (recovering("", capacity={"storage": "2Gi"}), 2 * GI),
        ({"capacity": {"storage": "2Gi"}}, 2 * GI),
        ({"capacity": {"storage": "3Gi"}}, 2 * GI),
    ],
)
async def test_states_in_which_the_node_does_nothing(status: dict[str, Any], known: int) -> None:
    cluster = Cluster(status)

    assert await cluster.expand() == known
    assert cluster.log == [] and cluster.event_texts() == []


async def test_a_volume_of_many_nodes_grows_on_each_of_them() -> None:
    shared = {"accessModes": ["ReadWriteMany"]}
    done = recovering("", capacity={"storage": "2Gi"})
    cluster = Cluster(done, shared)
    assert await cluster.expand() == 2 * GI
    assert cluster.log == [GROWS] and cluster.event_texts() == []

    cluster.fails = ExpandError("the driver has no EXPAND_VOLUME", ExpandFault.NOT_SUPPORTED)
    assert await cluster.expand() == 2 * GI
    spared = Cluster(done, shared, annotations={"volume.kubernetes.io/node-expansion-not-required": "true"})
    assert await spared.expand() == 2 * GI
    assert spared.log == []


async def test_a_claim_that_is_mounted_read_only_is_reported_and_left() -> None:
    cluster = Cluster(recovering("NodeResizePending"))
    only_read = Expansion(WANTED.claim, WANTED.uid, "pv", 2 * GI, "2Gi", read_only=True, pod=POD)

    assert await cluster.expand(only_read) == 2 * GI
    assert cluster.log == []
    text = 'MountVolume.NodeExpandVolume failed for volume "pv" requested read-only file system'
    assert [event[1:] for event in cluster.event_texts()] == [("FileSystemResizeFailed", text)] * 2


async def test_another_claim_of_the_same_name_is_left() -> None:
    cluster = Cluster(recovering("NodeResizePending"), uid="other")
    assert await cluster.expand() == 2 * GI
    assert cluster.log == []


@pytest.mark.parametrize("status", [{"capacity": {"storage": "1Gi"}}, recovering("NodeResizePending")])
async def test_a_driver_that_cannot_expand(status: dict[str, Any]) -> None:
    cluster = Cluster(status)
    cluster.fails = ExpandError("no EXPAND_VOLUME", ExpandFault.NOT_SUPPORTED)
    if "allocatedResources" not in status:
        assert await cluster.expand() == 2 * GI, "it does not keep the pod from starting"
        assert cluster.log == [GROWS]
        return
    with pytest.raises(ExpandError):
        await cluster.expand()
    assert cluster.status["conditions"][0]["message"] == "failed to expand pvc with no EXPAND_VOLUME"


async def test_a_refusal_is_a_condition_of_the_claim_and_is_tried_again() -> None:
    cluster = Cluster(recovering("NodeResizePending", conditions=[condition("Resizing")]))
    cluster.fails = ExpandError("rpc error: code = Internal desc = broken")
    for _ in range(2):
        with pytest.raises(ExpandError):
            await cluster.expand()
    conditions = cluster.status["conditions"]
    assert [entry["type"] for entry in conditions] == ["Resizing", "NodeResizeError"]
    assert conditions[1]["status"] == "True"
    assert conditions[1]["message"] == "failed to expand pvc with rpc error: code = Internal desc = broken"
    assert cluster.status["allocatedResourceStatuses"] == {"storage": "NodeResizeInProgress"}

    cluster.fails = None
    assert await cluster.expand() == 2 * GI
    assert [entry["type"] for entry in cluster.status.get("conditions", [])] == []


async def test_a_size_that_is_never_possible_is_not_tried_again() -> None:
    cluster = Cluster(recovering("NodeResizePending"))
    cluster.fails = ExpandError("too large", ExpandFault.INFEASIBLE)
    with pytest.raises(ExpandError):
        await cluster.expand()
    assert cluster.status["allocatedResourceStatuses"] == {"storage": "NodeResizeInfeasible"}
    cluster.log.clear()
    assert await cluster.expand() == 0
    assert cluster.log == []


async def test_a_refused_size_that_the_user_has_given_up_is_infeasible() -> None:
    spec = {"resources": {"requests": {"storage": "1200Mi"}}}
    cluster = Cluster(recovering("NodeResizeInProgress", conditions=[condition("NodeResizeError")]), spec)
    cluster.fails = ExpandError("broken")
    with pytest.raises(ExpandError):
        await cluster.expand()
    assert cluster.status["allocatedResourceStatuses"] == {"storage": "NodeResizeInfeasible"}


async def test_a_volume_that_cannot_grow_while_mounted_stays_mounted() -> None:
    cluster = Cluster(recovering("NodeResizePending"))
    cluster.fails = ExpandError("in use", ExpandFault.IN_USE)

    assert await cluster.expand() == 2 * GI, "not tried again on this node"
    assert cluster.status["conditions"][0]["type"] == "NodeResizeError"
    assert cluster.status["capacity"] == {"storage": "1Gi"}


async def test_a_driver_that_is_away_leaves_no_condition() -> None:
    cluster = Cluster(recovering("NodeResizePending"))
    cluster.fails = TransientError("driver name d not found in the list of registered CSI drivers")
    with pytest.raises(TransientError):
        await cluster.expand()
    assert "conditions" not in cluster.status


async def test_a_claim_that_was_changed_is_read_again() -> None:
    cluster = Cluster(recovering("NodeResizePending"))
    cluster.conflicts = 2
    assert await cluster.expand() == 2 * GI
    cluster = Cluster(recovering("NodeResizePending"))
    cluster.conflicts = 99
    with pytest.raises(VolumesError, match="shop/data is changed too often"):
        await cluster.expand()
    assert GROWS not in cluster.log


async def test_an_api_server_that_is_away_is_not_taken_for_the_driver() -> None:
    cluster = Cluster(recovering("NodeResizePending"))
    cluster.refused = ApiError(0, "", "connection refused")
    with pytest.raises(VolumesError, match="the claim shop/data cannot be read or changed: connection refused"):
        await cluster.expand()
    assert cluster.log == []


async def test_without_an_api_server_nothing_is_expanded() -> None:
    events: Sink[KubeEvent] = Sink()
    grown: list[int] = []

    async def grow(size: int) -> int:
        grown.append(size)
        return size

    assert await Expander(None, "n1", ManualClock(), events).expand(WANTED, grow) == 2 * GI
    assert (grown, events.events) == ([], [])
